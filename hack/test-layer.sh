#!/usr/bin/env bash
# test-layer.sh unit|api|e2e|install [TEST]...: runs one layer of the tests and prints its total. Fails if it ran no test.
#   unit     needs nothing but the toolchains; the test cluster's own unit tests are among them
#   api      needs a cluster with the CRDs: what the API server itself accepts, refuses and explains
#   e2e      needs a cluster with Berth
#   install  the same, and takes Berth away and brings it back: upgrade, rollback, uninstall
# Of api, e2e and install only those tests run that have one of the TESTs in their names, if any are given.
# With BERTH_SOAK=1 counts are the full ones, and what each test tells is shown.
source "$(dirname "$0")/lib.sh"

layer=$1
shift
log=$SCRATCH/test-$layer.log
case $layer in
  unit)
    [[ $# -eq 0 ]] || die "the layer unit is run as a whole: use cargo test for a part of it"
    arguments=()
    ;;
  api) arguments=(--test api -- "$@") ;;
  e2e | install) arguments=(--test "$layer" -- --test-threads 1 ${BERTH_SOAK:+--nocapture} "$@") ;;
  *) die "there is no layer $layer: use unit, api, e2e or install" ;;
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
  node=$(tests/servers/everything/build.sh)/node/usr/local/bin/node
  export BERTH_CLIENT_PYTHON_V1 BERTH_CLIENT_PYTHON_V2 BERTH_CLIENT_TYPESCRIPT_V1 BERTH_CLIENT_TYPESCRIPT_V2 BERTH_CLIENT_INSPECTOR
  BERTH_CLIENT_PYTHON_V1="$("$clients/python/venv.sh" v1) $clients/python/call_v1.py"
  BERTH_CLIENT_PYTHON_V2="$("$clients/python/venv.sh" v2) $clients/python/call.py"
  BERTH_CLIENT_TYPESCRIPT_V1="$node $("$clients/node/install.sh" typescript-v1)"
  BERTH_CLIENT_TYPESCRIPT_V2="$node $("$clients/node/install.sh" typescript-v2)"
  BERTH_CLIENT_INSPECTOR="$node $("$clients/node/install.sh" inspector)"
  # The official conformance suite, as a command.
  export BERTH_CONFORMANCE
  BERTH_CONFORMANCE="$node $(tests/servers/conformance/install.sh)"
fi

code=0
# Always the whole workspace: a part of it would want the same dependencies with fewer features, built once more.
cargo test --locked --no-fail-fast --workspace "${arguments[@]}" 2>&1 | tee "$log" || code=$?
if [[ $layer == unit ]]; then
  (cd tests/cluster && go test -v ./internal/... 2>&1 | grep -v 'no test files') | tee -a "$log" || code=$?
fi
hack/totals.sh "$layer" "$log" || code=1
exit "$code"
