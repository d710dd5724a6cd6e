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
# Tests that run only when they are named are not among all targets.
cargo clippy --workspace --test '*' --locked -- -D warnings

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
allow berth-cluster berth-net
allow berth-plan berth-api berth-wire
allow berth-sidecar berth-mcp berth-net berth-wire
allow berth-gateway berth-api berth-cluster berth-mcp berth-net berth-wire
allow berth-operator berth-api berth-cluster berth-net berth-plan berth-wire
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
rendered() { "$helm" template berth charts/berth --namespace "$SYSTEM_NAMESPACE" "$@"; }
rendered --values hack/values-test.yaml >/dev/null
"$helm" template berth-crds charts/berth-crds >/dev/null
# expect NUMBER KIND ARGUMENTS...: how many objects of a kind are rendered.
expect() {
  local number=$1 kind=$2 found
  shift 2
  found=$(rendered "$@" | grep -cx "kind: $kind" || true)
  [[ $found == "$number" ]] || die "charts/berth with '$*' renders $found objects of the kind $kind, not $number"
}
expect 2 Deployment
expect 2 PodDisruptionBudget
expect 1 PodDisruptionBudget --set operator.replicas=1
expect 0 PodDisruptionBudget --set operator.podDisruptionBudget.enabled=false --set gateway.replicas=1
expect 2 NetworkPolicy --set 'networkPolicy.gatewayFrom[0].podSelector.matchLabels.a=b'
expect 0 NetworkPolicy --set networkPolicy.enabled=false
expect 1 Job
expect 0 Job --set uninstall.endSessions=false
expect 1 Pod
# Every rule about Leases names the one of Berth; only the creation, which has no name yet, cannot.
unnamed=$(rendered | grep -A1 'resources: \[leases\]' | grep -c 'verbs: \[create\]' || true)
named=$(rendered | grep -A1 'resources: \[leases\]' | grep -c 'resourceNames: \[berth-operator\]' || true)
[[ $unnamed == 2 && $named == 4 ]] || die "charts/berth has rules for Leases that are not Berth's"
# refuse ARGUMENT: the schema takes no value that does not exist or cannot be meant.
refuse() {
  if rendered --set "$1" >/dev/null 2>&1; then
    die "charts/berth/values.schema.json accepts $1"
  fi
}
for wrong in gatewy.replicas=2 operator.replica=2 operator.replicas=-1 operator.podDisruptionBudget.enable=true \
  networkPolicy.gatewayFrom.a=b 'networkPolicy.metricsFrom[0].pods=x' uninstall.timeoutSeconds=0 uninstall.force=true gateway.maxCalls=10000 \
  proxy.https=https://p proxy.http=http://u:p@h proxy.no=a; do
  refuse "$wrong"
done
# Pods of the chart pass Pod Security `restricted`: each of the four pod specs says what that asks for.
for asked in 'runAsNonRoot: true' 'type: RuntimeDefault' 'allowPrivilegeEscalation: false' 'drop: \[ALL\]'; do
  [[ $(rendered | grep -c "$asked") == 4 ]] || die "a pod of charts/berth does not say '$asked'"
done
# The operator names the version of the chart that it needs, which is its own.
version=$(sed -n '/^\[workspace.package\]/,/^\[package\]/s/^version = "\(.*\)"/\1/p' Cargo.toml)
for chart in charts/*/Chart.yaml; do
  for field in version appVersion; do
    grep -qx "$field: $version" "$chart" || die "$chart: $field is not $version, the version of Cargo.toml"
  done
done
echo "charts render as they should, refuse wrong values, and have the version of the binaries"

banner "lint: dependencies"
hack/deny.sh

if command -v shellcheck >/dev/null; then
  banner "lint: shell"
  shellcheck hack/*.sh hack/demo/*.sh .ci/run
fi
