package main

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"
)

// binDir returns the folder the binaries of dir's versions belong into. It lies
// outside the repository so that all checkouts share it:
// ${XDG_CACHE_HOME:-$HOME/.cache}/callgate/cluster-KEY/bin.
func binDir(dir string) (string, error) {
	if _, err := os.Stat(filepath.Join(dir, "kubernetes", "go.mod")); err != nil {
		return "", fmt.Errorf("run this from the folder hack/cluster of the repository: %w", err)
	}
	key, err := cacheKey(dir, steps)
	if err != nil {
		return "", err
	}
	cache, err := os.UserCacheDir()
	if err != nil {
		return "", fmt.Errorf("where to keep the binaries (set XDG_CACHE_HOME): %w", err)
	}
	return filepath.Join(cache, "callgate", "cluster-"+key, "bin"), nil
}

// build makes every binary that bin lacks, from the sources pinned in dir, and
// installs Debian packages that are missing. It returns at once when nothing is
// missing, goes on where an interrupted build stopped, and waits for another
// build into the same folder.
func build(dir, bin string) error {
	missing := missingSteps(bin)
	if len(missing) == 0 {
		return nil
	}
	if err := os.MkdirAll(bin, 0o755); err != nil {
		return err
	}
	unlock, err := lockFile(filepath.Join(filepath.Dir(bin), "lock"), func() {
		say("another build into %s is running: waiting for it", bin)
	})
	if err != nil {
		return err
	}
	defer unlock()
	missing = missingSteps(bin)
	if len(missing) == 0 {
		return nil
	}
	// What an interrupted build left; nobody else builds here now.
	if stale, err := filepath.Glob(filepath.Join(filepath.Dir(bin), "build-*")); err == nil {
		for _, folder := range stale {
			_ = os.RemoveAll(folder) // costs disk space only
		}
	}
	if len(missing) == len(steps) {
		say("building a Kubernetes node from source into %s: about ten minutes on two cores the first time, never again for these versions", bin)
	}
	if err := installPackages(buildPackages); err != nil {
		return err
	}
	for i, s := range steps {
		if complete(bin, s) {
			continue
		}
		fmt.Fprintf(os.Stderr, "[%d/%d] %s %s … ", i+1, len(steps), s.name, shortVersion(s.version))
		start := time.Now()
		if err := buildStep(dir, bin, s); err != nil {
			fmt.Fprintln(os.Stderr, "failed")
			return err
		}
		fmt.Fprintf(os.Stderr, "%.0f s\n", time.Since(start).Seconds())
	}
	return nil
}

// shortVersion is for people: a release without its v, of an untagged commit the day.
func shortVersion(version string) string {
	if day, ok := strings.CutPrefix(version, "v0.0.0-"); ok && len(day) > 8 {
		return "of " + day[:8]
	}
	return strings.TrimPrefix(version, "v")
}

func missingSteps(bin string) []step {
	var missing []step
	for _, s := range steps {
		if !complete(bin, s) {
			missing = append(missing, s)
		}
	}
	return missing
}

// complete tells whether all files of s are in bin.
func complete(bin string, s step) bool {
	for _, file := range s.files() {
		if _, err := os.Stat(filepath.Join(bin, file)); err != nil {
			return false
		}
	}
	return true
}

// buildStep builds into a folder of its own first: a file in bin is whole.
func buildStep(dir, bin string, s step) error {
	tmp, err := os.MkdirTemp(filepath.Dir(bin), "build-")
	if err != nil {
		return err
	}
	defer func() { _ = os.RemoveAll(tmp) }() // a leftover costs disk space only
	for _, pkg := range s.packages() {
		cmd := goCommand(dir, tmp, s, pkg)
		output, err := cmd.CombinedOutput()
		if err != nil {
			return fmt.Errorf("building %s %s: %w\n%s: %s", s.name, s.version, err, strings.Join(cmd.Args, " "), tail(output, 20))
		}
		built := filepath.Join(tmp, s.programs[pkg])
		if s.module == "" {
			built = filepath.Join(tmp, installedName(pkg))
		}
		if err := os.Rename(built, filepath.Join(bin, s.programs[pkg])); err != nil {
			return err
		}
	}
	for link, target := range s.links {
		path := filepath.Join(bin, link)
		if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
			return err
		}
		if err := os.Symlink(target, path); err != nil {
			return err
		}
	}
	return nil
}

// goCommand builds one package: in its own module, or at its pinned version
// with "go install", which alone may build a main package of another module.
func goCommand(dir, out string, s step, pkg string) *exec.Cmd {
	args := []string{"install"}
	if s.module != "" {
		args = []string{"build", "-o", filepath.Join(out, s.programs[pkg])}
	}
	args = append(args, "-trimpath", "-buildvcs=false")
	args = append(args, s.flags...)
	if s.module == "" {
		pkg += "@" + s.version
	}
	cmd := exec.Command("go", append(args, pkg)...)
	cmd.Dir = filepath.Join(dir, s.module)
	cgo := "0"
	if s.cgo {
		cgo = "1"
	}
	// GOFLAGS and go.work of whoever calls must not change what is built.
	cmd.Env = append(os.Environ(), "CGO_ENABLED="+cgo, "GOFLAGS=", "GOWORK=off", "GOBIN="+out)
	return cmd
}

// installedName is the file name "go install" gives to a package: its last
// path element that is no major version.
func installedName(pkg string) string {
	name := filepath.Base(pkg)
	if len(name) > 1 && name[0] == 'v' && strings.Trim(name[1:], "0123456789") == "" {
		name = filepath.Base(filepath.Dir(pkg))
	}
	return name
}

// tail returns the last n lines of text.
func tail(text []byte, n int) []byte {
	text = bytes.TrimRight(text, "\n")
	for i := len(text) - 1; i >= 0; i-- {
		if text[i] == '\n' {
			if n--; n == 0 {
				return text[i+1:]
			}
		}
	}
	return text
}
