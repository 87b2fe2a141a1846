package main

import (
	"archive/tar"
	"bytes"
	"errors"
	"fmt"
	"io"
	"maps"
	"path"
	"slices"
	"time"
)

// file is one entry of an image's only layer. Everything belongs to root; the
// programs run as somebody else and can change nothing.
type file struct {
	mode int64  // permission bits
	dir  bool   // a directory
	link string // not empty: a symbolic link to this
	body []byte
}

// tree is a root file system: clean paths without a leading slash.
type tree map[string]file

// tar writes the tree in a form that depends on nothing but the tree: sorted,
// parents first, every time stamp 0.
func (t tree) tar() ([]byte, error) {
	all := maps.Clone(t)
	for name := range t {
		for dir := path.Dir(name); dir != "."; dir = path.Dir(dir) {
			if _, ok := all[dir]; !ok {
				all[dir] = file{dir: true, mode: 0o755}
			}
		}
	}
	var buf bytes.Buffer
	w := tar.NewWriter(&buf)
	for _, name := range slices.Sorted(maps.Keys(all)) {
		f := all[name]
		h := &tar.Header{Name: name, Mode: f.mode, ModTime: time.Unix(0, 0), Format: tar.FormatPAX}
		switch {
		case f.dir:
			h.Typeflag, h.Name = tar.TypeDir, name+"/"
		case f.link != "":
			h.Typeflag, h.Linkname, h.Mode = tar.TypeSymlink, f.link, 0o777
		default:
			h.Typeflag, h.Size = tar.TypeReg, int64(len(f.body))
		}
		if err := w.WriteHeader(h); err != nil {
			return nil, fmt.Errorf("%s: %w", name, err)
		}
		if _, err := w.Write(f.body); err != nil {
			return nil, fmt.Errorf("%s: %w", name, err)
		}
	}
	if err := w.Close(); err != nil {
		return nil, err
	}
	return buf.Bytes(), nil
}

// addTar puts the entries of a tar stream that keep accepts into the tree.
// rename is applied first; a hard link becomes a copy.
func (t tree) addTar(r io.Reader, rename func(string) string, keep func(string) bool) error {
	linked := map[string][]byte{} // what was dropped may still be linked to
	for tr := tar.NewReader(r); ; {
		h, err := tr.Next()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		name := rename(path.Clean("/" + h.Name)[1:])
		f := file{mode: h.Mode & 0o777}
		switch h.Typeflag {
		case tar.TypeDir:
			continue // made by tar when something is in it
		case tar.TypeSymlink:
			f.link = h.Linkname
		case tar.TypeReg:
			if f.body, err = io.ReadAll(tr); err != nil {
				return fmt.Errorf("%s: %w", name, err)
			}
			linked[name] = f.body
		case tar.TypeLink:
			body, ok := linked[rename(path.Clean("/" + h.Linkname)[1:])]
			if !ok {
				return fmt.Errorf("%s is a hard link to %s, which does not come before it", name, h.Linkname)
			}
			f.body = body
		default:
			return fmt.Errorf("%s: entries of type %q have no place in an image", name, h.Typeflag)
		}
		if keep(name) {
			t[name] = f
		}
	}
}

// base is what every program may expect: a name for its user, and the mount
// point /tmp.
func base() tree {
	return tree{
		"etc/passwd": {mode: 0o644, body: []byte("root:x:0:0:root:/:/sbin/nologin\nnonroot:x:65532:65532:nonroot:/tmp:/sbin/nologin\n")},
		"etc/group":  {mode: 0o644, body: []byte("root:x:0:\nnonroot:x:65532:\n")},
		"tmp":        {mode: 0o1777, dir: true},
	}
}
