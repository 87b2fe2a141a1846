package main

import (
	"archive/tar"
	"bytes"
	"errors"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-containerregistry/pkg/v1/tarball"
)

func TestTreeTar(t *testing.T) {
	tr := base()
	tr["a/b/prog"] = file{mode: 0o755, body: []byte("x")}
	tr["a/link"] = file{link: "b/prog"}
	first, err := tr.tar()
	if err != nil {
		t.Fatal(err)
	}
	for range 20 { // map order differs between walks; the bytes must not
		again, err := tr.tar()
		if err != nil || !bytes.Equal(first, again) {
			t.Fatal("the same tree gave other bytes", err)
		}
	}
	var names []string
	for r := tar.NewReader(bytes.NewReader(first)); ; {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		if h.Uid != 0 || h.Gid != 0 || h.ModTime.Unix() != 0 {
			t.Errorf("%s belongs to %d:%d, %s; want root and the epoch", h.Name, h.Uid, h.Gid, h.ModTime)
		}
		names = append(names, h.Name)
	}
	want := []string{"a/", "a/b/", "a/b/prog", "a/link", "etc/", "etc/group", "etc/passwd", "tmp/"}
	if !slices.Equal(names, want) {
		t.Errorf("entries %q, want parents first and sorted: %q", names, want)
	}
}

func TestAddTar(t *testing.T) {
	var buf bytes.Buffer
	w := tar.NewWriter(&buf)
	for _, h := range []*tar.Header{
		{Name: "./lib/", Typeflag: tar.TypeDir},
		{Name: "./lib/a.so", Mode: 0o4755, Typeflag: tar.TypeReg, Size: 1},
		{Name: "./usr/share/doc/x", Typeflag: tar.TypeReg, Size: 1},
		{Name: "./usr/bin/hard", Typeflag: tar.TypeLink, Linkname: "./usr/share/doc/x"},
		{Name: "../../etc/escape", Typeflag: tar.TypeReg, Size: 1},
	} {
		if err := w.WriteHeader(h); err != nil {
			t.Fatal(err)
		}
		if h.Size == 1 {
			if _, err := w.Write([]byte("x")); err != nil {
				t.Fatal(err)
			}
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	got := tree{}
	if err := got.addTar(&buf, mergedUsr, func(n string) bool { return !strings.HasPrefix(n, "usr/share/") }); err != nil {
		t.Fatal(err)
	}
	if f := got["usr/lib/a.so"]; f.mode != 0o755 || string(f.body) != "x" {
		t.Errorf("lib/a.so became %+v, want it under usr/ and without the setuid bit", f)
	}
	if string(got["usr/bin/hard"].body) != "x" {
		t.Error("a hard link to a dropped file lost its content")
	}
	if _, ok := got["etc/escape"]; !ok || len(got) != 3 {
		t.Errorf("got %d entries, want 3, all inside the tree: %v", len(got), got)
	}
	got.linkMerged()
	if got["lib"].link != "usr/lib" || got["bin"].link != "usr/bin" || got["sbin"].link != "" {
		t.Error("want links for the folders that are there, and only for those")
	}
}

func TestParseURIs(t *testing.T) {
	tests := []struct {
		reason, in string
		want       []deb
		wantErr    string
	}{
		{"one line per package, other lines ignored", "Reading…\n'http://d/a_1%3a2_amd64.deb' a_1%3a2_amd64.deb 12 SHA256:ab\n", []deb{{"a_1%3a2_amd64.deb", 12, "SHA256:ab"}}, ""},
		{"nothing", "", nil, ""},
		{"a name that leaves the cache", "'http://d/a' ../a 12 SHA256:ab\n", nil, "expected 'URI' FILE SIZE HASH"},
		{"no hash: nothing could be checked", "'http://d/a' a 12\n", nil, "expected 'URI' FILE SIZE HASH"},
		{"a size that is none", "'http://d/a' a x SHA256:ab\n", nil, "size"},
	}
	for _, tt := range tests {
		t.Run(tt.reason, func(t *testing.T) {
			got, err := parseURIs([]byte(tt.in))
			if tt.wantErr == "" && err != nil || tt.wantErr != "" && (err == nil || !strings.Contains(err.Error(), tt.wantErr)) {
				t.Fatalf("error %v, want %q", err, tt.wantErr)
			}
			if !slices.Equal(got, tt.want) {
				t.Errorf("got %v, want %v", got, tt.want)
			}
		})
	}
}

func TestDebCheck(t *testing.T) {
	path := filepath.Join(t.TempDir(), "a.deb")
	if err := os.WriteFile(path, []byte("abc"), 0o600); err != nil {
		t.Fatal(err)
	}
	const sum = "SHA256:ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
	tests := []struct {
		reason string
		d      deb
		ok     bool
	}{
		{"the file of the index", deb{"a.deb", 3, sum}, true},
		{"a download that stopped early", deb{"a.deb", 4, sum}, false},
		{"other content", deb{"a.deb", 3, "SHA256:00"}, false},
		{"a kind of checksum we do not know", deb{"a.deb", 3, "CRC:00"}, false},
	}
	for _, tt := range tests {
		t.Run(tt.reason, func(t *testing.T) {
			if err := tt.d.check(path); (err == nil) != tt.ok {
				t.Errorf("check: %v, want ok=%v", err, tt.ok)
			}
		})
	}
}

// The Go tool itself, when it was linked with the C library, is an ELF file
// with imports; a program that was not has none to check.
func TestCheckLibraries(t *testing.T) {
	if err := (tree{"usr/bin/script": {body: []byte("#!/bin/sh\n")}}).checkLibraries(); err != nil {
		t.Error(err)
	}
	if err := (tree{"usr/bin/broken": {body: []byte("\x7fELF")}}).checkLibraries(); err == nil {
		t.Error("a damaged program was accepted")
	}
	body, err := os.ReadFile("/bin/sh")
	if err != nil || !bytes.HasPrefix(body, []byte("\x7fELF")) {
		t.Skip("no dynamically linked /bin/sh on this machine")
	}
	tr := tree{"usr/bin/sh": {body: body}}
	if err := tr.checkLibraries(); err == nil || !strings.Contains(err.Error(), "usr/bin/sh needs ") {
		t.Errorf("a shell without its C library: %v", err)
	}
}

func TestBuildNamesByContent(t *testing.T) {
	r := recipe{name: "echo", path: "/bin"}
	ref := func(r recipe, body string) string {
		t.Helper()
		tag, img, err := build(r, tree{"bin/echo": {mode: 0o755, body: []byte(body)}})
		if err != nil {
			t.Fatal(err)
		}
		path := filepath.Join(t.TempDir(), "echo.tar")
		if err := write(path, tag, img); err != nil {
			t.Fatal(err)
		}
		back, err := tarball.ImageFromPath(path, &tag)
		if err != nil {
			t.Fatal(err)
		}
		config, err := back.ConfigFile()
		if err != nil || config.Config.User != "65532:65532" {
			t.Fatalf("user %q, %v", config.Config.User, err)
		}
		return tag.String()
	}
	a := ref(r, "one")
	if !strings.HasPrefix(a, "localhost/callgate/echo:") {
		t.Error(a)
	}
	if a != ref(r, "one") {
		t.Error("the same input got another name")
	}
	if a == ref(r, "two") {
		t.Error("another program kept the name")
	}
	if r.path = "/usr/bin"; a == ref(r, "one") {
		t.Error("another config kept the name")
	}
}

func TestChoose(t *testing.T) {
	all, err := choose("")
	if err != nil || len(all) != len(recipes) {
		t.Error(len(all), err)
	}
	two, err := choose("orders,runner")
	if err != nil || len(two) != 2 || two[1].name != "runner" {
		t.Error(two, err)
	}
	if _, err := choose("nope"); err == nil || !strings.Contains(err.Error(), "run-python") {
		t.Errorf("%v, want the names there are", err)
	}
}
