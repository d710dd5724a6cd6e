package images

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"hash"
	"io"
	"os"
	"path/filepath"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/types"
	"github.com/klauspost/compress/gzip"
)

// Cache is a folder of compressed layers by their uncompressed content, so that an
// unchanged layer is read once but never compressed again.
type Cache struct{ Folder string }

// cachedLayer is a compressed layer in the cache.
type cachedLayer struct {
	blob     string
	diffID   v1.Hash
	Checksum v1.Hash `json:"digest"`
	Length   int64   `json:"size"`
}

// Digest is the hash of the compressed layer.
func (l *cachedLayer) Digest() (v1.Hash, error) { return l.Checksum, nil }

// DiffID is the hash of the uncompressed layer.
func (l *cachedLayer) DiffID() (v1.Hash, error) { return l.diffID, nil }

// Size is the compressed layer's.
func (l *cachedLayer) Size() (int64, error) { return l.Length, nil }

// MediaType is OCI's.
func (l *cachedLayer) MediaType() (types.MediaType, error) { return types.OCILayer, nil }

// Compressed opens the compressed layer.
func (l *cachedLayer) Compressed() (io.ReadCloser, error) { return os.Open(l.blob) }

// Uncompressed opens the layer as a tar archive.
func (l *cachedLayer) Uncompressed() (io.ReadCloser, error) {
	file, err := os.Open(l.blob)
	if err != nil {
		return nil, err
	}
	reader, err := gzip.NewReader(file)
	if err != nil {
		file.Close()
		return nil, err
	}
	return struct {
		io.Reader
		io.Closer
	}{reader, file}, nil
}

func (c Cache) layer(source Layer) (v1.Layer, error) {
	sum := sha256.New()
	if err := writeTar(sum, source); err != nil {
		return nil, err
	}
	diffID := hashOf(sum)
	if layer, err := c.read(diffID); err == nil {
		return layer, nil
	}
	fmt.Fprintf(os.Stderr, "compressing a layer: %s -> %s\n", source.From, source.To)
	return c.write(diffID, source)
}

func (c Cache) blob(diffID v1.Hash) string { return filepath.Join(c.Folder, diffID.Hex+".tar.gz") }
func (c Cache) info(diffID v1.Hash) string { return filepath.Join(c.Folder, diffID.Hex+".json") }

func (c Cache) read(diffID v1.Hash) (*cachedLayer, error) {
	content, err := os.ReadFile(c.info(diffID))
	if err != nil {
		return nil, err
	}
	layer := &cachedLayer{blob: c.blob(diffID), diffID: diffID}
	if err := json.Unmarshal(content, layer); err != nil {
		return nil, err
	}
	file, err := os.Stat(layer.blob)
	if err != nil {
		return nil, err
	}
	if file.Size() != layer.Length {
		return nil, fmt.Errorf("%s is torn", layer.blob)
	}
	return layer, nil
}

// write compresses the layer into the cache. The blob is renamed into place before
// its description is, so a description always has its blob.
func (c Cache) write(diffID v1.Hash, source Layer) (*cachedLayer, error) {
	if err := os.MkdirAll(c.Folder, 0o755); err != nil {
		return nil, err
	}
	temporary, err := os.CreateTemp(c.Folder, "*.tmp")
	if err != nil {
		return nil, err
	}
	defer os.Remove(temporary.Name())
	defer temporary.Close()
	compressed, uncompressed := sha256.New(), sha256.New()
	// The network is a loopback: time spent on better compression is never regained.
	packer, err := gzip.NewWriterLevel(io.MultiWriter(temporary, compressed), gzip.BestSpeed)
	if err != nil {
		return nil, err
	}
	if err := writeTar(io.MultiWriter(packer, uncompressed), source); err != nil {
		return nil, err
	}
	if err := packer.Close(); err != nil {
		return nil, err
	}
	if hashOf(uncompressed) != diffID {
		return nil, fmt.Errorf("the files changed while they were read: try again")
	}
	length, err := temporary.Seek(0, io.SeekCurrent)
	if err != nil {
		return nil, err
	}
	layer := &cachedLayer{blob: c.blob(diffID), diffID: diffID, Checksum: hashOf(compressed), Length: length}
	if err := os.Rename(temporary.Name(), layer.blob); err != nil {
		return nil, err
	}
	return layer, c.describe(layer)
}

func (c Cache) describe(layer *cachedLayer) error {
	content, err := json.Marshal(layer)
	if err != nil {
		return err
	}
	temporary, err := os.CreateTemp(c.Folder, "*.tmp")
	if err != nil {
		return err
	}
	defer os.Remove(temporary.Name())
	if _, err := temporary.Write(content); err != nil {
		temporary.Close()
		return err
	}
	if err := temporary.Close(); err != nil {
		return err
	}
	return os.Rename(temporary.Name(), c.info(layer.diffID))
}

func hashOf(sum hash.Hash) v1.Hash {
	return v1.Hash{Algorithm: "sha256", Hex: hex.EncodeToString(sum.Sum(nil))}
}
