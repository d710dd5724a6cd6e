package images

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/http"
	"os"
	"runtime"
	"strings"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/remote"

	"berth.dev/tests/cluster/internal/layout"
)

// Target is a registry to push to.
type Target struct {
	Address string
	// Dial is how to reach it; nil is the plain way.
	Dial func(context.Context, string, string) (net.Conn, error)
}

// Load pushes an image, given as a description, an archive or a reference, and
// returns the reference, with digest, that pods should use.
func Load(ctx context.Context, argument string, cache Cache, target Target) (string, error) {
	scratch, err := os.MkdirTemp("", "berth-image-")
	if err != nil {
		return "", err
	}
	defer os.RemoveAll(scratch)
	image, repository, err := find(ctx, argument, cache, scratch)
	if err != nil {
		return "", err
	}
	return Push(ctx, image, repository, target)
}

func find(ctx context.Context, argument string, cache Cache, scratch string) (v1.Image, string, error) {
	info, err := os.Stat(argument)
	if errors.Is(err, fs.ErrNotExist) {
		return pull(ctx, argument)
	}
	if err != nil {
		return nil, "", err
	}
	if info.IsDir() {
		return nil, "", fmt.Errorf("%s is a folder: give an image description (*.json) or an archive (*.tar)", argument)
	}
	if !strings.HasSuffix(argument, ".json") {
		return readArchive(argument, scratch)
	}
	description, err := ReadDescription(argument)
	if err != nil {
		return nil, "", err
	}
	image, err := Build(description, cache)
	return image, description.Name, err
}

// pull finds an image in another registry.
func pull(ctx context.Context, argument string) (v1.Image, string, error) {
	if strings.HasSuffix(argument, ".json") || strings.HasSuffix(argument, ".tar") {
		return nil, "", fmt.Errorf("there is no file %s", argument)
	}
	reference, err := name.ParseReference(argument)
	if err != nil {
		return nil, "", fmt.Errorf("%q is neither a file nor an image reference: %w", argument, err)
	}
	platform := v1.Platform{OS: "linux", Architecture: runtime.GOARCH}
	image, err := remote.Image(reference, remote.WithContext(ctx), remote.WithPlatform(platform))
	if err != nil {
		return nil, "", fmt.Errorf("%s is no file here, and its registry cannot be used: %w", argument, err)
	}
	repository := reference.Context().RepositoryStr()
	if tag, isTag := reference.(name.Tag); isTag {
		repository += ":" + tag.TagStr()
	}
	return image, repository, nil
}

// Push writes the image to the registry under its name, layers that are there
// already excepted.
func Push(ctx context.Context, image v1.Image, repository string, target Target) (string, error) {
	tag, err := name.NewTag(target.Address+"/"+repository, name.Insecure)
	if err != nil {
		return "", fmt.Errorf("%q is no image name: %w", repository, err)
	}
	options := []remote.Option{remote.WithContext(ctx)}
	if target.Dial != nil {
		options = append(options, remote.WithTransport(&http.Transport{DialContext: target.Dial}))
	}
	if err := remote.Write(tag, image, options...); err != nil {
		return "", fmt.Errorf("push %s: %w", repository, err)
	}
	digest, err := image.Digest()
	if err != nil {
		return "", err
	}
	return fmt.Sprintf("%s/%s:%s@%s", layout.RegistryHost, tag.RepositoryStr(), tag.TagStr(), digest), nil
}
