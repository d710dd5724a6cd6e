# Debian packages that the cluster needs. Sourced by ../cluster.

# kubelet, kube-proxy and the namespace need these tools at run time.
RUN_PACKAGES=(iproute2 iptables nftables conntrack mount util-linux ca-certificates libseccomp2)
# runc is the one program that is built with cgo.
BUILD_PACKAGES=(gcc libc6-dev libseccomp-dev)

# Installs those of the named packages that are missing, or says how to.
ensure_packages() {
  if ! command -v dpkg-query >/dev/null; then
    require_tools
    return
  fi
  local missing=() package
  for package in "$@"; do
    [[ $(dpkg-query -W -f '${db:Status-Status}' "$package" 2>/dev/null) == installed ]] || missing+=("$package")
  done
  [[ ${#missing[@]} -gt 0 ]] || return 0
  if [[ $EUID -ne 0 ]] || ! command -v apt-get >/dev/null; then
    die "packages are missing: as root, run: apt-get install ${missing[*]}"
  fi
  echo "installing ${missing[*]}" >&2
  local log
  log=$(mktemp)
  # A machine that never fetched the package lists has nothing to install from.
  if ! { apt-get update && DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends "${missing[@]}"; } >"$log" 2>&1; then
    tail -n 20 "$log" >&2
    die "could not install ${missing[*]}: the end of apt-get's output is above"
  fi
  rm -f "$log"
}

# On other distributions the packages have other names: ask for what they hold.
require_tools() {
  local missing=() tool
  for tool in ip iptables nft conntrack mount; do
    command -v "$tool" >/dev/null || missing+=("$tool")
  done
  [[ ${#missing[@]} -eq 0 ]] || die "these programs are missing: ${missing[*]}: install iproute2, iptables, nftables, conntrack and util-linux with this system's package manager"
}
