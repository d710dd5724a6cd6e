#!/usr/bin/env bash
# All of `make test`: what can be told without running the product, then four layers of tests, the last three on a real cluster.
source "$(dirname "$0")/lib.sh"

finish() {
  local code=$?
  if [[ $code -ne 0 ]]; then
    if [[ -n ${ON_CLUSTER:-} ]]; then
      banner "make test: what the cluster says"
      hack/diagnose.sh
    fi
    print_totals
    banner "make test: FAILED in ${STAGE:-setup}, after $(elapsed)"
  fi
  exit "$code"
}
trap finish EXIT

print_totals() {
  printf '\n'
  for layer in unit api e2e install; do
    [[ ! -f $SCRATCH/test-$layer.log ]] || hack/totals.sh "$layer" "$SCRATCH/test-$layer.log" || true
  done
}

stage() { # stage TEXT COMMAND...
  STAGE=$1
  banner "$1"
  shift
  "$@"
}

rm -f "$SCRATCH"/test-*.log
stage "setup" hack/setup.sh
stage "lint" hack/lint.sh
stage "unit tests" hack/test-layer.sh unit
stage "cluster" hack/cluster.sh up
ON_CLUSTER=1
stage "static binaries" hack/build.sh
stage "images" hack/images.sh
stage "install" hack/install.sh
stage "API-level tests" hack/test-layer.sh api
stage "e2e tests" hack/test-layer.sh e2e
stage "tests of the install" hack/test-layer.sh install

print_totals
cat "$SCRATCH"/test-*.log >"$SCRATCH/tests.log"
hack/totals.sh total "$SCRATCH/tests.log"
banner "make test: OK in $(elapsed)"
