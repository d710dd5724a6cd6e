# What the demo proves once its session is deleted. Sourced after lib.sh. Each function prints what it saw and fails if that is
# not enough.

# server_log: what server-everything logged since the demo began.
server_log() { kubectl logs -n demo deployment/everything --since-time "$DEMO_BEGAN"; }

# upstream_untouched: whether no MCP request has reached the server since the demo began.
upstream_untouched() {
  local log
  log=$(server_log) || return 1
  ! grep -q '^Received MCP' <<<"$log"
}

# upstream_sessions: ids of the sessions that the server opened since the demo began.
upstream_sessions() { server_log | sed -n 's/^Session initialized with ID: //p'; }

# upstream_ended: whether the server was asked to end each of these sessions, and closed it.
upstream_ended() {
  local log ids id
  log=$(server_log) || return 1
  ids=$(upstream_sessions)
  [[ -n $ids ]] || return 1
  for id in $ids; do
    grep -q "^Received session termination request for session $id" <<<"$log" || return 1
    grep -q "^Transport closed for session $id" <<<"$log" || return 1
  done
}

# end_event UID: the Events that tell of the session's end, as NAME|REASON|MESSAGE.
end_event() {
  kubectl get events -n demo --field-selector "involvedObject.uid=$1" \
    -o jsonpath='{range .items[*]}{.metadata.name}|{.reason}|{.message}{"\n"}{end}' | grep '^session-ended-'
}

# sidecar_gauges: the gauges of all sidecars of the demo, summed by name.
sidecar_gauges() {
  local pod
  for pod in $(kubectl get pods -n demo -l berth.dev/role=pool -o jsonpath='{.items[*].metadata.name}'); do
    kubectl get --raw "/api/v1/namespaces/demo/pods/$pod:8081/proxy/metrics"
  done | awk '/^berth_sidecar_(sessions|connections|scopes|requests_in_flight)[ {]/ { sub(/[{].*[}]/, "", $1); sum[$1] += $2 }
    END { for (name in sum) print name, sum[name] }' | sort
}

# gauges_at_zero: whether the sidecars have those four gauges, and each is 0.
gauges_at_zero() { [[ $(sidecar_gauges | awk '$2 == 0' | wc -l) -eq 4 ]]; }

pool_is_gone() { [[ -z $(kubectl get pods -n demo -l berth.dev/role=pool -o name) ]]; }
