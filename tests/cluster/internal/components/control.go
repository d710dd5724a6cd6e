package components

import (
	"context"

	"berth.dev/tests/cluster/internal/kubeapi"
	"berth.dev/tests/cluster/internal/layout"
)

const etcdURL = "http://127.0.0.1:2379"

func etcd() Component {
	return Component{
		Name: "etcd",
		// An API server that lost etcd comes back by itself, but only once its
		// growing backoff lets it: up to a minute later. A new one takes 3 s.
		Restarts: []string{"kube-apiserver"},
		Argv: func(l layout.Layout) []string {
			return []string{
				l.Program("etcd"), "--name=berth", "--data-dir=" + l.Path("etcd"),
				"--listen-client-urls=" + etcdURL, "--advertise-client-urls=" + etcdURL,
				"--listen-peer-urls=http://127.0.0.1:2380", "--initial-advertise-peer-urls=http://127.0.0.1:2380",
				"--initial-cluster=berth=http://127.0.0.1:2380",
				// Test data need not survive a power cut, and fsync is most of etcd's time.
				"--unsafe-no-fsync", "--auto-compaction-retention=10m", "--log-level=warn",
			}
		},
		Healthy:  answers(etcdURL + "/health"),
		Endpoint: "127.0.0.1:2379",
	}
}

func apiserver() Component {
	return Component{
		Name:  "kube-apiserver",
		After: []string{"etcd"},
		Argv: func(l layout.Layout) []string {
			return []string{
				l.Program("kube-apiserver"),
				"--etcd-servers=" + etcdURL,
				"--advertise-address=" + layout.NodeIP, "--bind-address=0.0.0.0", "--secure-port=6443",
				"--service-cluster-ip-range=" + layout.ServiceNet,
				"--authorization-mode=Node,RBAC", "--enable-admission-plugins=NodeRestriction", "--allow-privileged=true",
				"--client-ca-file=" + l.PKI("ca.crt"),
				"--tls-cert-file=" + l.PKI("apiserver.crt"), "--tls-private-key-file=" + l.PKI("apiserver.key"),
				"--kubelet-certificate-authority=" + l.PKI("ca.crt"),
				"--kubelet-client-certificate=" + l.PKI("apiserver-kubelet-client.crt"),
				"--kubelet-client-key=" + l.PKI("apiserver-kubelet-client.key"),
				"--kubelet-preferred-address-types=InternalIP",
				"--service-account-issuer=https://kubernetes.default.svc.cluster.local",
				"--service-account-key-file=" + l.PKI("sa.pub"), "--service-account-signing-key-file=" + l.PKI("sa.key"),
				"--authentication-token-webhook-config-file=" + l.Config("token-webhook.yaml"),
				"--authentication-token-webhook-version=v1",
				"--profiling=false",
			}
		},
		Config: func(layout.Layout) map[string]string {
			// A file of tokens would be simpler, but those know no audience: "berth" would
			// have to be one of the API server's own, and so in the token of each pod.
			return map[string]string{"token-webhook.yaml": `apiVersion: v1
kind: Config
current-context: users
contexts: [{name: users, context: {cluster: users, user: nobody}}]
clusters: [{name: users, cluster: {server: "http://` + layout.UsersAddress + `/review"}}]
users: [{name: nobody, user: {}}]
`}
		},
		Healthy:  apiHealthy,
		Endpoint: layout.APIAddress,
	}
}

func apiHealthy(ctx context.Context, l layout.Layout) error {
	if err := answers("https://"+layout.APIAddress+"/readyz")(ctx, l); err != nil {
		return err
	}
	client, err := kubeapi.New(l)
	if err != nil {
		return err
	}
	// Readiness answers anyone; this also proves that our certificate is accepted.
	return client.Get(ctx, "/api/v1/namespaces/kube-system", nil)
}

func controllerManager() Component {
	return Component{
		Name:  "kube-controller-manager",
		After: []string{"kube-apiserver"},
		Argv: func(l layout.Layout) []string {
			kubeconfig := l.Kubeconfig("kube-controller-manager")
			return []string{
				l.Program("kube-controller-manager"),
				"--kubeconfig=" + kubeconfig, "--authentication-kubeconfig=" + kubeconfig, "--authorization-kubeconfig=" + kubeconfig,
				"--bind-address=127.0.0.1", "--leader-elect=false", "--use-service-account-credentials=true",
				"--service-account-private-key-file=" + l.PKI("sa.key"), "--root-ca-file=" + l.PKI("ca.crt"),
				"--cluster-signing-cert-file=" + l.PKI("ca.crt"), "--cluster-signing-key-file=" + l.PKI("ca.key"),
				// Tests create and delete in bursts; the default of 20 a second would be what they measure.
				"--kube-api-qps=300", "--kube-api-burst=600", "--profiling=false",
			}
		},
		Healthy:  answers("https://127.0.0.1:10257/healthz"),
		Endpoint: "127.0.0.1:10257",
	}
}

func scheduler() Component {
	return Component{
		Name:  "kube-scheduler",
		After: []string{"kube-apiserver"},
		Argv: func(l layout.Layout) []string {
			kubeconfig := l.Kubeconfig("kube-scheduler")
			return []string{
				l.Program("kube-scheduler"), "--config=" + l.Config("kube-scheduler.yaml"),
				"--authentication-kubeconfig=" + kubeconfig, "--authorization-kubeconfig=" + kubeconfig,
				"--bind-address=127.0.0.1",
			}
		},
		Config: func(l layout.Layout) map[string]string {
			return map[string]string{"kube-scheduler.yaml": `apiVersion: kubescheduler.config.k8s.io/v1
kind: KubeSchedulerConfiguration
enableProfiling: false
leaderElection: {leaderElect: false}
clientConnection: {kubeconfig: "` + l.Kubeconfig("kube-scheduler") + `", qps: 300, burst: 600}
`}
		},
		Healthy:  answers("https://127.0.0.1:10259/healthz"),
		Endpoint: "127.0.0.1:10259",
	}
}
