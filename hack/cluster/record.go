package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
)

// A record says whose cluster this machine's is. It stands in runDir, where
// every checkout finds it, and in the state folder, where it outlives a restart
// of the machine and marks the folder as one that down may remove.
type record struct {
	State string `json:"state"` // the state folder
	Bin   string `json:"bin"`   // the folder of its binaries
	// Made are folders outside the state folder that were not there before up:
	// paths that components have compiled in. down removes them.
	Made []string `json:"made"`
	// Sysctl holds kernel settings, as they were before up, that components change.
	Sysctl map[string]string `json:"sysctl"`
}

const recordFile = "cluster.json"

// lockMachine lets one up or down at a time work on this machine. The lock's
// file lies beside the folder that down removes, and goes when there is no
// cluster any more.
func lockMachine() (unlock func(), err error) {
	const path = runDir + ".lock"
	free, err := lockFile(path, func() { say("another up or down is running: waiting for it") })
	if err != nil {
		return nil, err
	}
	return func() {
		if !exists(runDir) {
			_ = os.Remove(path) // an empty file that stays does no harm
		}
		free()
	}, nil
}

func exists(path string) bool {
	_, err := os.Lstat(path)
	return err == nil
}

// outsidePaths are what components make outside the folders they are given.
var outsidePaths = []string{
	"/var/lib/kubelet",    // kubelet: device-plugins
	"/var/log/containers", // kubelet: links to the logs of containers
	"/var/lib/cni",        // libcni: results
	"/run/containerd",     // containerd: an empty folder
	"/var/log/pods",
	"/etc/cni",
	"/opt/cni",
	"/opt/containerd",
	"/var/lib/containerd",
	farKubeletRoot,
}

// readRecord returns nil when there is none in dir.
func readRecord(dir string) (*record, error) {
	path := filepath.Join(dir, recordFile)
	content, err := os.ReadFile(path)
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	var r record
	if err := json.Unmarshal(content, &r); err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	if !filepath.IsAbs(r.State) {
		return nil, fmt.Errorf("%s: state is %q, not an absolute path", path, r.State)
	}
	return &r, nil
}

func writeRecord(r record) error {
	content, err := json.MarshalIndent(r, "", "  ")
	if err != nil {
		return err
	}
	for _, dir := range []string{r.State, runDir} {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return err
		}
		if err := os.WriteFile(filepath.Join(dir, recordFile), append(content, '\n'), 0o644); err != nil {
			return err
		}
	}
	return nil
}

// ours tells whether up may use the state folder and down may remove it: it has
// our record, or the name .cluster, where the project's other tools put images
// before there is a cluster.
func ours(state string) (bool, error) {
	if filepath.Base(state) == ".cluster" {
		return true, nil
	}
	r, err := readRecord(state)
	return r != nil, err
}

// claimState checks that the state folder may be used: it is new, empty or ours.
func claimState(state string) error {
	entries, err := os.ReadDir(state)
	if errors.Is(err, os.ErrNotExist) {
		return os.MkdirAll(state, 0o755)
	}
	if err != nil {
		return err
	}
	if len(entries) == 0 {
		return nil
	}
	if ok, err := ours(state); ok || err != nil {
		return err
	}
	return fmt.Errorf("%s is not empty and was not made by this program; choose another folder with CLUSTER_DIR", state)
}

// afterRestart returns what of the state folder's record still counts when the
// machine's is gone with /run: the files on disk, but no kernel settings.
func afterRestart(own *record) *record {
	if own == nil {
		return nil
	}
	left := *own
	left.Sysctl = nil
	return &left
}

// absent returns those of the paths that do not exist.
func absent(paths []string) []string {
	var missing []string
	for _, path := range paths {
		if _, err := os.Lstat(path); errors.Is(err, os.ErrNotExist) {
			missing = append(missing, path)
		}
	}
	return missing
}
