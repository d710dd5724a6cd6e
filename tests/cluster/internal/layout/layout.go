// Package layout says where everything of one test cluster lives: folders, names,
// addresses and ports. It touches nothing; it only names.
package layout

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
)

// Addresses inside the cluster's network namespace. They can be the same for every
// cluster on a machine, since each has a namespace of its own.
const (
	NodeName   = "berth"
	NodeIP     = "10.89.0.2"
	NodeCIDR   = NodeIP + "/24"
	GatewayIP  = "10.89.0.1"
	PodCIDR    = "10.244.0.0/22"
	ServiceNet = "10.96.0.0/16"
	ServiceIP  = "10.96.0.1"
	DNSIP      = "10.96.0.10"

	// RegistryHost is the registry's name in pod specs. containerd maps it to
	// RegistryAddress, so it needs no DNS.
	RegistryHost    = "registry.berth.test:5000"
	RegistryAddress = "127.0.0.1:5000"
	// UsersAddress is the API server's token webhook, for users that only tests know.
	UsersAddress = "127.0.0.1:5001"
	// PauseImage is the sandbox image, pushed by `up`.
	PauseImage = "berth/pause:1"

	APIAddress     = NodeIP + ":6443"
	GatewayAddress = NodeIP + ":30080"
)

// maxStatePath keeps the sockets below the state folder within the 107 bytes that
// the kernel allows for a unix socket's path.
const maxStatePath = 70

// Ports are the ports on 127.0.0.1, outside of the namespace.
type Ports struct {
	API      int `json:"api"`
	Registry int `json:"registry"`
	Gateway  int `json:"gateway"`
}

// DefaultPorts are used unless the environment says otherwise.
var DefaultPorts = Ports{API: 16443, Registry: 15000, Gateway: 18080}

// Check refuses one port for two purposes.
func (p Ports) Check() error {
	if p.API == p.Registry || p.API == p.Gateway || p.Registry == p.Gateway {
		return fmt.Errorf("the ports %d, %d and %d must differ: set BERTH_API_PORT, BERTH_REGISTRY_PORT, BERTH_GATEWAY_PORT",
			p.API, p.Registry, p.Gateway)
	}
	return nil
}

// Layout is one cluster's place on this machine.
type Layout struct {
	Name       string // network namespace and root cgroup
	State      string // everything that lives only as long as the cluster
	Cache      string // what is worth keeping between clusters
	Tools      string // binaries of Kubernetes and its tools
	Control    string // this program and pause
	Generation string // identifies the binaries' content
}

// FromEnvironment reads what the entry script exports.
func FromEnvironment() (Layout, error) {
	l := Layout{
		State:      os.Getenv("BERTH_CLUSTER_STATE"),
		Cache:      os.Getenv("BERTH_CLUSTER_CACHE"),
		Tools:      os.Getenv("BERTH_CLUSTER_TOOLS"),
		Control:    os.Getenv("BERTH_CLUSTER_CONTROL"),
		Generation: os.Getenv("BERTH_CLUSTER_GENERATION"),
	}
	if l.State == "" || l.Cache == "" || l.Tools == "" || l.Control == "" {
		return l, fmt.Errorf("BERTH_CLUSTER_* is not set: start me through the script tests/cluster/cluster")
	}
	if !filepath.IsAbs(l.State) || filepath.Clean(l.State) != l.State || l.State == "/" {
		return l, fmt.Errorf("the state folder %q must be a clean absolute path: set BERTH_CLUSTER_STATE", l.State)
	}
	if len(l.State) > maxStatePath {
		return l, fmt.Errorf("the state folder's path is too long for unix sockets (%d > %d bytes): set BERTH_CLUSTER_STATE to a shorter one",
			len(l.State), maxStatePath)
	}
	l.Name = clusterName(l.State)
	return l, nil
}

// clusterName is distinct for each state folder, whatever else differs: whoever
// clears up after a cluster ends all that runs under its name.
func clusterName(state string) string {
	sum := sha256.Sum256([]byte(state))
	return "berth-" + hex.EncodeToString(sum[:4])
}

// PortsFromEnvironment overlays BERTH_*_PORT on the given ports.
func PortsFromEnvironment(ports Ports) (Ports, error) {
	for _, override := range []struct {
		variable string
		port     *int
	}{
		{"BERTH_API_PORT", &ports.API},
		{"BERTH_REGISTRY_PORT", &ports.Registry},
		{"BERTH_GATEWAY_PORT", &ports.Gateway},
	} {
		value := os.Getenv(override.variable)
		if value == "" {
			continue
		}
		port, err := strconv.Atoi(value)
		if err != nil || port < 1 || port > 65535 {
			return ports, fmt.Errorf("%s=%q is not a port: use a number from 1 to 65535", override.variable, value)
		}
		*override.port = port
	}
	return ports, nil
}

// Path is a path below the state folder.
func (l Layout) Path(elements ...string) string {
	return filepath.Join(append([]string{l.State}, elements...)...)
}

// Log is a component's log file.
func (l Layout) Log(component string) string { return l.Path("log", component+".log") }

// PKI is a file of keys or certificates.
func (l Layout) PKI(file string) string { return l.Path("pki", file) }

// Config is a component's configuration file.
func (l Layout) Config(file string) string { return l.Path("etc", file) }

// Kubeconfig is a component's kubeconfig, for use inside the namespace.
func (l Layout) Kubeconfig(user string) string { return l.Path("etc", user+".kubeconfig") }

// AdminKubeconfig is the one for people and tests, for use outside the namespace.
func (l Layout) AdminKubeconfig() string { return l.Path("kubeconfig") }

// ContainerdSocket is the container runtime's address.
func (l Layout) ContainerdSocket() string { return l.Path("containerd", "c.sock") }

// Program is a binary or link that components are started from.
func (l Layout) Program(name string) string { return filepath.Join(l.Tools, "lib", name) }

// CommandDir holds what people call: kubectl, helm, crane.
func (l Layout) CommandDir() string { return filepath.Join(l.Tools, "bin") }

// LockFile serialises `up` and `down`. It is beside the state folder, which `down` removes.
func (l Layout) LockFile() string { return l.State + ".lock" }
