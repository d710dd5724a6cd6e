#!/usr/bin/env bash
# Makes sure that a machine has what the build needs. On Debian, as root, it installs missing packages; elsewhere it names them.
# The test cluster looks after its own needs.
source "$(dirname "$0")/lib.sh"

missing=()
need() { # need PROGRAM PACKAGE
  command -v "$1" >/dev/null || missing+=("$2")
}
need cc build-essential
need strip binutils
need git git
need make make
need python3 python3
need node nodejs
need npm npm
need flock util-linux
python3 -c 'import ensurepip' 2>/dev/null || missing+=(python3-venv)

if [[ ${#missing[@]} -gt 0 ]]; then
  if [[ $EUID -ne 0 ]] || ! command -v apt-get >/dev/null; then
    die "these packages are missing: ${missing[*]}: install them with this system's package manager"
  fi
  echo "installing ${missing[*]}"
  apt-get update -qq
  DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "${missing[@]}" >/dev/null
fi

command -v cargo >/dev/null || die "Rust is missing: install rustup (https://rustup.rs); rust-toolchain.toml names the version"
command -v go >/dev/null || die "Go is missing: install the version that tests/cluster/go.mod names"

# rustup fetches the pinned toolchain and its components at the first use, if they are not there.
want=$(sed -n 's/^channel = "\(.*\)"/\1/p' rust-toolchain.toml)
have=$(rustc --version | cut -d ' ' -f 2)
[[ $have == "$want" ]] || die "Rust is $have, but must be $want: use rustup, which reads rust-toolchain.toml"
for component in fmt clippy; do
  cargo "$component" --version >/dev/null 2>&1 || rustup component add rustfmt clippy
done

printf 'rust %s, %s, node %s, %s\n' "$have" "$(go version | cut -d ' ' -f 3)" "$(node --version)" "$(python3 --version)"
