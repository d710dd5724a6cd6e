// Command cluster controls the single-node test cluster. Its entry script builds
// it, tells it through the environment where things are, and prints the help.
package main

import (
	"context"
	"fmt"
	"math"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"

	"golang.org/x/sys/unix"

	"berth.dev/tests/cluster/internal/components"
	"berth.dev/tests/cluster/internal/forward"
	"berth.dev/tests/cluster/internal/layout"
	"berth.dev/tests/cluster/internal/registry"
	"berth.dev/tests/cluster/internal/users"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "cluster:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, arguments []string) error {
	if len(arguments) == 0 {
		return fmt.Errorf("no command: see `cluster help`")
	}
	command, arguments := arguments[0], arguments[1:]
	switch command { // the daemons get all that they need as arguments
	case components.ForwardCommand:
		return forward.Serve(ctx, arguments)
	case components.RegistryCommand:
		return registry.Serve(ctx, arguments[0], arguments[1])
	case components.UsersCommand:
		return users.Serve(ctx, arguments[0])
	}
	// Descriptors that the caller left open, such as that of a lock, must not live
	// on in the daemons.
	if err := unix.CloseRange(3, math.MaxInt32, unix.CLOSE_RANGE_CLOEXEC); err != nil {
		return fmt.Errorf("close_range: %w", err)
	}
	l, err := layout.FromEnvironment()
	if err != nil {
		return err
	}
	action, known := commands[command]
	if !known {
		return fmt.Errorf("unknown command %q: see `%s help`", command, filepath.Base("cluster"))
	}
	return action(ctx, l, arguments)
}
