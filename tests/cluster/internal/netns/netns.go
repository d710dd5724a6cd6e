// Package netns makes, enters and removes the network namespace that a cluster's
// node lives in. The namespace has no way out: nothing in it can reach, or be
// reached from, any network.
package netns

import (
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"berth.dev/tests/cluster/internal/layout"
)

const folder = "/run/netns"

// init pins the main goroutine to the process' first thread, so that no other
// goroutine can take that thread into the namespace: /proc/PID/ns shows the first
// thread, and a locked first thread cannot end.
func init() { runtime.LockOSThread() }

// Exists tells whether the named namespace is there.
func Exists(name string) bool {
	_, err := Inode(name)
	return err == nil
}

// Inode identifies the namespace, to be compared with /proc/PID/ns/net.
func Inode(name string) (uint64, error) {
	var stat syscall.Stat_t
	if err := syscall.Stat(filepath.Join(folder, name), &stat); err != nil {
		return 0, err
	}
	return stat.Ino, nil
}

// Create makes the namespace, its addresses and its default route.
func Create(name string) error {
	steps := [][]string{
		{"netns", "add", name},
		{"-n", name, "link", "set", "lo", "up"},
		// Not every kernel has the `dummy` type: a veth pair with both ends inside
		// is an interface that is up and leads nowhere.
		{"-n", name, "link", "add", "node0", "type", "veth", "peer", "name", "node1"},
		{"-n", name, "link", "set", "node1", "up"},
		{"-n", name, "link", "set", "node0", "up"},
		{"-n", name, "address", "add", layout.NodeCIDR, "dev", "node0"},
		{"-n", name, "route", "add", "default", "via", layout.GatewayIP, "dev", "node0"},
	}
	for _, step := range steps {
		if err := ip(step...); err != nil {
			return err
		}
	}
	return Do(name, func() error {
		return os.WriteFile("/proc/sys/net/ipv4/ip_forward", []byte("1"), 0o644)
	})
}

// Delete removes the namespace. It is no error if there is none.
func Delete(name string) error {
	if _, err := os.Stat(filepath.Join(folder, name)); os.IsNotExist(err) {
		return nil
	}
	return ip("netns", "delete", name)
}

func ip(arguments ...string) error {
	output, err := exec.Command("ip", arguments...).CombinedOutput()
	if err != nil {
		return fmt.Errorf("ip %s: %w: %s", strings.Join(arguments, " "), err, strings.TrimSpace(string(output)))
	}
	return nil
}

// Do runs work on a thread inside the namespace. Whatever the work starts or opens
// (processes, sockets) is inside as well; goroutines that it starts are not.
func Do(name string, work func() error) error {
	result := make(chan error, 1)
	go func() {
		// Never unlocked: the runtime ends the thread with the goroutine, so that
		// no other goroutine ever runs in the namespace by accident.
		runtime.LockOSThread()
		if err := enter(name); err != nil {
			result <- err
			return
		}
		result <- work()
	}()
	return <-result
}

func enter(name string) error {
	file, err := os.Open(filepath.Join(folder, name))
	if err != nil {
		return fmt.Errorf("the network namespace %s is gone: %w", name, err)
	}
	defer file.Close()
	if err := unix.Setns(int(file.Fd()), unix.CLONE_NEWNET); err != nil {
		return fmt.Errorf("enter the network namespace %s: %w", name, err)
	}
	return nil
}

// Dialer returns a dial function for literal addresses inside the namespace.
func Dialer(name string) func(context.Context, string, string) (net.Conn, error) {
	return func(ctx context.Context, network, address string) (net.Conn, error) {
		var connection net.Conn
		err := Do(name, func() error {
			var dialer net.Dialer
			var err error
			connection, err = dialer.DialContext(ctx, network, address)
			return err
		})
		return connection, err
	}
}
