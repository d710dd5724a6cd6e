# Builds the cluster's programs, each set once for each content of its sources.
# Sourced by ../cluster.

KUBERNETES_VERSION=$(awk '$1 == "k8s.io/kubernetes" {print $2; exit}' "$here/go.mod")
HELM_VERSION=$(awk '$1 == "helm.sh/helm/v4" {print $2; exit}' "$here/go.mod")
CONTAINERD_VERSION=$(awk '$1 == "github.com/containerd/containerd/v2" {print $2; exit}' "$here/go.mod")
CRANE_VERSION=$(awk '$1 == "github.com/google/go-containerregistry" {print $2; exit}' "$here/go.mod")

BUILD_FLAGS=(-trimpath -buildvcs=false)
STRIP="-s -w"

kubernetes_ldflags() {
  local package=k8s.io/component-base/version minor=${KUBERNETES_VERSION#v1.}
  # Without these, clients and charts would see v0.0.0.
  echo "$STRIP -X $package.gitVersion=$KUBERNETES_VERSION -X $package.gitMajor=1 -X $package.gitMinor=${minor%%.*} -X $package.gitTreeState=clean"
}

# The hash of the named files and folders, the build flags and the Go version.
content_key() {
  (
    cd "$here"
    go version
    cat lib/build.sh
    find "$@" -type f | LC_ALL=C sort | xargs sha256sum
  ) | sha256sum | cut -c 1-16
}

# Sets BERTH_CLUSTER_CONTROL; builds the control program and pause if need be.
ensure_control() {
  BERTH_CLUSTER_CONTROL=$BERTH_CLUSTER_CACHE/control-$(content_key go.mod go.sum cmd/cluster cmd/pause internal)
  export BERTH_CLUSTER_CONTROL
  [[ -d $BERTH_CLUSTER_CONTROL ]] || build_set "$BERTH_CLUSTER_CONTROL" build_control
}

# Sets BERTH_CLUSTER_TOOLS and BERTH_CLUSTER_GENERATION.
locate_tools() {
  BERTH_CLUSTER_TOOLS=$BERTH_CLUSTER_CACHE/tools-$(content_key go.mod go.sum cmd/kube)
  BERTH_CLUSTER_GENERATION=${BERTH_CLUSTER_TOOLS##*-}-${BERTH_CLUSTER_CONTROL##*-}
  export BERTH_CLUSTER_TOOLS BERTH_CLUSTER_GENERATION
}

ensure_tools() {
  locate_tools
  [[ -d $BERTH_CLUSTER_TOOLS ]] && return
  ensure_packages "${BUILD_PACKAGES[@]}"
  build_set "$BERTH_CLUSTER_TOOLS" build_tools
}

# Runs a build function into a temporary folder that becomes the target at once, so
# that a killed build leaves nothing that looks complete. One build at a time.
build_set() {
  local target=$1 function=$2
  (
    flock 9
    [[ -d $target ]] && exit 0 # another caller has built it meanwhile
    rm -rf "$BERTH_CLUSTER_CACHE"/building.*
    local work
    work=$(mktemp -d "$BERTH_CLUSTER_CACHE/building.XXXXXX")
    mkdir -p "$work/bin" "$work/lib"
    chmod 755 "$work"
    "$function" "$work"
    mv -T "$work" "$target"
  ) 9>"$BERTH_CLUSTER_CACHE/build.lock"
}

build_control() {
  STEP=0 STEPS=2
  go_build 0 "$1/berth-cluster" "$STRIP" "" ./cmd/cluster
  go_build 0 "$1/pause" "$STRIP" "" ./cmd/pause
}

build_tools() {
  local work=$1 tool
  local containerd=github.com/containerd/containerd/v2 plugins=github.com/containernetworking/plugins/plugins
  local containerd_flags="$STRIP -X $containerd/version.Version=$CONTAINERD_VERSION"
  STEP=0 STEPS=10
  echo "building Kubernetes $KUBERNETES_VERSION and its tools: 6 to 8 minutes on two cores the first time" >&2
  go_build 0 "$work/lib/kube" "$(kubernetes_ldflags)" "" ./cmd/kube
  for tool in containerd containerd-shim-runc-v2 ctr; do
    go_build 0 "$work/lib/$tool" "$containerd_flags" "no_btrfs no_devmapper no_zfs" $containerd/cmd/$tool
  done
  for tool in ipam/host-local main/ptp meta/portmap; do
    go_build 0 "$work/lib/${tool##*/}" "$STRIP" "" $plugins/$tool
  done
  go_build 1 "$work/lib/runc" "$STRIP" seccomp github.com/opencontainers/runc
  go_build 0 "$work/bin/helm" "$STRIP -X helm.sh/helm/v4/internal/version.version=$HELM_VERSION" "" helm.sh/helm/v4/cmd/helm
  go_build 0 "$work/bin/crane" "$STRIP -X github.com/google/go-containerregistry/cmd/crane/cmd.Version=$CRANE_VERSION" "" github.com/google/go-containerregistry/cmd/crane
  for tool in etcd kube-apiserver kube-controller-manager kube-scheduler kube-proxy kubelet coredns; do
    ln -s kube "$work/lib/$tool"
  done
  ln -s ../lib/kube "$work/bin/kubectl"
}

# go_build CGO OUTPUT LDFLAGS TAGS PACKAGE
go_build() {
  local cgo=$1 output=$2 ldflags=$3 tags=$4 package=$5 name=${2##*/} start=$SECONDS log pid
  STEP=$((STEP + 1))
  echo "[$STEP/$STEPS] building $name" >&2
  log=$(mktemp)
  (cd "$here" && CGO_ENABLED=$cgo GOFLAGS=-mod=readonly go build "${BUILD_FLAGS[@]}" -tags "$tags" -ldflags "$ldflags" -o "$output" "$package") >"$log" 2>&1 9>&- &
  pid=$!
  # A sign of life in logs and terminals while the long ones run.
  while kill -0 "$pid" 2>/dev/null; do
    sleep 0.2
    if (((SECONDS - start) % 30 == 0 && SECONDS > start)); then
      echo "[$STEP/$STEPS] building $name: $((SECONDS - start)) s" >&2
      sleep 1
    fi
  done
  if ! wait "$pid"; then
    tail -n 30 "$log" >&2
    die "building $name failed: the end of the compiler's output is above"
  fi
  rm -f "$log"
}
