// Package cgroup keeps a cluster's pods in a cgroup of their own, in each hierarchy
// of cgroup v1 and v2 alike. So two clusters on one machine do not remove each
// other's pods, and every process of a pod can be found again after a crash.
package cgroup

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"berth.dev/tests/cluster/internal/mounts"
)

// Create makes the cgroup in every hierarchy.
func Create(name string) error {
	for _, root := range hierarchies() {
		group := filepath.Join(root, name)
		if err := os.MkdirAll(group, 0o755); err != nil {
			return fmt.Errorf("create the cgroup: %w", err)
		}
		inheritCpuset(root, group)
		enableControllers(root)
	}
	return nil
}

// inheritCpuset copies what a new cpuset of cgroup v1 does not inherit; without it
// no process may be put into the cgroup.
func inheritCpuset(parent, group string) {
	for _, file := range []string{"cpuset.cpus", "cpuset.mems"} {
		content, err := os.ReadFile(filepath.Join(parent, file))
		if err == nil {
			_ = os.WriteFile(filepath.Join(group, file), content, 0o644)
		}
	}
}

// enableControllers offers all controllers of cgroup v2 to the children. In
// cgroup v1 the file does not exist.
func enableControllers(root string) {
	available, err := os.ReadFile(filepath.Join(root, "cgroup.controllers"))
	if err != nil {
		return
	}
	for _, controller := range strings.Fields(string(available)) {
		_ = os.WriteFile(filepath.Join(root, "cgroup.subtree_control"), []byte("+"+controller), 0o644)
	}
}

// Processes are the ids of all processes in the cgroup and below.
func Processes(name string) []int {
	seen := map[int]bool{}
	var pids []int
	for _, group := range groups(name) {
		content, _ := os.ReadFile(filepath.Join(group, "cgroup.procs"))
		for _, field := range strings.Fields(string(content)) {
			// Processes of another pid namespace are shown as 0.
			if pid, err := strconv.Atoi(field); err == nil && pid > 0 && !seen[pid] {
				seen[pid] = true
				pids = append(pids, pid)
			}
		}
	}
	return pids
}

// Remove removes the cgroup and all below it. It is no error if there is none.
func Remove(name string) error {
	var err error
	// The kernel lets go of a cgroup a moment after its last process ended.
	for range 50 {
		if err = removeOnce(name); err == nil {
			return nil
		}
		time.Sleep(50 * time.Millisecond)
	}
	return fmt.Errorf("remove the cgroup: %w", err)
}

func removeOnce(name string) error {
	var failures []error
	all := groups(name)
	for i := len(all) - 1; i >= 0; i-- { // parents come first in the walk
		if err := os.Remove(all[i]); err != nil && !errors.Is(err, fs.ErrNotExist) {
			failures = append(failures, err)
		}
	}
	return errors.Join(failures...)
}

// Exists tells whether the cgroup is there in any hierarchy.
func Exists(name string) bool { return len(groups(name)) > 0 }

// groups lists the cgroup and all below it in every hierarchy, parents first.
func groups(name string) []string {
	var found []string
	for _, root := range hierarchies() {
		_ = filepath.WalkDir(filepath.Join(root, name), func(path string, entry fs.DirEntry, err error) error {
			if err == nil && entry.IsDir() {
				found = append(found, path)
			}
			return nil // a cgroup may vanish during the walk
		})
	}
	return found
}

// hierarchies are the mount points of all cgroup file systems.
func hierarchies() []string {
	var roots []string
	for _, mount := range mounts.List() {
		if (mount.Type == "cgroup" || mount.Type == "cgroup2") && strings.HasPrefix(mount.Point, "/sys/fs/cgroup") {
			roots = append(roots, mount.Point)
		}
	}
	return roots
}
