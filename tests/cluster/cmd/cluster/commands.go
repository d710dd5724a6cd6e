package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"slices"
	"strings"
	"syscall"

	"berth.dev/tests/cluster/internal/components"
	"berth.dev/tests/cluster/internal/images"
	"berth.dev/tests/cluster/internal/layout"
	"berth.dev/tests/cluster/internal/lifecycle"
)

type action func(context.Context, layout.Layout, []string) error

var commands = map[string]action{
	"up":         up,
	"down":       down,
	"status":     status,
	"load":       load,
	"kubeconfig": kubeconfig,
	"logs":       logs,
	"exec":       execute,
	"path":       path,
}

var errNoCluster = errors.New("there is no cluster: run `up` first")

func up(ctx context.Context, l layout.Layout, arguments []string) error {
	if err := none("up", arguments); err != nil {
		return err
	}
	return lifecycle.Up(ctx, l, lifecycle.NewProgress(os.Stderr))
}

func down(_ context.Context, l layout.Layout, arguments []string) error {
	if err := none("down", arguments); err != nil {
		return err
	}
	return lifecycle.Down(l, lifecycle.NewProgress(os.Stderr))
}

func status(ctx context.Context, l layout.Layout, arguments []string) error {
	if err := none("status", arguments); err != nil {
		return err
	}
	return lifecycle.Status(ctx, l, os.Stdout)
}

func load(ctx context.Context, l layout.Layout, arguments []string) error {
	if len(arguments) != 1 {
		return errors.New("load needs one argument: an image description (*.json), an archive (*.tar) or an image reference")
	}
	if !lifecycle.Exists(l) {
		return errNoCluster
	}
	record, err := l.ReadRecord()
	if err != nil {
		return err
	}
	target := images.Target{Address: fmt.Sprintf("127.0.0.1:%d", record.Ports.Registry)}
	reference, err := images.Load(ctx, arguments[0], lifecycle.LayerCache(l), target)
	if errors.Is(err, syscall.ECONNREFUSED) || errors.Is(err, syscall.ECONNRESET) {
		return fmt.Errorf("%w\nthe registry is not there: `status` tells more, `up` repairs", err)
	}
	if err != nil {
		return err
	}
	fmt.Println(reference)
	return nil
}

func kubeconfig(_ context.Context, l layout.Layout, arguments []string) error {
	if err := none("kubeconfig", arguments); err != nil {
		return err
	}
	if _, err := os.Stat(l.AdminKubeconfig()); err != nil {
		return errNoCluster
	}
	fmt.Println(l.AdminKubeconfig())
	return nil
}

func logs(_ context.Context, l layout.Layout, arguments []string) error {
	follow := slices.Contains(arguments, "-f")
	arguments = slices.DeleteFunc(arguments, func(argument string) bool { return argument == "-f" })
	if len(arguments) != 1 || !slices.Contains(components.Names(), arguments[0]) {
		return fmt.Errorf("logs needs a component: one of %s", strings.Join(components.Names(), ", "))
	}
	file := l.Log(arguments[0])
	if _, err := os.Stat(file); errors.Is(err, fs.ErrNotExist) {
		return errNoCluster
	}
	tail := []string{"tail", "-n", "+1"}
	if follow {
		tail = append(tail, "-F")
	}
	return replace(append(tail, file), os.Environ())
}

func execute(_ context.Context, l layout.Layout, arguments []string) error {
	if len(arguments) > 0 && arguments[0] == "--" {
		arguments = arguments[1:]
	}
	if len(arguments) == 0 {
		return errors.New("exec needs a command: such as `exec -- kubectl get pods`")
	}
	if _, err := os.Stat(l.AdminKubeconfig()); err != nil {
		return errNoCluster
	}
	// Set here too, as it is this process' PATH that finds the command.
	if err := os.Setenv("PATH", l.CommandDir()+":"+os.Getenv("PATH")); err != nil {
		return err
	}
	if err := os.Setenv("KUBECONFIG", l.AdminKubeconfig()); err != nil {
		return err
	}
	environment := slices.DeleteFunc(os.Environ(), func(variable string) bool {
		return strings.HasPrefix(variable, "BERTH_CLUSTER_") && !strings.HasPrefix(variable, "BERTH_CLUSTER_STATE=")
	})
	return replace(arguments, environment)
}

func path(_ context.Context, l layout.Layout, arguments []string) error {
	if err := none("path", arguments); err != nil {
		return err
	}
	fmt.Println(l.CommandDir())
	return nil
}

// replace runs a command in place of this program, so that signals and the exit
// code are the command's own.
func replace(argv, environment []string) error {
	program, err := exec.LookPath(argv[0])
	if err != nil {
		return err
	}
	return fmt.Errorf("%s: %w", program, syscall.Exec(program, argv, environment))
}

func none(command string, arguments []string) error {
	if len(arguments) > 0 {
		return fmt.Errorf("%s takes no argument, but got %q", command, arguments)
	}
	return nil
}
