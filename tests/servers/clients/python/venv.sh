#!/bin/sh
# Makes a virtual environment with the official Python SDK and prints the path of its interpreter.
# Usage: venv.sh [v1|v2]: the generation of the SDK, v2 by default. The environment is in a folder
# under the cache, named by its content.
set -eu

here=$(CDPATH='' cd -- "$(dirname -- "$0")" && pwd)
pins=$here/${1:-v2}
cache=${BERTH_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/berth}
key=$({
    cat "$here/venv.sh" "$pins/requirements.txt" "$pins/constraints.txt"
    python3 -c 'import sys; print(sys.version, sys.executable)'
} | sha256sum | cut -c 1-16)
out=$cache/clients/python-${1:-v2}-$key

# An environment cannot be renamed after it is made, so it is made in place, under a lock, and the
# mark of completion comes last.
mkdir -p "$(dirname "$out")"
exec 9> "$out.lock"
flock 9
if [ ! -e "$out/complete" ]; then
    python3 -m venv --clear "$out" >&2
    "$out/bin/python" -m pip install --quiet --disable-pip-version-check \
        -r "$pins/requirements.txt" -c "$pins/constraints.txt" >&2
    touch "$out/complete"
fi
echo "$out/bin/python"
