#!/usr/bin/env bash
# Builds the static release binaries: the three of the image, and the probe that the tests use.
source "$(dirname "$0")/lib.sh"

# Without --target, crt-static would break the procedural macros.
RUSTFLAGS="-C target-feature=+crt-static" cargo build --locked --release --target "$TRIPLE" \
  -p berth-operator -p berth-gateway -p berth-sidecar -p berth-probe

for binary in berth-operator berth-gateway berth-sidecar probe; do
  file=$BERTH_BIN/$binary
  # The image has no loader: a dynamic binary would not start there.
  if grep -q INTERP <<<"$(readelf --program-headers "$file")"; then
    die "$binary is not static"
  fi
  printf '%-16s %5s MB static\n' "$binary" "$(($(stat -c %s "$file") / 1000000))"
done
