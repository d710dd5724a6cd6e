#!/bin/sh
# Installs the official TypeScript SDK beside a copy of call.mjs and prints the path of that copy.
# Usage: install.sh [FOLDER]; by default a folder under the cache, named by its content.
set -eu

here=$(CDPATH='' cd -- "$(dirname -- "$0")" && pwd)
cache=${BERTH_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/berth}
key=$(cat "$here/install.sh" "$here/package-lock.json" "$here/call.mjs" | sha256sum | cut -c 1-16)
out=${1:-$cache/clients/typescript-$key}

if [ ! -e "$out/complete" ]; then
    mkdir -p "$(dirname "$out")"
    stage=$(mktemp -d "$(dirname "$out")/.stage.XXXXXX")
    trap 'rm -rf "$stage"' EXIT INT TERM
    cp "$here/package.json" "$here/package-lock.json" "$here/.npmrc" "$here/call.mjs" "$stage/"
    npm ci --prefix "$stage" >&2
    touch "$stage/complete"
    # Two at once make the same content: whoever comes second drops his own.
    mv -T "$stage" "$out" 2>/dev/null || [ -e "$out/complete" ]
fi
echo "$out/call.mjs"
