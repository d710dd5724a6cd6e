package process

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"syscall"
	"time"

	"berth.dev/tests/cluster/internal/cgroup"
	"berth.dev/tests/cluster/internal/layout"
	"berth.dev/tests/cluster/internal/netns"
)

// endTimeout bounds the wait for killed processes; a process in an uninterruptible
// call can take a while to go.
const endTimeout = 20 * time.Second

// Members are all processes of a cluster: the recorded ones, whatever carries its
// mark, is inside its namespace (shims, CNI plugins), or in its cgroup (containers).
func Members(l layout.Layout) []int {
	inode, err := netns.Inode(l.Name)
	if err != nil {
		inode = 0
	}
	contained := map[int]bool{}
	for _, pid := range cgroup.Processes(l.Name) {
		contained[pid] = true
	}
	mark := []byte(markVariable + "=" + l.State)
	var members []int
	entries, _ := os.ReadDir("/proc")
	for _, entry := range entries {
		pid, err := strconv.Atoi(entry.Name())
		if err != nil || pid == os.Getpid() || identify(pid).Start == 0 {
			continue
		}
		if contained[pid] || isMarked(pid, mark) || (inode != 0 && isInside(pid, inode)) {
			members = append(members, pid)
		}
	}
	return members
}

func isMarked(pid int, mark []byte) bool {
	variables, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), "environ"))
	if err != nil {
		return false
	}
	for _, variable := range bytes.Split(variables, []byte{0}) {
		if bytes.Equal(variable, mark) {
			return true
		}
	}
	return false
}

func isInside(pid int, inode uint64) bool {
	var stat syscall.Stat_t
	err := syscall.Stat(filepath.Join("/proc", strconv.Itoa(pid), "ns", "net"), &stat)
	return err == nil && stat.Ino == inode
}

// EndAll kills all members and returns when they are really gone: a dying etcd
// removes files that a new one in the same folder has just made.
func EndAll(l layout.Layout) error {
	deadline := time.Now().Add(endTimeout)
	for {
		members := Members(l)
		if len(members) == 0 {
			return nil
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("processes %v do not end: see `ps -o pid,stat,wchan,args -p PID`", members)
		}
		for _, pid := range members {
			if err := syscall.Kill(pid, syscall.SIGKILL); err != nil && !errors.Is(err, syscall.ESRCH) {
				return fmt.Errorf("end process %d: %w", pid, err)
			}
		}
		time.Sleep(20 * time.Millisecond)
	}
}
