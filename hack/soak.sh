#!/usr/bin/env bash
# All of `make soak`: the e2e tests with their full counts, on a real cluster. Prints every figure, and a seed to repeat it with:
# BERTH_SEED=N make soak.
# Usage: soak.sh [TEST]...: only tests with such a text in their names.
source "$(dirname "$0")/lib.sh"

trap 'tell_failure soak' EXIT

export BERTH_SOAK=1 BERTH_SEED=${BERTH_SEED:-$((RANDOM % 1000))}
banner "soak with seed $BERTH_SEED"
hack/setup.sh
hack/cluster.sh up
hack/build.sh
hack/images.sh
hack/install.sh
hack/test-layer.sh e2e "$@"

printf '\nFigures:\n'
sed -n 's/^figure /  /p' "$SCRATCH/test-e2e.log"
banner "make soak: OK in $(elapsed), seed $BERTH_SEED"
