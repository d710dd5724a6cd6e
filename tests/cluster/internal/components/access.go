package components

import (
	"context"
	"fmt"
	"net"
	"path/filepath"

	"berth.dev/tests/cluster/internal/layout"
)

// Hidden commands of the control program that run as daemons.
const (
	ForwardCommand  = "internal-forward"
	RegistryCommand = "internal-registry"
	UsersCommand    = "internal-users"
)

// Forwarder is the name of the component that gets listeners from `up`.
const Forwarder = "forwarder"

func controlProgram(l layout.Layout) string { return filepath.Join(l.Control, "berth-cluster") }

// forwarder carries connections from 127.0.0.1 outside into the namespace. Its
// listeners are opened outside, by `up`, in the order of the targets below.
func forwarder() Component {
	return Component{
		Name: Forwarder,
		Argv: func(l layout.Layout) []string {
			return []string{controlProgram(l), ForwardCommand, layout.APIAddress, layout.RegistryAddress, layout.GatewayAddress}
		},
		Healthy: func(ctx context.Context, l layout.Layout) error {
			record, err := l.ReadRecord()
			if err != nil {
				return err
			}
			// The registry is the target that is up first and answers anyone.
			return fetch(ctx, (&net.Dialer{}).DialContext, fmt.Sprintf("http://127.0.0.1:%d/v2/", record.Ports.Registry))
		},
		Endpoint: "three ports, see below",
	}
}

func registry() Component {
	return Component{
		Name: "registry",
		Argv: func(l layout.Layout) []string {
			return []string{controlProgram(l), RegistryCommand, layout.RegistryAddress, l.Path("registry")}
		},
		Healthy:  answers("http://" + layout.RegistryAddress + "/v2/"),
		Endpoint: layout.RegistryAddress,
	}
}

// users answers for the tokens of users that only tests know; see package users.
func users() Component {
	return Component{
		Name: "users",
		Argv: func(l layout.Layout) []string {
			return []string{controlProgram(l), UsersCommand, layout.UsersAddress}
		},
		Healthy:  answers("http://" + layout.UsersAddress + "/healthz"),
		Endpoint: layout.UsersAddress,
	}
}
