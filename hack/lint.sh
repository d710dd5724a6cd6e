#!/usr/bin/env bash
# Everything that can be told without running the product: format, lints, the direction of imports, generated files, charts,
# dependencies.
source "$(dirname "$0")/lib.sh"

banner "lint: format"
cargo fmt --all --check
unformatted=$(gofmt -l tests/cluster)
[[ -z $unformatted ]] || die "not formatted by gofmt: $unformatted"

banner "lint: clippy"
cargo clippy --workspace --all-targets --locked -- -D warnings

# A build of the whole workspace unites the features of all members, so a pure crate that reaches for a client would compile
# there. Alone, it does not.
banner "lint: pure crates, each alone"
for crate in berth-api berth-wire berth-plan berth-mcp; do
  cargo check --quiet --locked -p "$crate"
done
# forbid CRATE DEPENDENCY REASON
forbid() {
  local tree
  tree=$(cargo tree --locked --edges normal --prefix none -p "$1")
  if grep -q "^$2 v" <<<"$tree"; then
    die "$1 depends on $2: $3"
  fi
}
for crate in berth-api berth-wire berth-plan berth-mcp; do
  forbid "$crate" tokio "it holds decisions and types, no effects"
  forbid "$crate" kube-client "it holds decisions and types, no effects"
done
# allow CRATE [OURS]...: the directions of ARCHITECTURE.md section 2.
allow() {
  local crate=$1 used
  shift
  used=$(cargo tree --locked --edges normal --depth 1 --prefix none -p "$crate" | sed -n '2,$s/^\(berth-[a-z]*\) .*/\1/p' | sort -u)
  for dependency in $used; do
    [[ " $* " == *" $dependency "* ]] || die "$crate depends on $dependency, against the directions in ARCHITECTURE.md"
  done
}
allow berth-api
allow berth-wire
allow berth-mcp
allow berth-net berth-wire
allow berth-plan berth-api berth-wire
allow berth-sidecar berth-mcp berth-net berth-wire
allow berth-gateway berth-api berth-mcp berth-net berth-wire
allow berth-operator berth-api berth-net berth-plan berth-wire
if grep -rnE '(SystemTime|Instant|Timestamp)::now|std::(env|fs|net|thread)' crates/plan/src; then
  die "berth-plan reaches for the clock or the system: what it needs must be a parameter"
fi
forbid berth-sidecar kube-core "it holds users' credentials and must not reach Kubernetes"
echo "imports point one way"

banner "lint: generated files"
hack/generate.sh --check
echo "crds and chart copies are current"

banner "lint: charts"
helm=$($CLUSTER path)/helm
"$helm" lint --strict --quiet charts/berth charts/berth-crds
"$helm" template berth charts/berth --namespace "$SYSTEM_NAMESPACE" >/dev/null
"$helm" template berth charts/berth --namespace "$SYSTEM_NAMESPACE" --values hack/values-test.yaml >/dev/null
"$helm" template berth-crds charts/berth-crds >/dev/null
if "$helm" template berth charts/berth --set gatewy.replicas=2 >/dev/null 2>&1; then
  die "charts/berth/values.schema.json accepts a value that does not exist"
fi
echo "charts render, and refuse unknown values"

banner "lint: dependencies"
hack/deny.sh

if command -v shellcheck >/dev/null; then
  banner "lint: shell"
  shellcheck hack/*.sh hack/demo/*.sh .ci/run
fi
