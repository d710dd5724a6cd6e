#!/usr/bin/env bash
# All of `make bench`: brings up the test cluster with Berth as it is installed by default, but with one gateway replica, and
# measures what Berth costs beside what it is compared with. Prints a table and writes target/bench.json.
# Usage: bench.sh [hop|memory]...; all by default. BERTH_BENCH_SECONDS (90) is about how long calls are measured,
# BERTH_BENCH_SESSIONS (1000) how many sessions' memory is.
source "$(dirname "$0")/lib.sh"

! given_cluster || die "memory and CPU time are read from processes on this machine: unset BERTH_KUBECONFIG to use the test cluster"
trap 'tell_failure bench' EXIT

hack/setup.sh
hack/cluster.sh up
banner "static binaries"
hack/build.sh
RUSTFLAGS="-C target-feature=+crt-static" cargo build --locked --release --target "$TRIPLE" -p berth-bench-pair
banner "images and install"
hack/images.sh berth probe bench
# One gateway holds all sessions and carries all calls, whoever scaled it before; logs are what an install has, not what the tests want.
BERTH_HELM_ARGS="--force-conflicts --set gateway.replicas=1 --set log.level=info ${BERTH_HELM_ARGS:-}" hack/install.sh

banner "bench"
use_cluster
set -a
source "$SCRATCH/images.env"
BERTH_GATEWAY=$(gateway_url)
set +a
cargo run --quiet --locked -p berth-bench -- --out "$OUT/bench.json" "$@"
banner "make bench: OK in $(elapsed)"
