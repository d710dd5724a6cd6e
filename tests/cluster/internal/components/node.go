package components

import (
	"context"

	"berth.dev/tests/cluster/internal/kubeapi"
	"berth.dev/tests/cluster/internal/layout"
)

func kubelet() Component {
	return Component{
		Name:  "kubelet",
		After: []string{"kube-apiserver", "containerd", "registry"},
		Argv: func(l layout.Layout) []string {
			return []string{
				l.Program("kubelet"), "--config=" + l.Config("kubelet.yaml"), "--kubeconfig=" + l.Kubeconfig("kubelet"),
				"--hostname-override=" + layout.NodeName, "--node-ip=" + layout.NodeIP,
				"--root-dir=" + l.Path("kubelet"), "--cert-dir=" + l.Path("kubelet", "pki"),
			}
		},
		Config: func(l layout.Layout) map[string]string {
			return map[string]string{
				"kubelet.yaml": kubeletConfig(l),
				// For pods with `dnsPolicy: Default`: this machine's own resolver is out of their reach.
				"resolv.conf": "nameserver " + layout.DNSIP + "\n",
			}
		},
		Healthy:  answers("http://127.0.0.1:10248/healthz"),
		Endpoint: layout.NodeIP + ":10250",
	}
}

func kubeletConfig(l layout.Layout) string {
	return `apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
authentication: {anonymous: {enabled: false}, webhook: {enabled: true}, x509: {clientCAFile: "` + l.PKI("ca.crt") + `"}}
authorization: {mode: Webhook}
tlsCertFile: "` + l.PKI("kubelet-server.crt") + `"
tlsPrivateKeyFile: "` + l.PKI("kubelet-server.key") + `"
containerRuntimeEndpoint: "unix://` + l.ContainerdSocket() + `"
clusterDNS: ["` + layout.DNSIP + `"]
clusterDomain: cluster.local
resolvConf: "` + l.Config("resolv.conf") + `"
podLogsDir: "` + l.Path("log", "pods") + `"
volumePluginDir: "` + l.Path("kubelet", "plugins-exec") + `"
# A root of its own for each cluster: a kubelet removes the pod cgroups it does not know.
cgroupRoot: "/` + l.Name + `"
cgroupDriver: cgroupfs
failCgroupV1: false
failSwapOn: false
maxPods: 250
# One unreachable registry must not hold up the pulls of all other pods.
serializeImagePulls: false
maxParallelImagePulls: 8
registryPullQPS: 0
nodeStatusUpdateFrequency: 2s
nodeStatusReportFrequency: 30s
kubeAPIQPS: 300
kubeAPIBurst: 600
eventRecordQPS: 0
# Tests kill the same container again and again; waiting up to 5 minutes for it shows nothing.
crashLoopBackOff: {maxContainerRestartPeriod: 2s}
# A developer's machine is often nearly full: never evict, never collect images.
evictionHard: {memory.available: 32Mi, nodefs.available: "0%", nodefs.inodesFree: "0%", imagefs.available: "0%", imagefs.inodesFree: "0%"}
imageGCHighThresholdPercent: 100
imageMaximumGCAge: 0s
makeIPTablesUtilChains: false
oomScoreAdj: 0
`
}

func proxy() Component {
	return Component{
		Name:  "kube-proxy",
		After: []string{"kube-apiserver"},
		Argv: func(l layout.Layout) []string {
			return []string{l.Program("kube-proxy"), "--config=" + l.Config("kube-proxy.yaml")}
		},
		Config: func(l layout.Layout) map[string]string {
			return map[string]string{"kube-proxy.yaml": `apiVersion: kubeproxy.config.k8s.io/v1alpha1
kind: KubeProxyConfiguration
mode: nftables
clientConnection: {kubeconfig: "` + l.Kubeconfig("kube-proxy") + `", qps: 100, burst: 200}
hostnameOverride: ` + layout.NodeName + `
clusterCIDR: ` + layout.PodCIDR + `
healthzBindAddress: 127.0.0.1:10256
metricsBindAddress: 127.0.0.1:10249
nftables: {minSyncPeriod: 100ms}
oomScoreAdj: 0
# The limits on connection tracking belong to the whole machine: leave them alone.
conntrack: {maxPerCore: 0, min: 0, tcpEstablishedTimeout: 0s, tcpCloseWaitTimeout: 0s}
`}
		},
		Healthy:  answers("http://127.0.0.1:10256/healthz"),
		Endpoint: "127.0.0.1:10256",
	}
}

func coredns() Component {
	return Component{
		Name:   "coredns",
		After:  []string{"kube-apiserver"},
		Before: applyBase,
		Argv: func(l layout.Layout) []string {
			return []string{l.Program("coredns"), "-conf", l.Config("Corefile")}
		},
		Config: func(l layout.Layout) map[string]string {
			// No cache: the plugin answers from memory, and a test that has just made
			// a Service should find it. All other names do not exist, as there is no
			// outside; without the template they would be refused, which resolvers
			// take for a failure of the server.
			return map[string]string{"Corefile": `.:53 {
  errors
  health 127.0.0.1:8081
  ready 127.0.0.1:8181
  kubernetes cluster.local in-addr.arpa ip6.arpa {
    kubeconfig ` + l.Kubeconfig("coredns") + `
    pods insecure
    ttl 1
  }
  template ANY ANY {
    rcode NXDOMAIN
  }
}
`}
		},
		Healthy:  answers("http://127.0.0.1:8181/ready"),
		Endpoint: layout.NodeIP + ":53",
	}
}

// applyBase gives CoreDNS the rights it needs to become healthy, and the
// administrator theirs.
func applyBase(ctx context.Context, l layout.Layout) error {
	client, err := kubeapi.New(l)
	if err != nil {
		return err
	}
	return client.ApplyBase(ctx)
}

func containerd() Component {
	return Component{
		Name: "containerd",
		Argv: func(l layout.Layout) []string {
			return []string{l.Program("containerd"), "--config", l.Config("containerd.toml")}
		},
		Config:   containerdConfig,
		Healthy:  func(_ context.Context, l layout.Layout) error { return accepts(l.ContainerdSocket()) },
		Endpoint: "unix socket",
	}
}
