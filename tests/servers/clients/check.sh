#!/bin/sh
# Speaks with each client, in each of its modes, to a server; fails at the first surprise.
# Usage: check.sh [URL [TOKEN]]; the server has the tool `echo{message}`. Without a URL it only
# installs what it needs, for a later run where there is no network.
set -eu

here=$(CDPATH='' cd -- "$(dirname -- "$0")" && pwd)
python_v1=$("$here/python/venv.sh" v1)
python_v2=$("$here/python/venv.sh" v2)
typescript_v1=$("$here/node/install.sh" typescript-v1)
typescript_v2=$("$here/node/install.sh" typescript-v2)
inspector=$("$here/node/install.sh" inspector)
node=$("$here/../everything/build.sh")/node/usr/local/bin/node
[ $# != 0 ] || exit 0
url=$1 token=${2:-t0ken}

python_v1() { "$python_v1" "$here/python/call_v1.py" "$@"; }
python_v2() { "$python_v2" "$here/python/call.py" "$@"; }
typescript_v1() { "$node" "$typescript_v1" "$@"; }
typescript_v2() { "$node" "$typescript_v2" "$@"; }
inspector() { "$node" "$inspector" "$@"; }

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

# check CLIENT MODE: what it prints when all is well, and when it is not.
check() {
    seen=$($1 "$url" "$token" echo '{"message":"hello-from-check"}' --mode "$2")
    [ "$1" = inspector ] || expect "$1 $2" "$seen" protocolVersion
    expect "$1 $2" "$seen" '"echo"'
    expect "$1 $2" "$seen" hello-from-check
    $1 "$url" "$token" no-such-tool '{}' --mode "$2" --expect-error > /dev/null
    refuse "$1" "$url" "$token" no-such-tool '{}' --mode "$2"
    refuse "$1" "$url" "$token" echo '{"message":"m"}' --mode "$2" --expect-error
    refuse "$1" http://127.0.0.1:39999/mcp "$token" echo '{}' --mode "$2"
    echo "$1 $2: ok"
}

# The first generation of the SDKs knows one way to connect.
check python_v1 legacy
check typescript_v1 legacy
for mode in auto legacy; do
    check python_v2 $mode
    check typescript_v2 $mode
    check inspector $mode
done
