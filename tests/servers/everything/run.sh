#!/bin/sh
# Runs the staged server as its pod would, without privileges and without the host's files, in a
# network namespace of its own (it listens on every interface), on port 3001; runs COMMAND in the
# same namespace and ends with its status. Without a COMMAND it says `initialize` once.
# Usage, as root: [ROOTFS=FOLDER] run.sh [COMMAND...]
set -eu

here=$(CDPATH='' cd -- "$(dirname -- "$0")" && pwd)
ROOTFS=${ROOTFS:-$("$here/build.sh")}
root=$(mktemp -d "$(dirname "$ROOTFS")/.run.XXXXXX")
trap 'rm -rf "$root"' EXIT INT TERM
cp -al "$ROOTFS/node/." "$root"
cp -al "$ROOTFS/app" "$root/app"
chmod 0755 "$root"

if [ $# = 0 ]; then
    set -- curl -sS --fail --max-time 5 http://127.0.0.1:3001/mcp \
        -H 'content-type: application/json' -H 'accept: application/json, text/event-stream' \
        -d '{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-11-25","capabilities":{},"clientInfo":{"name":"run","version":"1"}}}'
fi

# shellcheck disable=SC2016 # expands in the inner shell
ROOT=$root unshare -n -- sh -eu -c '
ip link set lo up
env -i PORT=3001 "$(command -v chroot)" --userspec=65532:65532 "$ROOT" /usr/local/bin/node \
    /app/node_modules/@modelcontextprotocol/server-everything/dist/index.js streamableHttp >&2 &
server=$!
trap "kill $server 2>/dev/null || true" EXIT
tries=0
until curl -s -o /dev/null --max-time 1 http://127.0.0.1:3001/; do
    tries=$((tries + 1))
    [ $tries -lt 50 ] || { echo "server-everything does not listen" >&2; exit 1; }
    sleep 0.2
done
"$@"
' sh "$@"
