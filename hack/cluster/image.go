package main

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"fmt"
	"io"
	"os"
	"path"
	"slices"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"runtime"
)

// writeImage writes a docker-archive of one image with one layer. files maps
// paths in the image, without a leading slash, to files here; all are executable.
func writeImage(archive, reference string, files map[string]string, entrypoint []string) error {
	content, err := layerTar(files)
	if err != nil {
		return fmt.Errorf("image %s: %w", reference, err)
	}
	// It is read once, on this machine: packing it well would only take time.
	layer, err := tarball.LayerFromOpener(func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(content)), nil },
		tarball.WithCompressionLevel(gzip.NoCompression))
	if err != nil {
		return fmt.Errorf("image %s: %w", reference, err)
	}
	image, err := mutate.AppendLayers(empty.Image, layer)
	if err != nil {
		return fmt.Errorf("image %s: %w", reference, err)
	}
	config, err := image.ConfigFile()
	if err != nil {
		return fmt.Errorf("image %s: %w", reference, err)
	}
	config = config.DeepCopy()
	config.OS, config.Architecture = "linux", runtime.GOARCH
	config.Config = v1.Config{Entrypoint: entrypoint}
	if image, err = mutate.ConfigFile(image, config); err != nil {
		return fmt.Errorf("image %s: %w", reference, err)
	}
	tag, err := name.NewTag(reference, name.StrictValidation)
	if err != nil {
		return err
	}
	return tarball.WriteToFile(archive, tag, image)
}

func layerTar(files map[string]string) ([]byte, error) {
	var layer bytes.Buffer
	out := tar.NewWriter(&layer)
	var targets, dirs []string
	for target := range files {
		targets = append(targets, target)
		for dir := path.Dir(target); dir != "." && !slices.Contains(dirs, dir); dir = path.Dir(dir) {
			dirs = append(dirs, dir)
		}
	}
	slices.Sort(targets)
	slices.Sort(dirs) // parents sort before their children
	for _, dir := range dirs {
		if err := out.WriteHeader(&tar.Header{Typeflag: tar.TypeDir, Name: dir + "/", Mode: 0o755}); err != nil {
			return nil, err
		}
	}
	for _, target := range targets {
		content, err := os.ReadFile(files[target])
		if err != nil {
			return nil, err
		}
		if err := out.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: target, Mode: 0o755, Size: int64(len(content))}); err != nil {
			return nil, err
		}
		if _, err := out.Write(content); err != nil {
			return nil, err
		}
	}
	if err := out.Close(); err != nil {
		return nil, err
	}
	return layer.Bytes(), nil
}
