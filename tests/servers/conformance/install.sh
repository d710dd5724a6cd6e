#!/bin/sh
# Installs the official conformance suite, and prints the path of its program, which is for Node 22 or newer. The folder is under
# the cache, named by its content.
set -eu

here=$(CDPATH='' cd -- "$(dirname -- "$0")" && pwd)
cache=${BERTH_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/berth}
key=$(cat "$here/install.sh" "$here/.npmrc" "$here/package.json" "$here/package-lock.json" | sha256sum | cut -c 1-16)
out=$cache/clients/conformance-$key

if [ ! -e "$out/complete" ]; then
    mkdir -p "$(dirname "$out")"
    stage=$(mktemp -d "$(dirname "$out")/.stage.XXXXXX")
    trap 'rm -rf "$stage"' EXIT INT TERM
    cp "$here/package.json" "$here/package-lock.json" "$here/.npmrc" "$stage/"
    npm ci --loglevel error --prefix "$stage" >&2
    touch "$stage/complete"
    # Two at once make the same content: whoever comes second drops his own.
    mv -T "$stage" "$out" 2>/dev/null || [ -e "$out/complete" ]
fi
echo "$out/node_modules/@modelcontextprotocol/conformance/dist/index.js"
