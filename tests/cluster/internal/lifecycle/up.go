// Package lifecycle brings a cluster up, repairs it, tells its state and removes it.
package lifecycle

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"berth.dev/tests/cluster/internal/cgroup"
	"berth.dev/tests/cluster/internal/components"
	"berth.dev/tests/cluster/internal/images"
	"berth.dev/tests/cluster/internal/kubeapi"
	"berth.dev/tests/cluster/internal/layout"
	"berth.dev/tests/cluster/internal/netns"
	"berth.dev/tests/cluster/internal/pki"
	"berth.dev/tests/cluster/internal/process"
)

const (
	// createTimeout is generous: from nothing to ready takes about 10 s, but a
	// machine that compiles meanwhile is several times slower.
	createTimeout = 3 * time.Minute
	// repairTimeout is how long a damaged cluster may take before it is made anew.
	repairTimeout = 45 * time.Second
)

// Up makes sure that there is a healthy cluster: it keeps one that is, repairs one
// that lost some components, and makes a new one otherwise.
func Up(ctx context.Context, l layout.Layout, progress *Progress) error {
	unlock, err := lock(l, progress)
	if err != nil {
		return err
	}
	defer unlock()
	record, err := l.ReadRecord()
	if err != nil {
		return err
	}
	ports, err := layout.PortsFromEnvironment(record.Ports)
	if err != nil {
		return err
	}
	if err := ports.Check(); err != nil {
		return err
	}
	if record.Complete && record.Generation == l.Generation && anyAlive(l) {
		err := keep(ctx, l, record, ports, progress)
		// A taken port is no reason to destroy a cluster: a new one could not have it either.
		if err == nil || errors.Is(err, syscall.EADDRINUSE) {
			return err
		}
		progress.Say("repair did not help (%v): starting from nothing", err)
	}
	return create(ctx, l, ports, progress)
}

// keep leaves a healthy cluster alone and repairs any other.
func keep(ctx context.Context, l layout.Layout, record layout.Record, ports layout.Ports, progress *Progress) error {
	if record.Ports != ports {
		if err := movePorts(l, record, ports); err != nil {
			return err
		}
	} else if problem := firstProblem(ctx, l); problem == nil {
		progress.Done("up already: Kubernetes is healthy")
		return nil
	} else {
		progress.Say("repairing: %v", problem)
	}
	ctx, cancel := context.WithTimeout(ctx, repairTimeout)
	defer cancel()
	if err := converge(ctx, l, ports, progress); err != nil {
		return err
	}
	progress.Done("repaired: Kubernetes is healthy")
	return nil
}

// movePorts ends the forwarder, to be started on other ports.
func movePorts(l layout.Layout, record layout.Record, ports layout.Ports) error {
	if err := probePorts(record.Ports, ports); err != nil {
		return err
	}
	if err := process.Kill(l, components.Forwarder); err != nil {
		return err
	}
	record.Ports = ports
	if err := l.WriteRecord(record); err != nil {
		return err
	}
	return pki.MoveAdminKubeconfig(l, ports)
}

func create(ctx context.Context, l layout.Layout, ports layout.Ports, progress *Progress) error {
	progress.Say("clearing what is left of an earlier cluster")
	if err := clear(l); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, createTimeout)
	defer cancel()
	if err := prepare(l, ports); err != nil {
		return err
	}
	record := layout.Record{Generation: l.Generation, Ports: ports}
	if err := l.WriteRecord(record); err != nil {
		return err
	}
	if err := converge(ctx, l, ports, progress); err != nil {
		return fmt.Errorf("%w\nsee the log files in %s", err, l.Path("log"))
	}
	record.Complete = true
	if err := l.WriteRecord(record); err != nil {
		return err
	}
	progress.Done("Kubernetes is ready")
	return nil
}

// prepare makes all that the components expect to find.
func prepare(l layout.Layout, ports layout.Ports) error {
	for _, folder := range []string{"log", "pids", "pki", "etc", "containerd"} {
		if err := os.MkdirAll(l.Path(folder), 0o755); err != nil {
			return err
		}
	}
	if err := pki.Create(l, ports); err != nil {
		return err
	}
	if err := components.WriteConfig(l); err != nil {
		return err
	}
	if err := cgroup.Create(l.Name); err != nil {
		return err
	}
	return netns.Create(l.Name)
}

// converge starts all that does not run and returns when the cluster is ready.
func converge(ctx context.Context, l layout.Layout, ports layout.Ports, progress *Progress) error {
	starter := &starter{layout: l, ports: ports, progress: progress, starts: map[string]int{}}
	if err := starter.run(ctx); err != nil {
		return err
	}
	if err := pushPause(ctx, l); err != nil {
		return err
	}
	client, err := kubeapi.New(l)
	if err != nil {
		return err
	}
	checks := []struct {
		name  string
		check func(context.Context) error
	}{
		{"default ServiceAccount", client.DefaultServiceAccount},
		{"node", client.NodeReady},
		{"CoreDNS", func(ctx context.Context) error { return resolveAPI(ctx, l) }},
	}
	for _, item := range checks {
		if err := until(ctx, item.check); err != nil {
			return fmt.Errorf("%s: %w", item.name, err)
		}
		progress.Say("%s: ready", item.name)
	}
	return nil
}

// pushPause proves the registry by what the first pod will need from it.
func pushPause(ctx context.Context, l layout.Layout) error {
	description := images.Description{
		Name:       layout.PauseImage,
		Layers:     []images.Layer{{From: filepath.Join(l.Control, "pause"), To: "/pause", Mode: "0755"}},
		Entrypoint: []string{"/pause"},
		User:       "65535:65535",
	}
	image, err := images.Build(description, LayerCache(l))
	if err != nil {
		return err
	}
	target := images.Target{Address: layout.RegistryAddress, Dial: netns.Dialer(l.Name)}
	_, err = images.Push(ctx, image, description.Name, target)
	return err
}

// LayerCache outlives the cluster: compressing is slow, pushing is not.
func LayerCache(l layout.Layout) images.Cache {
	return images.Cache{Folder: filepath.Join(l.Cache, "layers")}
}

// lock keeps a second `up` or `down` waiting until this one is done.
func lock(l layout.Layout, progress *Progress) (func(), error) {
	if err := os.MkdirAll(filepath.Dir(l.LockFile()), 0o755); err != nil {
		return nil, err
	}
	file, err := os.OpenFile(l.LockFile(), os.O_CREATE|os.O_RDWR, 0o644)
	if err != nil {
		return nil, err
	}
	err = syscall.Flock(int(file.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
	if errors.Is(err, syscall.EWOULDBLOCK) {
		progress.Say("another `up` or `down` is running: waiting for it")
		err = syscall.Flock(int(file.Fd()), syscall.LOCK_EX)
	}
	if err != nil {
		file.Close()
		return nil, fmt.Errorf("lock %s: %w", l.LockFile(), err)
	}
	return func() { file.Close() }, nil
}

// Exists tells whether there is anything of a cluster in the state folder.
func Exists(l layout.Layout) bool {
	_, err := os.Stat(l.State)
	return !errors.Is(err, fs.ErrNotExist)
}
