// Package images builds images from files, without a base image or a daemon, and
// pushes these, archives, and images of other registries to the cluster's registry.
package images

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"runtime"
	"strconv"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/types"
)

// Description is an image as a file describes it: one layer for each entry.
type Description struct {
	Name         string            `json:"name"`
	Layers       []Layer           `json:"layers"`
	Entrypoint   []string          `json:"entrypoint"`
	Cmd          []string          `json:"cmd"`
	Env          map[string]string `json:"env"`
	User         string            `json:"user"`
	Workdir      string            `json:"workdir"`
	ExposedPorts []string          `json:"exposedPorts"`
}

// Layer copies a file or a folder's content into the image.
type Layer struct {
	// From is a path; a relative one is relative to the description.
	From string `json:"from"`
	// To is the path in the image: the file's own, or the folder that receives the content.
	To string `json:"to"`
	// Mode is octal. It is the file's mode, or the receiving folder's; files in a
	// folder are 0755 if their owner may execute them, else 0644.
	Mode string `json:"mode"`
	// Archive says that From is a tar archive, to be unpacked below To with its own modes.
	Archive bool `json:"archive"`
}

// ReadDescription reads and checks a description.
func ReadDescription(file string) (Description, error) {
	var description Description
	content, err := os.ReadFile(file)
	if err != nil {
		return description, err
	}
	decoder := json.NewDecoder(bytes.NewReader(content))
	decoder.DisallowUnknownFields()
	if err := decoder.Decode(&description); err != nil {
		return description, fmt.Errorf("%s: %w", file, err)
	}
	if description.Name == "" {
		return description, fmt.Errorf(`%s: "name" is missing: such as "berth:dev"`, file)
	}
	folder, err := filepath.Abs(filepath.Dir(file))
	if err != nil {
		return description, err
	}
	for i := range description.Layers {
		if err := description.Layers[i].resolve(folder); err != nil {
			return description, fmt.Errorf("%s: layer %d: %w", file, i+1, err)
		}
	}
	return description, nil
}

func (l *Layer) resolve(folder string) error {
	if l.From == "" || !path.IsAbs(l.To) {
		return fmt.Errorf(`"from" is needed, and "to" must be an absolute path, not %q`, l.To)
	}
	undefined := ""
	l.From = os.Expand(l.From, func(name string) string {
		value, defined := os.LookupEnv(name)
		if !defined {
			undefined = name
		}
		return value
	})
	if undefined != "" {
		return fmt.Errorf("the environment variable %s is not set", undefined)
	}
	if !filepath.IsAbs(l.From) {
		l.From = filepath.Join(folder, l.From)
	}
	_, err := l.mode(0)
	return err
}

// mode is the given mode, or the fallback if there is none.
func (l *Layer) mode(fallback int64) (int64, error) {
	if l.Mode == "" {
		return fallback, nil
	}
	mode, err := strconv.ParseInt(l.Mode, 8, 64)
	if err != nil || mode < 0 || mode > 0o7777 {
		return 0, fmt.Errorf(`"mode" is %q, but must be octal, such as "0755"`, l.Mode)
	}
	return mode, nil
}

// Build makes the image. Equal files make an equal image: times, owners and order
// of files do not count.
func Build(description Description, cache Cache) (v1.Image, error) {
	image := mutate.MediaType(empty.Image, types.OCIManifestSchema1)
	image = mutate.ConfigMediaType(image, types.OCIConfigJSON)
	for _, source := range description.Layers {
		layer, err := cache.layer(source)
		if err != nil {
			return nil, fmt.Errorf("image %s: layer from %s: %w", description.Name, source.From, err)
		}
		image, err = mutate.Append(image, mutate.Addendum{Layer: layer, MediaType: types.OCILayer})
		if err != nil {
			return nil, err
		}
	}
	file, err := image.ConfigFile()
	if err != nil {
		return nil, err
	}
	file = file.DeepCopy()
	file.OS, file.Architecture = "linux", runtime.GOARCH
	file.Config = description.config()
	return mutate.ConfigFile(image, file)
}

func (d Description) config() v1.Config {
	config := v1.Config{Entrypoint: d.Entrypoint, Cmd: d.Cmd, User: d.User, WorkingDir: d.Workdir}
	for _, name := range sortedKeys(d.Env) {
		config.Env = append(config.Env, name+"="+d.Env[name])
	}
	for _, port := range d.ExposedPorts {
		if config.ExposedPorts == nil {
			config.ExposedPorts = map[string]struct{}{}
		}
		config.ExposedPorts[port] = struct{}{}
	}
	return config
}

// normalMode keeps of a file's mode only what matters in an image.
func normalMode(mode fs.FileMode) int64 {
	if mode.Perm()&0o100 != 0 {
		return 0o755
	}
	return 0o644
}
