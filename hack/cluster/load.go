//go:build linux

package main

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// load imports the images of a docker-archive or OCI tar file. The cluster of
// this state folder has to run.
func load(state, archive string) error {
	info, err := os.Stat(archive)
	if err != nil {
		return err
	}
	if !info.Mode().IsRegular() {
		return fmt.Errorf("%s is not a file", archive)
	}
	r, err := readRecord(runDir)
	if err != nil {
		return err
	}
	if r == nil {
		return fmt.Errorf("no cluster runs on this machine: start it with up")
	}
	if r.State != state {
		return fmt.Errorf("the cluster on this machine is that of %s, not of %s", r.State, state)
	}
	names, err := importImages(newLayout(r.State, r.Bin), archive)
	if err != nil {
		return err
	}
	for _, name := range names {
		fmt.Println(name)
	}
	return nil
}

// importImages returns the names of the images in the archive.
func importImages(l layout, archive string) ([]string, error) {
	cmd := exec.Command(l.program("ctr"), "--address", containerdSocket, "--namespace", "k8s.io", "images", "import", "--local", archive)
	out, err := cmd.CombinedOutput()
	if err != nil {
		return nil, fmt.Errorf("import %s: %w: %s", archive, err, tail(out, 5))
	}
	return importedNames(string(out)), nil
}

// importedNames takes the names from the lines "unpacking NAME (sha256:…)...done"
// of ctr.
func importedNames(out string) []string {
	var names []string
	for _, line := range strings.Split(out, "\n") {
		if rest, ok := strings.CutPrefix(line, "unpacking "); ok {
			name, _, _ := strings.Cut(rest, " ")
			names = append(names, name)
		}
	}
	return names
}

// loadImages makes and imports the images of the cluster's own pods: pause,
// which holds a pod's namespaces, and CoreDNS.
func loadImages(l layout) error {
	for program, image := range map[string]string{"pause": pauseImage, "coredns": corednsImage} {
		archive := filepath.Join(l.state, program+".tar")
		if err := writeImage(archive, image, map[string]string{program: l.program(program)}, []string{"/" + program}); err != nil {
			return err
		}
		if _, err := importImages(l, archive); err != nil {
			return err
		}
	}
	return nil
}
