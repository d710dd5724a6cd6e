package images

import (
	"archive/tar"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
)

// Annotations that name an image in an OCI archive, best first.
var nameAnnotations = []string{"io.containerd.image.name", "org.opencontainers.image.ref.name"}

// readArchive reads an archive as `docker save` or `podman save` writes it, or an
// OCI layout in a tar archive.
func readArchive(file, scratch string) (v1.Image, string, error) {
	opener := func() (io.ReadCloser, error) { return os.Open(file) }
	manifest, err := tarball.LoadManifest(opener)
	if err != nil {
		return readOCI(file, scratch)
	}
	if len(manifest) != 1 || len(manifest[0].RepoTags) == 0 {
		return nil, "", fmt.Errorf("%s holds %d images, but must hold one, with a tag", file, len(manifest))
	}
	image, err := tarball.Image(opener, nil)
	return image, withoutRegistry(manifest[0].RepoTags[0]), err
}

// readOCI unpacks the archive into the scratch folder, from which the image is read
// as it is pushed.
func readOCI(file, scratch string) (v1.Image, string, error) {
	if err := unpack(file, scratch); err != nil {
		return nil, "", fmt.Errorf("%s is neither a docker nor an OCI archive: %w", file, err)
	}
	index, err := layout.ImageIndexFromPath(scratch)
	if err != nil {
		return nil, "", fmt.Errorf("%s is neither a docker nor an OCI archive: %w", file, err)
	}
	manifest, err := index.IndexManifest()
	if err != nil {
		return nil, "", err
	}
	for _, descriptor := range manifest.Manifests {
		if descriptor.MediaType.IsImage() {
			image, err := index.Image(descriptor.Digest)
			return image, archiveName(file, descriptor.Annotations), err
		}
	}
	return nil, "", fmt.Errorf("%s has no image at its top level", file)
}

// archiveName is the image's name in the archive or, where that is only a tag, the file's name.
func archiveName(file string, annotations map[string]string) string {
	base := strings.TrimSuffix(filepath.Base(file), ".tar")
	for _, annotation := range nameAnnotations {
		name := annotations[annotation]
		if strings.ContainsAny(name, ":/") {
			return withoutRegistry(name)
		}
		if name != "" {
			return base + ":" + name
		}
	}
	return base
}

// withoutRegistry strips a leading registry, which holds a dot or a colon by convention.
func withoutRegistry(name string) string {
	first, rest, found := strings.Cut(name, "/")
	if found && (first == "localhost" || strings.ContainsAny(first, ".:")) {
		return rest
	}
	return name
}

func unpack(file, folder string) error {
	opened, err := os.Open(file)
	if err != nil {
		return err
	}
	defer opened.Close()
	reader := tar.NewReader(opened)
	for {
		entry, err := reader.Next()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		if entry.Typeflag != tar.TypeReg {
			continue
		}
		if !filepath.IsLocal(entry.Name) {
			return fmt.Errorf("the member %q leads out of the archive", entry.Name)
		}
		if err := unpackFile(reader, filepath.Join(folder, entry.Name)); err != nil {
			return err
		}
	}
}

func unpackFile(from io.Reader, path string) error {
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	file, err := os.Create(path)
	if err != nil {
		return err
	}
	if _, err := io.Copy(file, from); err != nil {
		file.Close()
		return err
	}
	return file.Close()
}
