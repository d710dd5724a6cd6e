// Package components says, for each daemon of the cluster, how it is configured,
// started, and seen to be healthy.
package components

import (
	"context"
	"fmt"
	"os"
	"path/filepath"

	"berth.dev/tests/cluster/internal/layout"
)

// Component is one daemon.
type Component struct {
	Name string
	// After names the components that must be healthy before this one starts.
	After []string
	// Restarts names the components that must be started anew with this one.
	Restarts []string
	// Before is what must be done before each start; nil is nothing.
	Before func(context.Context, layout.Layout) error
	// Argv is the command line.
	Argv func(layout.Layout) []string
	// Config maps configuration files, below the folder `etc`, to their content.
	Config func(layout.Layout) map[string]string
	// Healthy returns what is wrong, or nil.
	Healthy func(context.Context, layout.Layout) error
	// Endpoint is the component's address inside the namespace, for `status`.
	Endpoint string
}

// All lists the components in the order in which they start.
func All() []Component {
	return []Component{
		forwarder(), registry(), users(), etcd(), containerd(), apiserver(),
		controllerManager(), scheduler(), kubelet(), proxy(), coredns(),
	}
}

// Names lists the components' names.
func Names() []string {
	var names []string
	for _, component := range All() {
		names = append(names, component.Name)
	}
	return names
}

// Named finds a component.
func Named(name string) (Component, bool) {
	for _, component := range All() {
		if component.Name == name {
			return component, true
		}
	}
	return Component{}, false
}

// WriteConfig writes the configuration files of all components.
func WriteConfig(l layout.Layout) error {
	for _, component := range All() {
		if component.Config == nil {
			continue
		}
		for file, content := range component.Config(l) {
			path := l.Config(file)
			if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
				return err
			}
			if err := os.WriteFile(path, []byte(content), 0o644); err != nil {
				return fmt.Errorf("configure %s: %w", component.Name, err)
			}
		}
	}
	return nil
}
