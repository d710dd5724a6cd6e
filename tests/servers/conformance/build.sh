#!/bin/sh
# Builds the fixture of the conformance suite, static, and prints the folder that holds it. The folder is under the cache, named
# by its content; go.mod and go.sum pin the source.
set -eu

here=$(CDPATH='' cd -- "$(dirname -- "$0")" && pwd)
cache=${BERTH_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/berth}
cd "$here"
key=$({
    cat build.sh go.mod go.sum
    go version
} | sha256sum | cut -c 1-16)
out=$cache/servers/conformance-$key

if [ ! -e "$out/complete" ]; then
    mkdir -p "$(dirname "$out")"
    stage=$(mktemp -d "$(dirname "$out")/.stage.XXXXXX")
    trap 'rm -rf "$stage"' EXIT INT TERM
    CGO_ENABLED=0 go build -mod=readonly -trimpath -buildvcs=false -ldflags '-s -w' -o "$stage/everything-server" \
        github.com/modelcontextprotocol/go-sdk/conformance/everything-server >&2
    chmod 0755 "$stage" "$stage/everything-server"
    touch "$stage/complete"
    # Two builds at once make the same content: whoever comes second drops his own.
    mv -T "$stage" "$out" 2>/dev/null || [ -e "$out/complete" ]
fi
echo "$out"
