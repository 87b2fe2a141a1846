package main

import (
	"bytes"
	"context"
	"crypto/md5" //nolint:gosec // only where a Debian index gives nothing better
	"crypto/sha256"
	"crypto/sha512"
	"debug/elf"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"io"
	"maps"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// aptOptions: root may use a cache that apt's own user cannot reach, and no
// server may make us wait for ever.
const aptOptions = "-o=APT::Sandbox::User=root -o=Acquire::Retries=3 -o=Acquire::http::Timeout=60"

// deb is one package file as apt's index describes it.
type deb struct {
	name string // of the file, with the version
	size int64
	sum  string // "SHA256:…"
}

// fetchDebs returns the files of Debian packages in their current versions,
// taken from the cache when their checksum fits, else downloaded into it.
func fetchDebs(ctx context.Context, cache string, packages []string) ([]string, error) {
	if err := os.MkdirAll(cache, 0o755); err != nil {
		return nil, err
	}
	files, err := tryFetchDebs(ctx, cache, packages)
	if err == nil {
		return files, nil
	}
	// A fresh machine has no package lists, an old one has lists of files that
	// are gone by now. Both are cured by an update.
	fmt.Println("    apt-get update, because:", firstLine(err.Error()))
	if _, err := apt(ctx, cache, "update"); err != nil {
		return nil, err
	}
	return tryFetchDebs(ctx, cache, packages)
}

func tryFetchDebs(ctx context.Context, cache string, packages []string) ([]string, error) {
	// Asked from an empty folder: apt does not list what the current one holds.
	empty, err := os.MkdirTemp("", "callgate-debs-")
	if err != nil {
		return nil, err
	}
	out, err := apt(ctx, empty, append([]string{"download", "--print-uris"}, packages...)...)
	if err := errors.Join(err, os.Remove(empty)); err != nil {
		return nil, err
	}
	debs, err := parseURIs(out)
	if err != nil {
		return nil, err
	}
	if len(debs) != len(packages) {
		return nil, fmt.Errorf("apt knows %d of the packages %s", len(debs), strings.Join(packages, " "))
	}
	var files, missing []string
	for _, d := range debs {
		file := filepath.Join(cache, d.name)
		files = append(files, file)
		if d.check(file) != nil {
			missing = append(missing, strings.SplitN(d.name, "_", 2)[0])
		}
	}
	if len(missing) > 0 {
		fmt.Println("    downloading", strings.Join(missing, " "))
		if _, err := apt(ctx, cache, append([]string{"download"}, missing...)...); err != nil {
			return nil, err
		}
	}
	for i, d := range debs {
		if err := d.check(files[i]); err != nil {
			return nil, err
		}
	}
	return files, nil
}

// parseURIs reads apt's lines: 'http://…' name_version_arch.deb size SHA256:…
func parseURIs(out []byte) ([]deb, error) {
	var debs []deb
	for line := range strings.Lines(string(out)) {
		f := strings.Fields(line)
		if len(f) == 0 || !strings.HasPrefix(f[0], "'") {
			continue
		}
		if len(f) != 4 || filepath.Base(f[1]) != f[1] {
			return nil, fmt.Errorf("apt-get download --print-uris printed %q, expected 'URI' FILE SIZE HASH", strings.TrimSpace(line))
		}
		size, err := strconv.ParseInt(f[2], 10, 64)
		if err != nil {
			return nil, fmt.Errorf("apt's size of %s: %w", f[1], err)
		}
		debs = append(debs, deb{name: f[1], size: size, sum: f[3]})
	}
	return debs, nil
}

func (d deb) check(file string) error {
	kind, want, _ := strings.Cut(d.sum, ":")
	var h hash.Hash
	switch kind {
	case "SHA256":
		h = sha256.New()
	case "SHA512":
		h = sha512.New()
	case "MD5Sum":
		h = md5.New() //nolint:gosec // see the import
	default:
		return fmt.Errorf("apt's checksum of %s is of the unknown kind %q", d.name, kind)
	}
	body, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	_, _ = h.Write(body) // a hash never fails
	if got := hex.EncodeToString(h.Sum(nil)); got != want || int64(len(body)) != d.size {
		return fmt.Errorf("%s has %d bytes and %s %s, apt's index says %d and %s", file, len(body), kind, got, d.size, want)
	}
	return nil
}

func apt(ctx context.Context, dir string, args ...string) ([]byte, error) {
	return output(ctx, dir, "apt-get", append(append([]string{"-q"}, strings.Fields(aptOptions)...), args...)...)
}

// output runs a program and returns its stdout; the error has the end of its stderr.
func output(ctx context.Context, dir, name string, args ...string) ([]byte, error) {
	var stderr bytes.Buffer
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Dir, cmd.Stderr = dir, &stderr
	out, err := cmd.Output()
	if errors.Is(err, exec.ErrNotFound) {
		return nil, fmt.Errorf("%s is not installed: the images with programs of Debian are built on Debian", name)
	}
	if err != nil {
		text := strings.TrimSpace(stderr.String())
		return nil, fmt.Errorf("%s %s: %w: %s", name, strings.Join(args, " "), err, text[max(0, len(text)-1000):])
	}
	return out, nil
}

// addDebs unpacks packages into the tree without running their scripts.
func (t tree) addDebs(ctx context.Context, files []string, keep func(string) bool) error {
	for _, f := range files {
		out, err := output(ctx, "", "dpkg-deb", "--fsys-tarfile", f)
		if err != nil {
			return err
		}
		if err := t.addTar(bytes.NewReader(out), mergedUsr, keep); err != nil {
			return fmt.Errorf("%s: %w", filepath.Base(f), err)
		}
	}
	return nil
}

// mergedUsr moves /bin, /lib, /lib64 and /sbin into /usr, where Debian's own
// installer puts them (the links to them are in mergedLinks).
func mergedUsr(name string) string {
	top, _, _ := strings.Cut(name, "/")
	if slices.Contains(mergedDirs, top) {
		return "usr/" + name
	}
	return name
}

var mergedDirs = []string{"bin", "lib", "lib64", "sbin"}

func (t tree) linkMerged() {
	for _, d := range mergedDirs {
		for name := range t {
			if strings.HasPrefix(name, "usr/"+d+"/") {
				t[d] = file{link: "usr/" + d}
				break
			}
		}
	}
}

// checkLibraries fails when a program or library of the tree needs a shared
// library that is not in it: the list of packages would be incomplete.
func (t tree) checkLibraries() error {
	have := map[string]bool{}
	for name := range t {
		if strings.HasPrefix(name, "usr/lib") {
			have[path.Base(name)] = true
		}
	}
	for _, name := range slices.Sorted(maps.Keys(t)) {
		if !bytes.HasPrefix(t[name].body, []byte(elf.ELFMAG)) {
			continue
		}
		f, err := elf.NewFile(bytes.NewReader(t[name].body))
		if err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
		libs, err := f.ImportedLibraries()
		if err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
		for _, p := range f.Progs {
			if p.Type != elf.PT_INTERP {
				continue
			}
			loader, err := io.ReadAll(p.Open())
			if err != nil {
				return fmt.Errorf("%s: %w", name, err)
			}
			libs = append(libs, path.Base(strings.TrimRight(string(loader), "\x00")))
		}
		for _, lib := range libs {
			if !have[lib] {
				return fmt.Errorf("%s needs %s, which no package of the list holds", name, lib)
			}
		}
	}
	return nil
}

func firstLine(s string) string {
	line, _, _ := strings.Cut(s, "\n")
	return line
}
