package lifecycle

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"

	"berth.dev/tests/cluster/internal/components"
	"berth.dev/tests/cluster/internal/kubeapi"
	"berth.dev/tests/cluster/internal/layout"
	"berth.dev/tests/cluster/internal/pki"
	"berth.dev/tests/cluster/internal/process"
)

// ErrUnhealthy is returned by Status after it has said what is wrong.
var ErrUnhealthy = errors.New("the cluster is not healthy: `up` repairs it")

// Status prints a table of all components and the endpoints on this machine.
func Status(ctx context.Context, l layout.Layout, out io.Writer) error {
	record, err := l.ReadRecord()
	if err != nil {
		return err
	}
	problems := check(ctx, l)
	table := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(table, "COMPONENT\tPID\tSTATE\tADDRESS INSIDE")
	for _, component := range components.All() {
		pid := "-"
		if id := process.PID(l, component.Name); id != 0 {
			pid = fmt.Sprint(id)
		}
		fmt.Fprintf(table, "%s\t%s\t%s\t%s\n", component.Name, pid, state(problems[component.Name]), component.Endpoint)
	}
	node := errors.New("unknown, as the API server does not answer")
	if problems["kube-apiserver"] == nil {
		node = nodeReady(ctx, l)
	}
	fmt.Fprintf(table, "node %s\t\t%s\t%s\n", layout.NodeName, state(node), layout.NodeIP)
	if err := table.Flush(); err != nil {
		return err
	}
	fmt.Fprintf(out, "\nAPI server  %s\nregistry    127.0.0.1:%d  (in pods: %s)\ngateway     127.0.0.1:%d  (to NodePort %s)\nkubeconfig  %s\n",
		pki.OutsideURL(record.Ports), record.Ports.Registry, layout.RegistryHost, record.Ports.Gateway, layout.GatewayAddress, l.AdminKubeconfig())
	if !record.Complete || len(problems) > 0 || node != nil {
		return ErrUnhealthy
	}
	return nil
}

func state(problem error) string {
	if problem == nil {
		return "healthy"
	}
	text := strings.Join(strings.Fields(problem.Error()), " ")
	const limit = 80
	if len(text) > limit {
		text = text[:limit] + "..."
	}
	return text
}

// firstProblem is nil for a cluster that is healthy as a whole. Dead components are
// found at once; asking the others, which may depend on them, takes until they give up.
func firstProblem(ctx context.Context, l layout.Layout) error {
	for _, name := range components.Names() {
		if process.PID(l, name) == 0 {
			return fmt.Errorf("%s does not run", name)
		}
	}
	problems := check(ctx, l)
	for _, component := range components.All() {
		if err := problems[component.Name]; err != nil {
			return fmt.Errorf("%s: %w", component.Name, err)
		}
	}
	return nodeReady(ctx, l)
}

func nodeReady(ctx context.Context, l layout.Layout) error {
	client, err := kubeapi.New(l)
	if err != nil {
		return errors.New("there is no cluster")
	}
	return client.NodeReady(ctx)
}

func anyAlive(l layout.Layout) bool {
	for _, name := range components.Names() {
		if process.PID(l, name) != 0 {
			return true
		}
	}
	return false
}
