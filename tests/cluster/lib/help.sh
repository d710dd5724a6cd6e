# The help text. Sourced by ../cluster; kept out of the control program so that it
# needs no build.

print_help() {
  cat <<'TEXT'
A real Kubernetes (one node) on this machine, for tests and the quick start.

Usage: cluster COMMAND [ARGUMENT...]

  up                 Make sure that a healthy cluster runs: build what is missing,
                     keep a healthy cluster, repair a damaged one, else make one.
  down               Remove the cluster: processes, mounts, namespace, cgroups, state.
  status             Show all components and addresses; exit 0 only if all are healthy.
  load IMAGE         Push an image to the cluster's registry and print the reference,
                     with digest, for use in pods. IMAGE is one of
                       FILE.json   an image description (see README.md)
                       FILE.tar    a docker or OCI archive
                       REFERENCE   an image in a registry that can be reached
  kubeconfig         Print the path of the administrator's kubeconfig.
  logs COMPONENT [-f]
                     Print a component's log; -f follows it.
  exec -- COMMAND... Run a command with KUBECONFIG set and kubectl, helm and crane on
                     PATH.
  path               Print the folder of kubectl, helm and crane.
  help               Print this.

Environment:
  BERTH_API_PORT         API server on 127.0.0.1           (default 16443)
  BERTH_REGISTRY_PORT    registry on 127.0.0.1             (default 15000)
  BERTH_GATEWAY_PORT     NodePort 30080 on 127.0.0.1       (default 18080)
  BERTH_CACHE            builds and compressed layers      (default ~/.cache/berth)
  BERTH_CLUSTER_STATE    the cluster's state folder        (default BERTH_CACHE/cluster-state)

The first `up` on a machine builds Kubernetes: 8 to 11 minutes on two cores. After
that, `up` from nothing takes about 10 seconds.
TEXT
}
