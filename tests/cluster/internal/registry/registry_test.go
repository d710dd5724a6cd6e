package registry

import (
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/v1/random"
	"github.com/google/go-containerregistry/pkg/v1/remote"
)

// start serves a folder and returns the registry's address.
func start(t *testing.T, folder string) string {
	t.Helper()
	handler, err := open(folder)
	if err != nil {
		t.Fatal(err)
	}
	server := httptest.NewServer(handler)
	t.Cleanup(server.Close)
	return strings.TrimPrefix(server.URL, "http://")
}

func TestContentSurvivesARestart(t *testing.T) {
	folder := t.TempDir()
	index, err := random.Index(64, 1, 2)
	if err != nil {
		t.Fatal(err)
	}
	want, err := index.Digest()
	if err != nil {
		t.Fatal(err)
	}
	tag, err := name.NewTag(start(t, folder) + "/some/index:1")
	if err != nil {
		t.Fatal(err)
	}
	if err := remote.WriteIndex(tag, index); err != nil {
		t.Fatal(err)
	}

	again, err := name.NewTag(start(t, folder) + "/some/index:1")
	if err != nil {
		t.Fatal(err)
	}
	found, err := remote.Index(again)
	if err != nil {
		t.Fatal(err)
	}
	if got, err := found.Digest(); err != nil || got != want {
		t.Fatalf("got %s, %v, want %s", got, err, want)
	}
	manifest, err := found.IndexManifest()
	if err != nil {
		t.Fatal(err)
	}
	image, err := found.Image(manifest.Manifests[0].Digest)
	if err != nil {
		t.Fatal(err)
	}
	if layers, err := image.Layers(); err != nil || len(layers) != 1 {
		t.Fatalf("got %d layers, %v", len(layers), err)
	}
}
