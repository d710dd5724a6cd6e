// Package registry serves a container registry whose whole content is on disk. The
// library it builds on keeps blobs on disk but manifests in memory only, so this
// package records each accepted manifest and replays them at the next start.
package registry

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"time"

	"github.com/google/go-containerregistry/pkg/registry"

	"berth.dev/tests/cluster/internal/layout"
)

// maxManifest is far above any real manifest; it bounds what one request can hold in memory.
const maxManifest = 16 << 20

var manifestPath = regexp.MustCompile(`^/v2/.+/manifests/[^/]+$`)

// entry is a recorded manifest.
type entry struct {
	Path        string `json:"path"`
	ContentType string `json:"contentType"`
	Body        []byte `json:"body"`
}

type handler struct {
	next   http.Handler
	folder string
}

// Serve serves the registry in the folder until the context ends.
func Serve(ctx context.Context, address, folder string) error {
	handler, err := open(folder)
	if err != nil {
		return err
	}
	server := &http.Server{Addr: address, Handler: handler, ReadHeaderTimeout: 5 * time.Second}
	stop := context.AfterFunc(ctx, func() { _ = server.Close() })
	defer stop()
	log.Printf("serving %s on %s", folder, address)
	if err := server.ListenAndServe(); err != http.ErrServerClosed {
		return err
	}
	return nil
}

func open(folder string) (*handler, error) {
	blobs, manifests := filepath.Join(folder, "blobs"), filepath.Join(folder, "manifests")
	for _, path := range []string{blobs, manifests} {
		if err := os.MkdirAll(path, 0o755); err != nil {
			return nil, err
		}
	}
	quiet := log.New(io.Discard, "", 0)
	next := registry.New(registry.WithBlobHandler(registry.NewDiskBlobHandler(blobs)), registry.Logger(quiet))
	h := &handler{next: next, folder: manifests}
	return h, h.replay()
}

func (h *handler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if !manifestPath.MatchString(r.URL.Path) || (r.Method != http.MethodPut && r.Method != http.MethodDelete) {
		h.next.ServeHTTP(w, r)
		return
	}
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxManifest))
	if err != nil {
		http.Error(w, err.Error(), http.StatusRequestEntityTooLarge)
		return
	}
	recorded := entry{r.URL.Path, r.Header.Get("Content-Type"), body}
	r.Body = io.NopCloser(bytes.NewReader(body))
	answer := httptest.NewRecorder()
	h.next.ServeHTTP(answer, r)
	if answer.Code < http.StatusMultipleChoices {
		// On disk before the client is told, or an acknowledged push could be lost.
		if err := h.persist(r.Method, recorded); err != nil {
			http.Error(w, err.Error(), http.StatusInternalServerError)
			return
		}
	}
	for key, values := range answer.Header() {
		w.Header()[key] = values
	}
	w.WriteHeader(answer.Code)
	_, _ = w.Write(answer.Body.Bytes())
}

func (h *handler) persist(method string, recorded entry) error {
	sum := sha256.Sum256([]byte(recorded.Path))
	file := filepath.Join(h.folder, hex.EncodeToString(sum[:])+".json")
	if method == http.MethodDelete {
		return os.Remove(file)
	}
	content, err := json.Marshal(recorded)
	if err != nil {
		return err
	}
	return layout.WriteFile(file, content, 0o644)
}

// replay puts all recorded manifests again. An index is refused until the manifests
// it names are there, so it goes round until nothing more is accepted.
func (h *handler) replay() error {
	pending, err := h.recorded()
	if err != nil {
		return err
	}
	for len(pending) > 0 {
		var refused []entry
		for _, recorded := range pending {
			if !h.put(recorded) {
				refused = append(refused, recorded)
			}
		}
		if len(refused) == len(pending) {
			log.Printf("%d recorded manifests are not valid any more, such as %s", len(refused), refused[0].Path)
			return nil
		}
		pending = refused
	}
	return nil
}

func (h *handler) put(recorded entry) bool {
	request := httptest.NewRequest(http.MethodPut, recorded.Path, bytes.NewReader(recorded.Body))
	request.Header.Set("Content-Type", recorded.ContentType)
	answer := httptest.NewRecorder()
	h.next.ServeHTTP(answer, request)
	return answer.Code < http.StatusMultipleChoices
}

func (h *handler) recorded() ([]entry, error) {
	files, err := filepath.Glob(filepath.Join(h.folder, "*.json"))
	if err != nil {
		return nil, err
	}
	var entries []entry
	for _, file := range files {
		content, err := os.ReadFile(file)
		if err != nil {
			return nil, err
		}
		var recorded entry
		if err := json.Unmarshal(content, &recorded); err != nil {
			return nil, fmt.Errorf("%s: %w", file, err)
		}
		entries = append(entries, recorded)
	}
	return entries, nil
}
