#!/usr/bin/env bash
# test-layer.sh unit|api|e2e: runs one layer of the tests and prints its total. Fails if it ran no test.
#   unit  needs nothing but the toolchains; the test cluster's own unit tests are among them
#   api   needs a cluster with the CRDs: what the API server itself accepts, refuses and explains
#   e2e   needs a cluster with Berth
source "$(dirname "$0")/lib.sh"

layer=$1
log=$SCRATCH/test-$layer.log
case $layer in
  unit) arguments=(--workspace --exclude berth-e2e) ;;
  api) arguments=(-p berth-e2e --test api) ;;
  e2e) arguments=(-p berth-e2e --test e2e -- --test-threads 1) ;;
  *) die "there is no layer $layer: use unit, api or e2e" ;;
esac

if [[ $layer != unit ]]; then
  use_cluster
  set -a
  source "$SCRATCH/images.env"
  BERTH_GATEWAY=$(gateway_url)
  set +a
fi

if [[ $layer == e2e ]]; then
  # The official clients, as commands that take URL TOKEN TOOL JSON_ARGS.
  clients=$ROOT/tests/servers/clients
  BERTH_CLIENT_PYTHON="$("$clients/python/venv.sh") $clients/python/call.py"
  BERTH_CLIENT_TYPESCRIPT="$(tests/servers/everything/build.sh)/node/usr/local/bin/node $("$clients/typescript/install.sh")"
  export BERTH_CLIENT_PYTHON BERTH_CLIENT_TYPESCRIPT
fi

code=0
cargo test --locked --no-fail-fast "${arguments[@]}" 2>&1 | tee "$log" || code=$?
if [[ $layer == unit ]]; then
  (cd tests/cluster && go test -v ./internal/... 2>&1 | grep -v 'no test files') | tee -a "$log" || code=$?
fi
hack/totals.sh "$layer" "$log" || code=1
exit "$code"
