//go:build linux

package runner

import (
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
)

// Bounds of what is masked. What is beyond them is not.
const (
	maxSecretBytes  = 64 << 10 // of one value
	maxSecretsTotal = 1 << 20
	maxSecretValues = 1024
	// maxSecretDepth bounds folders in folders; a Secret's keys have few.
	maxSecretDepth = 8
)

// secretValues collects values up to the bounds.
type secretValues struct {
	values [][]byte
	total  int
}

func (v *secretValues) full() bool {
	return len(v.values) >= maxSecretValues || v.total >= maxSecretsTotal
}

func (v *secretValues) add(value []byte) {
	if len(value) <= maxSecretBytes && len(v.values) < maxSecretValues && v.total+len(value) <= maxSecretsTotal {
		v.values = append(v.values, value)
		v.total += len(value)
	}
}

// readSecrets reads the values that are masked: of the variables in env that have
// one of the names, and of every file in the folders. A folder that cannot be
// read is an error: its values would pass unseen.
func readSecrets(env, names, folders []string) (*secrets, error) {
	var v secretValues
	for _, name := range names {
		for _, entry := range env {
			if value, found := strings.CutPrefix(entry, name+"="); found {
				v.add([]byte(value))
			}
		}
	}
	for _, folder := range folders {
		if err := v.addFolder(folder, 0); err != nil {
			return nil, fmt.Errorf("read the Secrets whose values are masked: %w", err)
		}
	}
	return newSecrets(v.values), nil
}

func (v *secretValues) addFolder(folder string, depth int) error {
	entries, err := os.ReadDir(folder)
	if err != nil {
		return err
	}
	for _, e := range entries {
		path := filepath.Join(folder, e.Name())
		// The kubelet keeps all files twice, once under names that begin so.
		if strings.HasPrefix(e.Name(), "..") || v.full() {
			continue
		}
		info, err := os.Stat(path)
		switch {
		case err != nil: // a link to nothing
		case info.IsDir() && depth < maxSecretDepth:
			err = v.addFolder(path, depth+1)
		case info.Mode().IsRegular() && info.Size() <= maxSecretBytes:
			err = v.addFile(path)
		}
		if err != nil && !os.IsNotExist(err) && !os.IsPermission(err) {
			return err // what may not be read is hidden from the tool, too
		}
	}
	return nil
}

func (v *secretValues) addFile(path string) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	value, err := io.ReadAll(io.LimitReader(f, maxSecretBytes+1))
	if err != nil {
		return err
	}
	v.add(value)
	return nil
}
