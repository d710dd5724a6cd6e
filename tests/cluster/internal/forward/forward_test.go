package forward

import (
	"context"
	"errors"
	"io"
	"net"
	"runtime"
	"syscall"
	"testing"
	"time"
)

// pipe returns a client's connection that is carried to the target.
func pipe(t *testing.T, target string) *net.TCPConn {
	t.Helper()
	listener, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	client, err := net.Dial("tcp4", listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { client.Close() })
	accepted, err := listener.Accept()
	if err != nil {
		t.Fatal(err)
	}
	go carry(context.Background(), accepted.(*net.TCPConn), target)
	_ = client.SetDeadline(time.Now().Add(5 * time.Second))
	return client.(*net.TCPConn)
}

// serve runs one connection of a server and returns its address.
func serve(t *testing.T, handle func(*net.TCPConn)) string {
	t.Helper()
	listener, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { listener.Close() })
	go func() {
		connection, err := listener.Accept()
		if err == nil {
			handle(connection.(*net.TCPConn))
		}
	}()
	return listener.Addr().String()
}

func TestHalfCloseLetsTheAnswerThrough(t *testing.T) {
	target := serve(t, func(connection *net.TCPConn) {
		defer connection.Close()
		request, _ := io.ReadAll(connection) // returns only when the client's end is carried over
		_, _ = connection.Write(append([]byte("answer to "), request...))
	})
	client := pipe(t, target)
	if _, err := client.Write([]byte("question")); err != nil {
		t.Fatal(err)
	}
	if err := client.CloseWrite(); err != nil {
		t.Fatal(err)
	}
	answer, err := io.ReadAll(client)
	if err != nil || string(answer) != "answer to question" {
		t.Fatalf("got %q, %v", answer, err)
	}
}

func TestClosedTargetResets(t *testing.T) {
	listener, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	target := listener.Addr().String()
	listener.Close()
	if _, err := io.ReadAll(pipe(t, target)); !errors.Is(err, syscall.ECONNRESET) {
		t.Fatalf("got %v, want a reset", err)
	}
}

func TestResetOfTheServerReachesTheClient(t *testing.T) {
	target := serve(t, func(connection *net.TCPConn) {
		_, _ = connection.Read(make([]byte, 1))
		_ = connection.SetLinger(0)
		connection.Close()
	})
	client := pipe(t, target)
	if _, err := client.Write([]byte("x")); err != nil {
		t.Fatal(err)
	}
	if _, err := io.ReadAll(client); !errors.Is(err, syscall.ECONNRESET) {
		t.Fatalf("got %v, want a reset", err)
	}
}

func TestNoGoroutineIsLeft(t *testing.T) {
	before := runtime.NumGoroutine()
	for range 20 {
		target := serve(t, func(connection *net.TCPConn) { _, _ = io.Copy(io.Discard, connection); connection.Close() })
		client := pipe(t, target)
		_ = client.SetLinger(0) // a client that is gone without a word
		client.Close()
	}
	for range 100 {
		if runtime.NumGoroutine() <= before {
			return
		}
		time.Sleep(20 * time.Millisecond)
	}
	t.Fatalf("%d goroutines, %d before", runtime.NumGoroutine(), before)
}
