// Package forward carries TCP connections from listeners opened outside of the
// cluster's namespace to addresses inside. A socket belongs to the namespace it was
// made in: `up` makes the listeners outside and hands them to the forwarder, which
// runs inside and so just dials.
package forward

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"os"
	"sync"
	"time"
)

// dialTimeout bounds the wait for a target; all targets are on this machine.
const dialTimeout = 5 * time.Second

// firstDescriptor is where inherited listeners begin, after the standard three.
const firstDescriptor = 3

// Listen opens the listeners to be inherited. They are files, so that closing them
// here does not stop the forwarder's.
func Listen(addresses []string) ([]*os.File, error) {
	var files []*os.File
	for _, address := range addresses {
		listener, err := net.Listen("tcp4", address)
		if err != nil {
			closeAll(files)
			return nil, err
		}
		file, err := listener.(*net.TCPListener).File()
		listener.Close()
		if err != nil {
			closeAll(files)
			return nil, err
		}
		files = append(files, file)
	}
	return files, nil
}

func closeAll(files []*os.File) {
	for _, file := range files {
		file.Close()
	}
}

// Serve forwards the inherited listeners to the targets, in order, until the
// context ends or a listener fails.
func Serve(ctx context.Context, targets []string) error {
	failed := make(chan error, len(targets))
	for i, target := range targets {
		file := os.NewFile(uintptr(firstDescriptor+i), target)
		listener, err := net.FileListener(file)
		if err != nil {
			return fmt.Errorf("descriptor %d is not a listener: %w", firstDescriptor+i, err)
		}
		file.Close()
		defer listener.Close()
		log.Printf("forwarding %s to %s", listener.Addr(), target)
		go func() { failed <- accept(ctx, listener, target) }()
	}
	select {
	case err := <-failed:
		return err
	case <-ctx.Done():
		return nil
	}
}

func accept(ctx context.Context, listener net.Listener, target string) error {
	for {
		client, err := listener.Accept()
		var temporary net.Error
		if errors.As(err, &temporary) && temporary.Temporary() { //nolint:staticcheck // running out of descriptors is all that is meant
			time.Sleep(10 * time.Millisecond)
			continue
		}
		if err != nil {
			return fmt.Errorf("accept for %s: %w", target, err)
		}
		go carry(ctx, client.(*net.TCPConn), target)
	}
}

// carry forwards one connection. It returns, with both sides closed, once both
// directions have ended or either has failed.
func carry(ctx context.Context, client *net.TCPConn, target string) {
	defer client.Close()
	dialer := net.Dialer{Timeout: dialTimeout}
	connection, err := dialer.DialContext(ctx, "tcp4", target)
	if err != nil {
		// Closing with linger 0 resets the connection: the client sees a failure
		// rather than an empty answer.
		_ = client.SetLinger(0)
		return
	}
	server := connection.(*net.TCPConn)
	defer server.Close()
	var directions sync.WaitGroup
	directions.Go(func() { copyHalf(server, client) })
	directions.Go(func() { copyHalf(client, server) })
	directions.Wait()
}

// copyHalf copies until the source ends, and passes that end on alone: the other
// direction may still have much to say. After a failure nothing more can be said
// truthfully, so both sides are reset, which also ends the other direction's copy.
func copyHalf(destination, source *net.TCPConn) {
	_, err := io.Copy(destination, source)
	if err == nil {
		err = destination.CloseWrite()
	}
	if err != nil && !errors.Is(err, net.ErrClosed) {
		for _, side := range []*net.TCPConn{destination, source} {
			_ = side.SetLinger(0)
			_ = side.Close()
		}
	}
}
