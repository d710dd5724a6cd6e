#!/bin/sh
# Speaks with both official clients, in both modes, to a server; fails at the first surprise.
# Usage: check.sh [URL [TOKEN]]; the server has the tool `echo{message}`. Without a URL it only
# installs what it needs, for a later run where there is no network.
# TypeScript runs on the Node of ../everything.
set -eu

here=$(CDPATH='' cd -- "$(dirname -- "$0")" && pwd)
python=$("$here/python/venv.sh")
script=$("$here/typescript/install.sh")
rootfs=$("$here/../everything/build.sh")
[ $# != 0 ] || exit 0
url=$1 token=${2:-t0ken}

python() { "$python" "$here/python/call.py" "$@"; }
typescript() { "$rootfs/node/usr/local/bin/node" "$script" "$@"; }

expect() {
    case $2 in
        *"$3"*) ;;
        *) echo "check.sh: $1: no $3 in: $2" >&2; exit 1 ;;
    esac
}

# The command fails, and says why in one line.
refuse() {
    if error=$("$@" 2>&1 > /dev/null); then
        echo "check.sh: went well: $*" >&2
        exit 1
    fi
    [ "$(printf '%s\n' "$error" | grep -c .)" = 1 ] || { echo "check.sh: not one line: $error" >&2; exit 1; }
}

for client in python typescript; do
    for mode in auto legacy; do
        seen=$($client "$url" "$token" echo '{"message":"hello-from-check"}' --mode $mode)
        expect "$client $mode" "$seen" protocolVersion
        expect "$client $mode" "$seen" '"echo"'
        expect "$client $mode" "$seen" hello-from-check
        $client "$url" "$token" no-such-tool '{}' --mode $mode --expect-error > /dev/null
        refuse $client "$url" "$token" no-such-tool '{}' --mode $mode
        refuse $client "$url" "$token" echo '{"message":"m"}' --mode $mode --expect-error
        refuse $client http://127.0.0.1:39999/mcp "$token" echo '{}' --mode $mode
        echo "$client $mode: ok"
    done
done
