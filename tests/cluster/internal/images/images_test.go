package images

import (
	"os"
	"path/filepath"
	"testing"
	"time"
)

func write(t *testing.T, path string, mode os.FileMode) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(filepath.Base(path)), mode); err != nil {
		t.Fatal(err)
	}
}

// digestOf builds an image from a fresh copy of the same files.
func digestOf(t *testing.T, cache Cache, when time.Time) string {
	t.Helper()
	folder := t.TempDir()
	write(t, filepath.Join(folder, "app", "b.js"), 0o600)
	write(t, filepath.Join(folder, "app", "a", "run"), 0o700)
	if err := os.Symlink("b.js", filepath.Join(folder, "app", "link")); err != nil {
		t.Fatal(err)
	}
	if err := os.Chtimes(filepath.Join(folder, "app", "b.js"), when, when); err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(folder, "image.json")
	content := `{"name": "t:1", "layers": [{"from": "app", "to": "/srv/app"}], "env": {"B": "2", "A": "1"}, "user": "1:1"}`
	if err := os.WriteFile(file, []byte(content), 0o644); err != nil {
		t.Fatal(err)
	}
	description, err := ReadDescription(file)
	if err != nil {
		t.Fatal(err)
	}
	image, err := Build(description, cache)
	if err != nil {
		t.Fatal(err)
	}
	digest, err := image.Digest()
	if err != nil {
		t.Fatal(err)
	}
	return digest.String()
}

func TestEqualFilesMakeAnEqualImage(t *testing.T) {
	warm := Cache{t.TempDir()}
	first := digestOf(t, warm, time.Unix(1, 0))
	for name, cache := range map[string]Cache{"the same cache": warm, "an empty cache": {t.TempDir()}} {
		if second := digestOf(t, cache, time.Now()); second != first {
			t.Errorf("%s: got %s, want %s", name, second, first)
		}
	}
}

func TestATornCacheIsNotUsed(t *testing.T) {
	cache := Cache{t.TempDir()}
	first := digestOf(t, cache, time.Now())
	blobs, _ := filepath.Glob(filepath.Join(cache.Folder, "*.tar.gz"))
	if len(blobs) != 1 {
		t.Fatalf("got %d blobs, want 1", len(blobs))
	}
	if err := os.Truncate(blobs[0], 10); err != nil {
		t.Fatal(err)
	}
	if second := digestOf(t, cache, time.Now()); second != first {
		t.Errorf("got %s, want %s", second, first)
	}
	if info, err := os.Stat(blobs[0]); err != nil || info.Size() == 10 {
		t.Errorf("the torn blob was not replaced: %v", err)
	}
}

func TestDescriptionsThatAreRefused(t *testing.T) {
	for name, content := range map[string]string{
		"no name":          `{"layers": []}`,
		"unknown member":   `{"name": "a:1", "layer": []}`,
		"relative to":      `{"name": "a:1", "layers": [{"from": "x", "to": "y"}]}`,
		"mode not octal":   `{"name": "a:1", "layers": [{"from": "x", "to": "/y", "mode": "0799"}]}`,
		"unknown variable": `{"name": "a:1", "layers": [{"from": "${BERTH_NO_SUCH_VARIABLE}", "to": "/y"}]}`,
	} {
		file := filepath.Join(t.TempDir(), "image.json")
		if err := os.WriteFile(file, []byte(content), 0o644); err != nil {
			t.Fatal(err)
		}
		if _, err := ReadDescription(file); err == nil {
			t.Errorf("%s: was accepted", name)
		}
	}
}

func TestWithoutRegistry(t *testing.T) {
	for given, want := range map[string]string{
		"localhost/a:1": "a:1", "reg.test:5000/a/b:1": "a/b:1", "a/b:1": "a/b:1", "a:1": "a:1",
	} {
		if got := withoutRegistry(given); got != want {
			t.Errorf("%s: got %s, want %s", given, got, want)
		}
	}
}
