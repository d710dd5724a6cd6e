#!/usr/bin/env bash
# The main job of Berth, on a real cluster: a session is made, an official MCP client calls a tool through it, and its deletion
# provably ends all that it held. Runs on the test cluster, or on the one that BERTH_KUBECONFIG names (see README.md).
source "$(dirname "$0")/lib.sh"
source hack/demo/lib.sh
source hack/demo/proof.sh

SESSION=first
DEMO_BEGAN=

prepare() {
  step "A machine that can build"
  hack/setup.sh | indent

  step "A real Kubernetes"
  hack/cluster.sh up 2>&1 | indent
  use_cluster
  show kubectl get nodes

  step "One image with Berth's static binaries, in a registry"
  given_cluster || hack/build.sh 2>&1 | indent
  hack/images.sh berth everything 2>&1 | indent
  source "$SCRATCH/images.env"

  step "Berth, by its charts"
  hack/install.sh 2>&1 | indent
  show kubectl get pods -n "$SYSTEM_NAMESPACE"
}

deploy_server() {
  step "An MCP server: the reference server-everything, an ordinary Deployment and Service"
  clear_leftovers
  kubectl apply --server-side -f - <<'YAML' | indent
apiVersion: v1
kind: Namespace
metadata:
  name: demo
  labels: {pod-security.kubernetes.io/enforce: restricted}
YAML
  sed "s|IMAGE_EVERYTHING|$BERTH_IMAGE_EVERYTHING|" tests/servers/everything/everything.yaml |
    kubectl apply -n demo -f - | indent
  kubectl rollout status -n demo deployment/everything --timeout 120s | indent
  DEMO_BEGAN=$(date --utc +%Y-%m-%dT%H:%M:%SZ)
}

# What an earlier run left when it was interrupted.
clear_leftovers() {
  kubectl delete agentsessions,mcpservers --all -n demo --ignore-not-found --timeout 120s 2>&1 | indent
  until_true 120 "pool pods of an earlier run to go" pool_is_gone
}

open_session() {
  step "An McpServer: where that server is, and how many slots to keep ready for it"
  show kubectl apply -f deploy/samples/mcpserver-everything.yaml
  show kubectl wait -n demo mcpserver/everything --for condition=Ready --timeout 120s

  step "An AgentSession: alice's claim on a connection to it"
  show kubectl apply -f deploy/samples/agentsession.yaml
  show kubectl wait -n demo "agentsession/$SESSION" --for condition=Ready --timeout 120s
  show kubectl get berth -n demo

  upstream_untouched || die "the server got a request before any call was made"
  say "No request has reached the server yet: the first call connects."
}

call_tool() {
  step "alice calls a tool, with the official Python client and a token of her own"
  local url python token
  url=$(gateway_url)/demo/$SESSION/everything/mcp
  python=$(tests/servers/clients/python/venv.sh)
  token=$(kubectl create token alice -n demo --audience berth --duration 10m)
  say "\$ TOKEN=\$(kubectl create token alice -n demo --audience berth)"
  say "\$ call.py $url \$TOKEN get-sum '{\"a\": 19, \"b\": 23}'"
  "$python" tests/servers/clients/python/call.py "$url" "$token" get-sum '{"a": 19, "b": 23}' 2>&1 |
    tee "$SCRATCH/demo-call.log" | cut -c 1-300 | indent
  grep -q '19 and 23 is 42' "$SCRATCH/demo-call.log" || die "the tool did not answer 42"

  step "What is there now"
  show kubectl get berth -n demo
  say "Upstream sessions that the server opened: $(upstream_sessions | wc -l)"
  [[ $(upstream_sessions | wc -l) -eq 1 ]] || die "one session must have exactly one upstream session"
  say "Gauges of the sidecar:"
  sidecar_gauges | indent | indent
}

end_session() {
  step "The session is deleted"
  local uid
  uid=$(kubectl get agentsession -n demo "$SESSION" -o jsonpath='{.metadata.uid}')
  say "Finalizer that holds it until its end is confirmed: $(kubectl get agentsession -n demo "$SESSION" -o jsonpath='{.metadata.finalizers[*]}')"
  show kubectl delete agentsession -n demo "$SESSION" --timeout 120s

  step "Proof that all it held is gone"
  until_true 20 "the server's log of the end of its sessions" upstream_ended
  say "The server saw the end:"
  server_log | grep -E '^(Session initialized|Received session termination|Transport closed)' | indent | indent
  until_true 20 "the Event of the session's end" end_event "$uid" >/dev/null
  say "The Event says: $(end_event "$uid" | cut -d '|' -f 2- | sed 's/|/: /')"
  until_true 20 "the sidecar's gauges at 0" gauges_at_zero
  say "Gauges of the sidecar:"
  sidecar_gauges | indent | indent
  [[ -z $(kubectl get agentsessions -n demo -o name) ]] || die "a session is left"
  say "Sessions left: 0. The pool keeps its free slots for the next one:"
  show kubectl get berth -n demo

  step "The McpServer is deleted, and its pool with it"
  show kubectl delete -f deploy/samples/mcpserver-everything.yaml --timeout 60s
  until_true 60 "the pool's pods to go" pool_is_gone
  show kubectl get pods -n demo
}

finish() {
  local code=$?
  [[ -z ${FORWARD:-} ]] || kill "$FORWARD" 2>/dev/null || true
  if [[ $code -ne 0 ]]; then
    banner "make demo: FAILED in step $STEP. What the cluster says:"
    hack/diagnose.sh
    banner "make demo: FAILED in step $STEP, after $(elapsed)"
  fi
  exit "$code"
}
trap finish EXIT

# On a given cluster the gateway is reached by a port forward, unless BERTH_GATEWAY says how.
reach_gateway() {
  given_cluster && [[ -z ${BERTH_GATEWAY:-} ]] || return 0
  # On 127.0.0.1 alone: where that port is taken, the forward must fail, and not go on with [::1] only.
  kubectl port-forward --address 127.0.0.1 -n "$SYSTEM_NAMESPACE" service/berth-gateway \
    "${BERTH_GATEWAY_PORT:-18080}:8080" >"$SCRATCH/forward.log" 2>&1 &
  FORWARD=$!
  until_true 20 "the port forward to the gateway" grep -q Forwarding "$SCRATCH/forward.log"
}

prepare
deploy_server
reach_gateway
open_session
call_tool
end_session
banner "make demo: OK in $(elapsed)"
