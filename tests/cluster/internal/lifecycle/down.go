package lifecycle

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"berth.dev/tests/cluster/internal/cgroup"
	"berth.dev/tests/cluster/internal/components"
	"berth.dev/tests/cluster/internal/layout"
	"berth.dev/tests/cluster/internal/mounts"
	"berth.dev/tests/cluster/internal/netns"
	"berth.dev/tests/cluster/internal/process"
)

// Places outside of the state folder that cannot be configured away.
const (
	// containerLogs has the kubelet's links to the logs of containers.
	containerLogs = "/var/log/containers"
	// cniResults has libcni's record of each pod's network.
	cniResults = "/var/lib/cni/results"
)

// Down removes the cluster, whatever state it is in.
func Down(l layout.Layout, progress *Progress) error {
	unlock, err := lock(l, progress)
	if err != nil {
		return err
	}
	defer unlock()
	if err := clear(l); err != nil {
		return err
	}
	progress.Done("down: nothing is left")
	return nil
}

// clear removes everything of a cluster, in the one order that works: processes
// first, as they hold the mounts; mounts before folders, as removing a folder would
// remove what is mounted on it.
func clear(l layout.Layout) error {
	if err := process.EndAll(l); err != nil {
		return err
	}
	sockets := shimSockets(l)
	if err := mounts.UnmountBelow(l.State); err != nil {
		return err
	}
	if err := netns.Delete(l.Name); err != nil {
		return err
	}
	if err := cgroup.Remove(l.Name); err != nil {
		return err
	}
	removeStrays(l, sockets)
	if err := os.RemoveAll(l.State); err != nil {
		return fmt.Errorf("remove the state folder: %w", err)
	}
	return nil
}

// shimSockets are the sockets that killed shims leave in a folder common to all
// containerds of the machine.
func shimSockets(l layout.Layout) []string {
	var sockets []string
	bundles := l.Path("containerd", "run", "io.containerd.runtime.v2.task", "k8s.io", "*", "bootstrap.json")
	files, _ := filepath.Glob(bundles)
	for _, file := range files {
		content, _ := os.ReadFile(file)
		_, after, found := strings.Cut(string(content), "unix://")
		if path, _, ended := strings.Cut(after, `"`); found && ended {
			sockets = append(sockets, path)
		}
	}
	return sockets
}

// removeStrays removes what lies outside of the state folder. It is litter only, so
// what cannot be removed is left.
func removeStrays(l layout.Layout, sockets []string) {
	for _, socket := range sockets {
		if info, err := os.Lstat(socket); err == nil && info.Mode()&fs.ModeSocket != 0 {
			_ = os.Remove(socket)
		}
	}
	links, _ := filepath.Glob(filepath.Join(containerLogs, "*.log"))
	for _, link := range links {
		if target, err := os.Readlink(link); err == nil && strings.HasPrefix(target, l.State+"/") {
			_ = os.Remove(link)
		}
	}
	results, _ := filepath.Glob(filepath.Join(cniResults, components.PodNetwork(l)+"-*"))
	for _, result := range results {
		_ = os.Remove(result)
	}
}
