package lifecycle

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"strconv"
	"sync"
	"syscall"
	"time"

	"berth.dev/tests/cluster/internal/components"
	"berth.dev/tests/cluster/internal/forward"
	"berth.dev/tests/cluster/internal/layout"
	"berth.dev/tests/cluster/internal/netns"
	"berth.dev/tests/cluster/internal/process"
)

const (
	pollInterval = 100 * time.Millisecond
	// maxStarts bounds how often a component is started in one run: one that
	// depends on another may end itself a few times before that is there.
	maxStarts = 5
)

// starter starts the components that do not run, each once those it needs are healthy.
type starter struct {
	layout   layout.Layout
	ports    layout.Ports
	progress *Progress
	starts   map[string]int
}

// run returns when all components are healthy.
func (s *starter) run(ctx context.Context) error {
	var healthy []string
	for {
		problems := check(ctx, s.layout)
		for _, component := range components.All() {
			if problems[component.Name] == nil && !slices.Contains(healthy, component.Name) {
				healthy = append(healthy, component.Name)
				s.progress.Say("%s: healthy", component.Name)
			}
		}
		if len(problems) == 0 {
			return nil
		}
		if err := s.startMissing(ctx, problems); err != nil {
			return err
		}
		if wait(ctx, pollInterval) != nil {
			return summary(problems)
		}
	}
}

func (s *starter) startMissing(ctx context.Context, problems map[string]error) error {
	for _, component := range components.All() {
		if problems[component.Name] == nil || process.PID(s.layout, component.Name) != 0 || !met(component, problems) {
			continue
		}
		if s.starts[component.Name] >= maxStarts {
			return fmt.Errorf("%s ended %d times: see `logs %s`", component.Name, maxStarts, component.Name)
		}
		s.starts[component.Name]++
		if err := s.start(ctx, component); err != nil {
			return err
		}
	}
	return nil
}

func met(component components.Component, problems map[string]error) bool {
	for _, needed := range component.After {
		if problems[needed] != nil {
			return false
		}
	}
	return true
}

func (s *starter) start(ctx context.Context, component components.Component) error {
	if component.Before != nil {
		if err := until(ctx, func(ctx context.Context) error { return component.Before(ctx, s.layout) }); err != nil {
			return fmt.Errorf("prepare %s: %w", component.Name, err)
		}
	}
	for _, dependent := range component.Restarts {
		if err := process.Kill(s.layout, dependent); err != nil {
			return err
		}
	}
	spec := process.Spec{Name: component.Name, Argv: component.Argv(s.layout)}
	if component.Name == components.Forwarder {
		files, err := forward.Listen(addresses(s.ports))
		if err != nil {
			return explainListen(err)
		}
		spec.Files = files
		defer func() {
			for _, file := range files {
				file.Close()
			}
		}()
	}
	return process.Start(s.layout, spec)
}

// addresses are the forwarder's listeners, in the order of its targets.
func addresses(ports layout.Ports) []string {
	var all []string
	for _, port := range []int{ports.API, ports.Registry, ports.Gateway} {
		all = append(all, net.JoinHostPort("127.0.0.1", strconv.Itoa(port)))
	}
	return all
}

// probePorts tells whether the ports that would change can be had.
func probePorts(old, wanted layout.Ports) error {
	current := addresses(old)
	changed := slices.DeleteFunc(addresses(wanted), func(address string) bool { return slices.Contains(current, address) })
	files, err := forward.Listen(changed)
	if err != nil {
		return explainListen(err)
	}
	for _, file := range files {
		file.Close()
	}
	return nil
}

func explainListen(err error) error {
	if errors.Is(err, syscall.EADDRINUSE) {
		return fmt.Errorf("%w: free the port, or choose others with BERTH_API_PORT, BERTH_REGISTRY_PORT, BERTH_GATEWAY_PORT", err)
	}
	return err
}

// check asks all components at once and returns the problems by component.
func check(ctx context.Context, l layout.Layout) map[string]error {
	var mutex sync.Mutex
	var group sync.WaitGroup
	problems := map[string]error{}
	for _, component := range components.All() {
		group.Go(func() {
			if err := healthy(ctx, l, component); err != nil {
				mutex.Lock()
				defer mutex.Unlock()
				problems[component.Name] = err
			}
		})
	}
	group.Wait()
	return problems
}

func healthy(ctx context.Context, l layout.Layout, component components.Component) error {
	if process.PID(l, component.Name) == 0 {
		return errors.New("does not run")
	}
	return component.Healthy(ctx, l)
}

func summary(problems map[string]error) error {
	var all []error
	for _, component := range components.All() {
		if err := problems[component.Name]; err != nil {
			all = append(all, fmt.Errorf("%s: %w", component.Name, err))
		}
	}
	return errors.Join(all...)
}

// until repeats a check until it succeeds; when the time is over it returns why it did not.
func until(ctx context.Context, check func(context.Context) error) error {
	for {
		err := check(ctx)
		if err == nil {
			return nil
		}
		if wait(ctx, pollInterval) != nil {
			return err
		}
	}
}

func wait(ctx context.Context, interval time.Duration) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(interval):
		return nil
	}
}

// resolveAPI asks CoreDNS, at the Service address that pods use, for the API
// server's Service: so DNS, its Service and kube-proxy work together.
func resolveAPI(ctx context.Context, l layout.Layout) error {
	resolver := net.Resolver{PreferGo: true, Dial: func(ctx context.Context, network, _ string) (net.Conn, error) {
		return netns.Dialer(l.Name)(ctx, network, net.JoinHostPort(layout.DNSIP, "53"))
	}}
	ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	found, err := resolver.LookupHost(ctx, "kubernetes.default.svc.cluster.local.")
	if err != nil {
		return err
	}
	if !slices.Contains(found, layout.ServiceIP) {
		return fmt.Errorf("kubernetes.default resolves to %v, not %s", found, layout.ServiceIP)
	}
	return nil
}
