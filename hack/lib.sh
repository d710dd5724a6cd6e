# Shared by the scripts in this folder; source it first. It changes to the repository's root and starts the clock that every
# banner shows; scripts called by others go on with their caller's.

set -euo pipefail

ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd -P)
cd "$ROOT"
export BERTH_STARTED=${BERTH_STARTED:-$(date +%s)}

CACHE=${BERTH_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/berth}
OUT=${CARGO_TARGET_DIR:-$ROOT/target}
TRIPLE=$(uname -m)-unknown-linux-gnu
# Where the static binaries are; image descriptions name it.
export BERTH_BIN=$OUT/$TRIPLE/release
# Logs and facts that one script leaves for another.
SCRATCH=$OUT/berth
mkdir -p "$SCRATCH"

CLUSTER=tests/cluster/cluster
SYSTEM_NAMESPACE=berth-system

die() {
  echo "${0##*/}: $*" >&2
  exit 1
}

# elapsed [SINCE]: the time since the start, as 3m05s.
elapsed() {
  local seconds=$(($(date +%s) - ${1:-$BERTH_STARTED}))
  printf '%dm%02ds' $((seconds / 60)) $((seconds % 60))
}

# banner TEXT: a step's headline, with the time since the start.
banner() { printf '\n==> [%6s] %s\n' "$(elapsed)" "$*"; }

# tell_failure NAME: for the trap of EXIT; says what the cluster says, and that `make NAME` failed, if it did.
tell_failure() {
  local code=$?
  if [[ $code -ne 0 ]]; then
    hack/diagnose.sh
    banner "make $1: FAILED, after $(elapsed)"
  fi
  exit "$code"
}

# A cluster that is given is used as it is; without one, the test cluster is.
given_cluster() { [[ -n ${BERTH_KUBECONFIG:-} ]]; }

# Makes kubectl and helm those of the cluster in use.
use_cluster() {
  if given_cluster; then
    export KUBECONFIG=$BERTH_KUBECONFIG
  else
    KUBECONFIG=$($CLUSTER kubeconfig)
    PATH=$($CLUSTER path):$PATH
    export KUBECONFIG PATH
  fi
}

# Base of the gateway's URLs, as seen from here.
gateway_url() { echo "${BERTH_GATEWAY:-http://127.0.0.1:${BERTH_GATEWAY_PORT:-18080}}"; }
