package components

import (
	"path/filepath"

	"berth.dev/tests/cluster/internal/layout"
)

// PodNetwork is the CNI network's name; libcni's records on this machine begin with it.
func PodNetwork(l layout.Layout) string { return l.Name + ".pods" }

func containerdConfig(l layout.Layout) map[string]string {
	return map[string]string{
		"containerd.toml": containerdToml(l),
		"cni/net.d/10-berth.conflist": `{
  "cniVersion": "1.0.0",
  "name": "` + PodNetwork(l) + `",
  "plugins": [
    {
      "type": "ptp",
      "ipam": {
        "type": "host-local",
        "dataDir": "` + l.Path("cni") + `",
        "ranges": [[{"subnet": "` + layout.PodCIDR + `"}]],
        "routes": [{"dst": "0.0.0.0/0"}]
      }
    },
    {"type": "portmap", "capabilities": {"portMappings": true}}
  ]
}
`,
		filepath.Join("certs.d", layout.RegistryHost, "hosts.toml"): `server = "http://` + layout.RegistryAddress + `"

[host."http://` + layout.RegistryAddress + `"]
  capabilities = ["pull", "resolve"]
`,
	}
}

// containerdToml keeps everything below the state folder. The oom score must be
// restricted where CAP_SYS_RESOURCE is missing, as in most sandboxes: runc fails else.
func containerdToml(l layout.Layout) string {
	return `version = 3
root = "` + l.Path("containerd", "root") + `"
state = "` + l.Path("containerd", "run") + `"

[grpc]
  address = "` + l.ContainerdSocket() + `"

[plugins.'io.containerd.internal.v1.opt']
  path = "` + l.Path("containerd", "opt") + `"

[plugins.'io.containerd.nri.v1.nri']
  disable = true

[plugins.'io.containerd.cri.v1.images']
  max_concurrent_downloads = 4
  [plugins.'io.containerd.cri.v1.images'.pinned_images]
    sandbox = "` + layout.RegistryHost + "/" + layout.PauseImage + `"
  [plugins.'io.containerd.cri.v1.images'.registry]
    config_path = "` + l.Config("certs.d") + `"

[plugins.'io.containerd.cri.v1.runtime']
  restrict_oom_score_adj = true
  netns_mounts_under_state_dir = true
  [plugins.'io.containerd.cri.v1.runtime'.cni]
    bin_dirs = ["` + filepath.Join(l.Tools, "lib") + `"]
    conf_dir = "` + l.Config("cni/net.d") + `"
    use_internal_loopback = true
  [plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.runc]
    runtime_type = "io.containerd.runc.v2"
    [plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.runc.options]
      BinaryName = "` + l.Program("runc") + `"
      Root = "` + l.Path("containerd", "runc") + `"
      SystemdCgroup = false
`
}
