#!/bin/sh
# Makes a virtual environment with the official Python SDK and prints the path of its interpreter.
# Usage: venv.sh [FOLDER]; by default a folder under the cache, named by its content.
set -eu

here=$(CDPATH='' cd -- "$(dirname -- "$0")" && pwd)
cache=${BERTH_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/berth}
key=$({
    cat "$here/venv.sh" "$here/requirements.txt" "$here/constraints.txt"
    python3 -c 'import sys; print(sys.version, sys.executable)'
} | sha256sum | cut -c 1-16)
out=${1:-$cache/clients/python-$key}

# An environment cannot be renamed after it is made, so it is made in place, under a lock, and the
# mark of completion comes last.
mkdir -p "$(dirname "$out")"
exec 9> "$out.lock"
flock 9
if [ ! -e "$out/complete" ]; then
    python3 -m venv --clear "$out" >&2
    "$out/bin/python" -m pip install --quiet --disable-pip-version-check \
        -r "$here/requirements.txt" -c "$here/constraints.txt" >&2
    touch "$out/complete"
fi
echo "$out/bin/python"
