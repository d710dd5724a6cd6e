#!/bin/sh
# Installs a client for Node beside a copy of its script, and prints the path of that copy.
# Usage: install.sh typescript-v1|typescript-v2|inspector. The folder is under the cache, named by
# its content.
set -eu

here=$(CDPATH='' cd -- "$(dirname -- "$0")" && pwd)
client=$here/$1
cache=${BERTH_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/berth}
key=$(cat "$here/install.sh" "$here/command.mjs" "$here/.npmrc" "$client/package-lock.json" "$client/call.mjs" |
    sha256sum | cut -c 1-16)
out=$cache/clients/$1-$key

if [ ! -e "$out/complete" ]; then
    mkdir -p "$(dirname "$out")"
    stage=$(mktemp -d "$(dirname "$out")/.stage.XXXXXX")
    trap 'rm -rf "$stage"' EXIT INT TERM
    cp "$client/package.json" "$client/package-lock.json" "$client/call.mjs" "$here/.npmrc" "$here/command.mjs" "$stage/"
    npm ci --loglevel error --prefix "$stage" >&2
    touch "$stage/complete"
    # Two at once make the same content: whoever comes second drops his own.
    mv -T "$stage" "$out" 2>/dev/null || [ -e "$out/complete" ]
fi
echo "$out/call.mjs"
