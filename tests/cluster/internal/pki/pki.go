package pki

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/base64"
	"fmt"
	"net"
	"os"
	"regexp"

	"berth.dev/tests/cluster/internal/layout"
)

// AdminUser is the user of the kubeconfig for people and tests. It is bound to
// cluster-admin rather than a member of system:masters, since that group is exempt
// from API priority and fairness and would measure a different cluster.
const AdminUser = "berth-admin"

// Bootstrap is the base name of the control program's own client certificate.
const Bootstrap = "bootstrap"

// users are the components that get a kubeconfig, by the names that Kubernetes'
// default role bindings expect.
var users = map[string]subject{
	"kubelet":                 {user: "system:node:" + layout.NodeName, groups: []string{"system:nodes"}},
	"kube-controller-manager": {user: "system:kube-controller-manager"},
	"kube-scheduler":          {user: "system:kube-scheduler"},
	"kube-proxy":              {user: "system:kube-proxy"},
	"coredns":                 {user: "system:coredns"},
}

// Create writes all keys, certificates and kubeconfigs below the state folder.
func Create(l layout.Layout, ports layout.Ports) error {
	ca, err := newAuthority()
	if err != nil {
		return fmt.Errorf("make the certificate authority: %w", err)
	}
	caKey, err := encodeKey(ca.key)
	if err != nil {
		return err
	}
	if err := writePair(l.PKI("ca"), ca.pem, caKey); err != nil {
		return err
	}
	if err := writeServiceAccountKey(l); err != nil {
		return err
	}
	if err := writeCertificates(l, ca); err != nil {
		return err
	}
	return writeKubeconfigs(l, ca, ports)
}

func writeCertificates(l layout.Layout, ca *authority) error {
	certificates := map[string]subject{
		"apiserver": {
			user: "kube-apiserver",
			names: []string{"kubernetes", "kubernetes.default", "kubernetes.default.svc",
				"kubernetes.default.svc.cluster.local", "localhost", layout.NodeName},
			addresses: []net.IP{net.ParseIP("127.0.0.1"), net.ParseIP(layout.NodeIP), net.ParseIP(layout.ServiceIP)},
		},
		"kubelet-server": {
			user: "system:node:" + layout.NodeName, names: []string{layout.NodeName},
			addresses: []net.IP{net.ParseIP("127.0.0.1"), net.ParseIP(layout.NodeIP)},
		},
		"apiserver-kubelet-client": {user: "kube-apiserver-kubelet-client", groups: []string{"system:masters"}},
		Bootstrap:                  {user: "berth-bootstrap", groups: []string{"system:masters"}},
	}
	for name, subject := range certificates {
		certificate, key, err := ca.issue(subject)
		if err != nil {
			return fmt.Errorf("issue the certificate %s: %w", name, err)
		}
		if err := writePair(l.PKI(name), certificate, key); err != nil {
			return err
		}
	}
	return nil
}

func writeServiceAccountKey(l layout.Layout) error {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return err
	}
	private, err := encodeKey(key)
	if err != nil {
		return err
	}
	public, err := x509.MarshalPKIXPublicKey(key.Public())
	if err != nil {
		return err
	}
	if err := os.WriteFile(l.PKI("sa.pub"), encode("PUBLIC KEY", public), 0o644); err != nil {
		return err
	}
	return os.WriteFile(l.PKI("sa.key"), private, 0o600)
}

func writeKubeconfigs(l layout.Layout, ca *authority, ports layout.Ports) error {
	inside := "https://" + layout.APIAddress
	for name, subject := range users {
		content, err := kubeconfig(ca, subject, inside)
		if err != nil {
			return err
		}
		if err := os.WriteFile(l.Kubeconfig(name), content, 0o600); err != nil {
			return err
		}
	}
	content, err := kubeconfig(ca, subject{user: AdminUser}, OutsideURL(ports))
	if err != nil {
		return err
	}
	return os.WriteFile(l.AdminKubeconfig(), content, 0o600)
}

// OutsideURL is the API server's address outside of the namespace.
func OutsideURL(ports layout.Ports) string { return fmt.Sprintf("https://127.0.0.1:%d", ports.API) }

func kubeconfig(ca *authority, s subject, server string) ([]byte, error) {
	certificate, key, err := ca.issue(s)
	if err != nil {
		return nil, fmt.Errorf("issue the certificate of %s: %w", s.user, err)
	}
	encode := base64.StdEncoding.EncodeToString
	return fmt.Appendf(nil, `apiVersion: v1
kind: Config
current-context: berth
contexts:
- name: berth
  context: {cluster: berth, user: %q}
clusters:
- name: berth
  cluster:
    server: %s
    certificate-authority-data: %s
users:
- name: %q
  user:
    client-certificate-data: %s
    client-key-data: %s
`, s.user, server, encode(ca.pem), s.user, encode(certificate), encode(key)), nil
}

// MoveAdminKubeconfig points the administrator's kubeconfig to another port. The
// certificates do not name ports and stay as they are.
func MoveAdminKubeconfig(l layout.Layout, ports layout.Ports) error {
	content, err := os.ReadFile(l.AdminKubeconfig())
	if err != nil {
		return err
	}
	moved := serverLine.ReplaceAll(content, []byte("server: "+OutsideURL(ports)))
	return layout.WriteFile(l.AdminKubeconfig(), moved, 0o600)
}

var serverLine = regexp.MustCompile(`server: https://127\.0\.0\.1:\d+`)
