#!/usr/bin/env bash
# Pushes images to the test cluster's registry and writes their references, with digest, to target/berth/images.env. On a given
# cluster they must be given as well, since nobody else knows where it pulls from.
# Usage: images.sh [berth|everything|time|conformance|probe|bench]...; all but `bench` by default.
source "$(dirname "$0")/lib.sh"

load() { # load NAME: pushes the image and prints its reference
  case $1 in
    berth) $CLUSTER load deploy/image.json ;;
    probe) $CLUSTER load tests/servers/probe/image.json ;;
    bench) $CLUSTER load tests/bench/image.json ;;
    everything | time | conformance) ROOTFS=$("tests/servers/$1/build.sh") $CLUSTER load "tests/servers/$1/image.json" ;;
    *) die "there is no image $1" ;;
  esac
}

[[ $# -gt 0 ]] || set -- berth everything time conformance probe
file=$SCRATCH/images.env
touch "$file"
for image in "$@"; do
  variable=BERTH_IMAGE_${image^^}
  [[ $image != berth ]] || variable=BERTH_IMAGE
  if given_cluster; then
    value=${!variable:-}
    [[ -n $value ]] || die "with BERTH_KUBECONFIG, $variable must name an image that the cluster can pull: see README.md"
  else
    value=$(load "$image")
  fi
  sed -i "/^$variable=/d" "$file"
  echo "$variable=$value" | tee -a "$file"
done
