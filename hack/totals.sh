#!/usr/bin/env bash
# totals.sh LAYER LOG...: adds up cargo's `test result:` lines and Go's `--- PASS:` ones. Fails if no test ran, or one failed.
source "$(dirname "$0")/lib.sh"

layer=$1
shift
awk -v layer="$layer" '
  /^test result:/ { passed += $4; failed += $6; skipped += $8 }
  /^--- PASS: / { passed++ }
  /^--- FAIL: / { failed++ }
  /^--- SKIP: / { skipped++ }
  END {
    printf "%s: %d passed, %d failed, %d skipped\n", layer, passed, failed, skipped
    if (passed + failed == 0) { print layer ": no test ran" > "/dev/stderr"; exit 1 }
    exit failed > 0
  }' "$@"
