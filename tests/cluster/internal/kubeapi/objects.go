package kubeapi

import (
	"context"
	"fmt"

	"berth.dev/tests/cluster/internal/layout"
	"berth.dev/tests/cluster/internal/pki"
)

type object map[string]any

// ApplyBase applies the objects that every cluster has: the administrator's
// binding, and DNS, which runs beside the pods rather than as one.
func (c *Client) ApplyBase(ctx context.Context) error {
	const rbac, kubeSystem = "/apis/rbac.authorization.k8s.io/v1", "/api/v1/namespaces/kube-system"
	objects := []struct {
		path   string
		object object
	}{
		{rbac + "/clusterrolebindings/" + pki.AdminUser, binding(pki.AdminUser, "cluster-admin", pki.AdminUser)},
		{rbac + "/clusterroles/system:coredns", dnsRole()},
		{rbac + "/clusterrolebindings/system:coredns", binding("system:coredns", "system:coredns", "system:coredns")},
		{kubeSystem + "/services/kube-dns", dnsService()},
		{"/apis/discovery.k8s.io/v1/namespaces/kube-system/endpointslices/kube-dns", dnsEndpoints()},
	}
	for _, item := range objects {
		if err := c.Apply(ctx, item.path, item.object); err != nil {
			return err
		}
	}
	return nil
}

func binding(name, role, user string) object {
	const group = "rbac.authorization.k8s.io"
	return object{
		"apiVersion": group + "/v1", "kind": "ClusterRoleBinding", "metadata": object{"name": name},
		"roleRef":  object{"apiGroup": group, "kind": "ClusterRole", "name": role},
		"subjects": []object{{"apiGroup": group, "kind": "User", "name": user}},
	}
}

func dnsRole() object {
	verbs := []string{"list", "watch"}
	return object{
		"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole", "metadata": object{"name": "system:coredns"},
		"rules": []object{
			{"apiGroups": []string{""}, "resources": []string{"endpoints", "services", "pods", "namespaces"}, "verbs": verbs},
			{"apiGroups": []string{"discovery.k8s.io"}, "resources": []string{"endpointslices"}, "verbs": verbs},
		},
	}
}

// dnsService has no selector: its only endpoint is CoreDNS on the node.
func dnsService() object {
	return object{
		"apiVersion": "v1", "kind": "Service",
		"metadata": object{"name": "kube-dns", "namespace": "kube-system", "labels": object{"k8s-app": "kube-dns"}},
		"spec": object{"clusterIP": layout.DNSIP, "ports": []object{
			{"name": "dns", "port": 53, "protocol": "UDP"},
			{"name": "dns-tcp", "port": 53, "protocol": "TCP"},
		}},
	}
}

func dnsEndpoints() object {
	return object{
		"apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "addressType": "IPv4",
		"metadata": object{"name": "kube-dns", "namespace": "kube-system",
			"labels": object{"kubernetes.io/service-name": "kube-dns"}},
		"endpoints": []object{{"addresses": []string{layout.NodeIP}}},
		"ports": []object{
			{"name": "dns", "port": 53, "protocol": "UDP"},
			{"name": "dns-tcp", "port": 53, "protocol": "TCP"},
		},
	}
}

// NodeReady tells why the node is not ready, or nil.
func (c *Client) NodeReady(ctx context.Context) error {
	var node struct {
		Status struct {
			Conditions []struct{ Type, Status, Message string }
		}
	}
	if err := c.Get(ctx, "/api/v1/nodes/"+layout.NodeName, &node); err != nil {
		return err
	}
	for _, condition := range node.Status.Conditions {
		if condition.Type == "Ready" && condition.Status == "True" {
			return nil
		}
		if condition.Type == "Ready" {
			return fmt.Errorf("node %s is not ready: %s", layout.NodeName, condition.Message)
		}
	}
	return fmt.Errorf("node %s has no Ready condition yet", layout.NodeName)
}

// DefaultServiceAccount is needed by the first pod.
func (c *Client) DefaultServiceAccount(ctx context.Context) error {
	return c.Get(ctx, "/api/v1/namespaces/default/serviceaccounts/default", nil)
}
