#!/usr/bin/env bash
# Prints what one needs to know when something on the cluster failed. Never fails itself.
source "$(dirname "$0")/lib.sh"
set +e
use_cluster

section() { printf '\n--- %s\n' "$*"; }

section "pods"
kubectl get pods --all-namespaces -o wide
section "berth"
kubectl get berth --all-namespaces
kubectl get agentsessions,mcpservers --all-namespaces -o yaml | grep -v 'uid:\|resourceVersion:' | head -n 400
section "events"
kubectl get events --all-namespaces --sort-by .metadata.creationTimestamp | tail -n 60
section "pods that are not ready"
kubectl get pods --all-namespaces --no-headers | awk '{ split($3, n, "/"); if (n[1] != n[2]) print $1, $2 }' | head -n 10 |
  while read -r namespace pod; do kubectl describe pod -n "$namespace" "$pod" | tail -n 40; done
for part in operator gateway; do
  section "log of the $part"
  kubectl logs -n "$SYSTEM_NAMESPACE" -l "app.kubernetes.io/component=$part" --tail 150
  kubectl logs -n "$SYSTEM_NAMESPACE" -l "app.kubernetes.io/component=$part" --tail 50 --previous 2>/dev/null
done
section "logs of the sidecars"
kubectl get pods --all-namespaces -l berth.dev/role=pool --no-headers | head -n 10 |
  while read -r namespace pod _; do
    echo "$namespace/$pod"
    kubectl logs -n "$namespace" "$pod" --all-containers --tail 100
  done
exit 0
