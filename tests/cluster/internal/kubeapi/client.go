// Package kubeapi is the little of a Kubernetes client that starting a cluster
// needs. It dials inside the namespace, so it does not depend on the forwarder.
package kubeapi

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"time"

	"berth.dev/tests/cluster/internal/layout"
	"berth.dev/tests/cluster/internal/netns"
	"berth.dev/tests/cluster/internal/pki"
)

// requestTimeout bounds each call: everything is on one machine, and an API server
// that has lost its etcd would keep a caller waiting.
const requestTimeout = 3 * time.Second

// Client talks to the API server as a cluster administrator.
type Client struct{ http *http.Client }

// New reads the bootstrap certificate of the cluster.
func New(l layout.Layout) (*Client, error) {
	pair, err := tls.LoadX509KeyPair(l.PKI(pki.Bootstrap+".crt"), l.PKI(pki.Bootstrap+".key"))
	if err != nil {
		return nil, err
	}
	authority, err := os.ReadFile(l.PKI("ca.crt"))
	if err != nil {
		return nil, err
	}
	pool := x509.NewCertPool()
	pool.AppendCertsFromPEM(authority)
	transport := &http.Transport{
		DialContext:     netns.Dialer(l.Name),
		TLSClientConfig: &tls.Config{RootCAs: pool, Certificates: []tls.Certificate{pair}},
	}
	return &Client{&http.Client{Transport: transport, Timeout: requestTimeout}}, nil
}

// Get reads an object, or any path, into the value unless that is nil.
func (c *Client) Get(ctx context.Context, path string, into any) error {
	return c.do(ctx, http.MethodGet, path, "", nil, into)
}

// Apply creates or updates an object by server-side apply. The path names the object.
func (c *Client) Apply(ctx context.Context, path string, object any) error {
	body, err := json.Marshal(object)
	if err != nil {
		return err
	}
	return c.do(ctx, http.MethodPatch, path+"?fieldManager=berth-cluster&force=true", "application/apply-patch+yaml", body, nil)
}

func (c *Client) do(ctx context.Context, method, path, contentType string, body []byte, into any) error {
	request, err := http.NewRequestWithContext(ctx, method, "https://"+layout.APIAddress+path, bytes.NewReader(body))
	if err != nil {
		return err
	}
	if contentType != "" {
		request.Header.Set("Content-Type", contentType)
	}
	response, err := c.http.Do(request)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	content, err := io.ReadAll(response.Body)
	if err != nil {
		return err
	}
	if response.StatusCode >= http.StatusMultipleChoices {
		return fmt.Errorf("%s %s: %s: %.300s", method, path, response.Status, content)
	}
	if into == nil {
		return nil
	}
	return json.Unmarshal(content, into)
}
