#!/bin/sh
# Stages the reference server mcp-server-time and this machine's Python as two image layers, and
# prints the folder that holds them: python/ (interpreter, standard library, C libraries, passwd,
# /tmp) and app/ (for /app).
set -eu

here=$(CDPATH='' cd -- "$(dirname -- "$0")" && pwd)
. "$here/../layers.sh"

begin time "$(python3 -c 'import sys; print(sys.version, sys._base_executable)')" serve.py requirements.txt constraints.txt
mkdir -p "$stage/python/usr/bin" "$stage/app"

# pip is the one of the Python client: Debian's python3 has none of its own.
"$("$here/../clients/python/venv.sh" v2)" -m pip install --quiet --disable-pip-version-check --no-compile \
    --only-binary :all: --target "$stage/app" -r "$here/requirements.txt" -c "$here/constraints.txt" >&2
rm -rf "$stage/app/bin"
cp "$here/serve.py" "$stage/app/"

# The interpreter finds its library by its own place, /usr, wherever both are on the host. Left out
# is what no server needs: tests, windows, installers.
python3 - "$stage/python/usr" <<'PY'
import shutil, sys, sysconfig
from pathlib import Path

usr, version = Path(sys.argv[1]), f"python{sys.version_info.major}.{sys.version_info.minor}"
unneeded = shutil.ignore_patterns(
    "__pycache__", "test", "tests", "idlelib", "lib2to3", "tkinter", "turtle*", "ensurepip", "pydoc_data", "config-*",
    "site-packages", "dist-packages", "sitecustomize.py", "_test*", "_tkinter*", "_curses*", "readline.*", "_dbm.*",
    "_gdbm.*", "nis.*", "*.a", "EXTERNALLY-MANAGED",
)
for source in dict.fromkeys((sysconfig.get_path("stdlib"), sysconfig.get_path("platstdlib"))):
    shutil.copytree(source, usr / "lib" / version, ignore=unneeded, ignore_dangling_symlinks=True, dirs_exist_ok=True)
shutil.copy(sys._base_executable, usr / "bin" / "python3")
PY

find "$stage/python/usr/bin/python3" "$stage/python/usr/lib" "$stage/app" -type f \( -name python3 -o -name '*.so' \) -exec ldd {} + |
    awk '$2 == "=>" && $3 ~ "^/" { print $3 } $1 ~ "^/" && $1 !~ ":$" { print $1 }' | grep -v "^$stage/" | add_libraries python
# Only to save space: what strip does not know stays as it is.
find "$stage/python" "$stage/app" -type f \( -name python3 -o -name '*.so*' \) -exec strip --strip-unneeded {} + 2>/dev/null || true

# An image's files have no times, by which Python would know that compiled code is current: it is
# told not to ask. Without compiled code the start takes three times as long.
(cd "$stage/app" && python3 -m compileall -q -s "$stage/app" -p /app --invalidation-mode unchecked-hash . >&2)
(cd "$stage/python/usr/lib" && python3 -m compileall -q -s "$stage/python" -p / --invalidation-mode unchecked-hash . >&2)

finish python
