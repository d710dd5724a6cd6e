package components

import (
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"net/http"
	"time"

	"berth.dev/tests/cluster/internal/layout"
	"berth.dev/tests/cluster/internal/netns"
)

// healthTimeout bounds one check. A busy machine answers late, a dead component not at all.
const healthTimeout = 2 * time.Second

// answers checks that a URL inside the namespace answers with 200.
func answers(url string) func(context.Context, layout.Layout) error {
	return func(ctx context.Context, l layout.Layout) error {
		return fetch(ctx, netns.Dialer(l.Name), url)
	}
}

func fetch(ctx context.Context, dial func(context.Context, string, string) (net.Conn, error), url string) error {
	ctx, cancel := context.WithTimeout(ctx, healthTimeout)
	defer cancel()
	client := &http.Client{Transport: &http.Transport{
		DialContext:       dial,
		DisableKeepAlives: true,
		// Only liveness is asked here; some components serve a certificate they made themselves.
		TLSClientConfig: &tls.Config{InsecureSkipVerify: true}, //nolint:gosec
	}}
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return err
	}
	response, err := client.Do(request)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	body, _ := io.ReadAll(io.LimitReader(response.Body, 200))
	if response.StatusCode != http.StatusOK {
		return fmt.Errorf("%s: %s: %s", url, response.Status, body)
	}
	return nil
}

// accepts checks that something listens on a unix socket.
func accepts(path string) error {
	connection, err := net.DialTimeout("unix", path, healthTimeout)
	if err != nil {
		return err
	}
	return connection.Close()
}
