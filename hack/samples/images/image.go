package main

import (
	"cmp"
	"fmt"
	"os"
	"runtime"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/static"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/types"
)

// repository is where all images are named; localhost is no host that anything
// is pulled from, so a missing image can only be "not loaded".
const repository = "localhost/callgate/"

// build makes the image of a recipe from its tree. Its reference ends in the
// digest over config and layers, so unchanged input keeps its name.
func build(r recipe, t tree) (name.Tag, v1.Image, error) {
	none := name.Tag{}
	layer, err := t.tar()
	if err != nil {
		return none, nil, err
	}
	// Not compressed: the archive goes to this machine's containerd and no further.
	img, err := mutate.AppendLayers(empty.Image, static.NewLayer(layer, types.DockerUncompressedLayer))
	if err != nil {
		return none, nil, err
	}
	config, err := img.ConfigFile()
	if err != nil {
		return none, nil, err
	}
	config = config.DeepCopy()
	config.Architecture, config.OS = runtime.GOARCH, "linux"
	config.Created = v1.Time{Time: time.Unix(0, 0).UTC()}
	for i := range config.History {
		config.History[i] = v1.History{Created: config.Created, CreatedBy: "hack/samples/images"}
	}
	config.Config = v1.Config{
		User:       cmp.Or(r.user, "65532:65532"), // numeric: runAsNonRoot refuses a name
		Env:        []string{"PATH=" + r.path},
		Entrypoint: r.entrypoint,
		WorkingDir: "/",
	}
	if r.volume != "" {
		config.Config.Volumes = map[string]struct{}{r.volume: {}}
	}
	if img, err = mutate.ConfigFile(img, config); err != nil {
		return none, nil, err
	}
	digest, err := img.ConfigName()
	if err != nil {
		return none, nil, err
	}
	ref, err := name.NewTag(repository+r.name+":"+digest.Hex[:12], name.StrictValidation)
	return ref, img, err
}

// write puts the archive in place in one step, so that a build that is
// interrupted leaves no half archive under a good name.
func write(file string, ref name.Tag, img v1.Image) error {
	part := file + ".part"
	if err := tarball.WriteToFile(part, ref, img); err != nil {
		return fmt.Errorf("write %s: %w", part, err)
	}
	return os.Rename(part, file)
}
