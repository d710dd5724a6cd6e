#!/usr/bin/env bash
# cluster.sh up|down: the test cluster, unless a cluster is given.
source "$(dirname "$0")/lib.sh"

if given_cluster; then
  echo "using the cluster of $BERTH_KUBECONFIG"
else
  $CLUSTER "$1"
fi
