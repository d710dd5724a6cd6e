#!/usr/bin/env bash
# Installs Berth by its charts, or upgrades it, from the image that images.sh loaded. BERTH_HELM_ARGS adds arguments to helm.
source "$(dirname "$0")/lib.sh"
use_cluster
source "$SCRATCH/images.env"

# name[:tag][@digest], taken apart for the chart. A port is part of the name.
digest=${BERTH_IMAGE#*@}
[[ $digest != "$BERTH_IMAGE" ]] || digest=
name=${BERTH_IMAGE%%@*}
tag=${name##*:}
[[ $tag != */* && $tag != "$name" ]] || tag=

values=(--set "image.repository=${name%":$tag"}" --set "image.tag=$tag" --set "image.digest=$digest")
if given_cluster; then
  # A release that is there already keeps the values that its owner gave it.
  values+=(--reset-then-reuse-values)
else
  values+=(--values hack/values-test.yaml --set "gateway.url=$(gateway_url)")
fi
read -r -a extra <<<"${BERTH_HELM_ARGS:-}"

kubectl apply --server-side -f - <<YAML
apiVersion: v1
kind: Namespace
metadata:
  name: $SYSTEM_NAMESPACE
  labels: {pod-security.kubernetes.io/enforce: restricted}
YAML
helm upgrade --install berth-crds charts/berth-crds --namespace "$SYSTEM_NAMESPACE" --wait >/dev/null
helm upgrade --install berth charts/berth --namespace "$SYSTEM_NAMESPACE" --wait --timeout 3m "${values[@]}" "${extra[@]}" >/dev/null
helm list --namespace "$SYSTEM_NAMESPACE"
