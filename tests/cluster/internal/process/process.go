// Package process starts daemons that outlive the command that started them, and
// finds and ends them again, also after any of them, or the command, was killed.
package process

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"

	"berth.dev/tests/cluster/internal/layout"
	"berth.dev/tests/cluster/internal/netns"
)

// markVariable is set in the environment of every process of a cluster to its state
// folder: a mark that is there from the process' first moment, unlike its record.
const markVariable = "BERTH_CLUSTER_MEMBER_OF"

// Spec says what to start.
type Spec struct {
	Name string
	Argv []string
	// Files are inherited, as descriptors 3 and up.
	Files []*os.File
}

// identity tells a process from a later one with the same id.
type identity struct {
	PID   int    `json:"pid"`
	Start uint64 `json:"start"` // in clock ticks since boot
	Boot  string `json:"boot"`
}

// Start starts a daemon inside the cluster's namespace, detached from its caller,
// and records it.
func Start(l layout.Layout, spec Spec) error {
	log, err := os.OpenFile(l.Log(spec.Name), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return err
	}
	defer log.Close()
	command := &exec.Cmd{
		Path:        spec.Argv[0],
		Args:        spec.Argv,
		Env:         environment(l),
		Dir:         l.State,
		Stdout:      log,
		Stderr:      log,
		ExtraFiles:  spec.Files,
		SysProcAttr: &syscall.SysProcAttr{Setsid: true},
	}
	if err := netns.Do(l.Name, command.Start); err != nil {
		return fmt.Errorf("start %s: %w", spec.Name, err)
	}
	go func() { _ = command.Wait() }() // else its death would leave a zombie until `up` ends
	return record(l, spec.Name, command.Process.Pid)
}

// environment is small and the same whoever runs `up`.
func environment(l layout.Layout) []string {
	path := strings.Join([]string{filepath.Join(l.Tools, "lib"), "/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin", "/sbin", "/bin"}, ":")
	return []string{"PATH=" + path, "HOME=" + l.State, markVariable + "=" + l.State}
}

func record(l layout.Layout, name string, pid int) error {
	content, err := json.Marshal(identify(pid))
	if err != nil {
		return err
	}
	return layout.WriteFile(recordFile(l, name), content, 0o644)
}

func recordFile(l layout.Layout, name string) string { return l.Path("pids", name+".json") }

// identify returns a zero start time if there is no such process, or only a zombie.
func identify(pid int) identity {
	stat, _ := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	boot, _ := os.ReadFile("/proc/sys/kernel/random/boot_id")
	id := identity{PID: pid, Boot: strings.TrimSpace(string(boot))}
	// The program's name is in parentheses and may hold anything.
	end := strings.LastIndexByte(string(stat), ')')
	if end < 0 {
		return id
	}
	fields := strings.Fields(string(stat[end+1:]))
	const state, startTime = 0, 19
	if len(fields) > startTime && fields[state] != "Z" && fields[state] != "X" {
		id.Start, _ = strconv.ParseUint(fields[startTime], 10, 64)
	}
	return id
}

// PID returns a component's process id, or 0 if it does not run.
func PID(l layout.Layout, name string) int {
	content, err := os.ReadFile(recordFile(l, name))
	if err != nil {
		return 0
	}
	var recorded identity
	if json.Unmarshal(content, &recorded) != nil || recorded.Start == 0 || identify(recorded.PID) != recorded {
		return 0
	}
	return recorded.PID
}

// Kill ends one component at once.
func Kill(l layout.Layout, name string) error {
	pid := PID(l, name)
	if pid == 0 {
		return nil
	}
	if err := syscall.Kill(pid, syscall.SIGKILL); err != nil && !errors.Is(err, syscall.ESRCH) {
		return fmt.Errorf("end %s (process %d): %w", name, pid, err)
	}
	return nil
}
