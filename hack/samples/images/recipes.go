package main

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
)

// recipe says what is in one image.
type recipe struct {
	name       string
	entrypoint []string
	path       string // the variable PATH
	user       string // whom the image says it runs as; default 65532:65532
	volume     string // a folder that the image declares as a volume
	fill       func(ctx context.Context, b builder, t tree) error
}

// builder knows the places that a recipe takes things from.
type builder struct {
	root    string // the repository
	samples string // the module that this program is part of
	cache   string // downloads, kept between builds
	tmp     string // for this build only
}

// The images. A Tool has to name its command anyway, so only the images that
// run as Deployments have an entrypoint.
var recipes = []recipe{
	{
		name: "controller", entrypoint: []string{"/callgate"}, path: "/",
		fill: func(ctx context.Context, b builder, t tree) error {
			return b.program(ctx, t, "callgate", b.root, "./cmd/callgate", runtime.GOARCH)
		},
	},
	{
		// Mounted as an image volume at a folder of each sandbox's own, so that the
		// binary is runner in it; nothing else belongs in here.
		name: "runner", entrypoint: []string{"/runner"}, path: "/",
		fill: func(ctx context.Context, b builder, t tree) error {
			clear(t)
			return b.program(ctx, t, "runner", b.root, "./cmd/callgate-runner", runtime.GOARCH)
		},
	},
	{name: "busybox", path: "/bin", fill: fillBusybox},
	{name: "run-python", path: "/usr/bin", fill: fillPython},
	{
		name: "orders", entrypoint: []string{"/bin/orders-server"}, path: "/bin",
		fill: func(ctx context.Context, b builder, t tree) error {
			if err := b.program(ctx, t, "bin/orders", b.samples, "./cmd/orders", runtime.GOARCH); err != nil {
				return err
			}
			return b.program(ctx, t, "bin/orders-server", b.samples, "./cmd/orders-server", runtime.GOARCH)
		},
	},
	{
		name: "testtools", path: "/bin",
		fill: func(ctx context.Context, b builder, t tree) error {
			archs := map[string]string{"echo": runtime.GOARCH, "netask": runtime.GOARCH, "netprobe": runtime.GOARCH}
			if runtime.GOARCH == "amd64" { // the others have no 32-bit Intel calls
				archs["sockets386"], archs["int80"] = "386", "amd64"
			}
			for name, arch := range archs {
				if err := b.program(ctx, t, "bin/"+name, b.samples, "./testtools/"+name, arch); err != nil {
					return err
				}
			}
			return nil
		},
	},
	{
		// An attacker's: it asks for root, and has a program that gives it.
		name: "hostile", path: "/bin", user: "0:0",
		fill: func(ctx context.Context, b builder, t tree) error {
			if err := b.program(ctx, t, "bin/hostile", b.samples, "./testtools/hostile", runtime.GOARCH); err != nil {
				return err
			}
			t["bin/setuid-hostile"] = file{mode: 0o6755, body: t["bin/hostile"].body}
			return nil
		},
	},
	{
		// Container runtimes give it a folder on the node's disk.
		name: "volume", path: "/bin", volume: "/data",
		fill: func(ctx context.Context, b builder, t tree) error {
			t["data"] = file{dir: true, mode: 0o777}
			return b.program(ctx, t, "bin/hostile", b.samples, "./testtools/hostile", runtime.GOARCH)
		},
	},
}

// program builds a static Go program that depends on nothing but its source:
// no paths of this machine, no commit, no symbols.
func (b builder) program(ctx context.Context, t tree, dst, module, pkg, arch string) error {
	out := filepath.Join(b.tmp, strings.ReplaceAll(dst, "/", "-"))
	cmd := []string{
		"CGO_ENABLED=0", "GOOS=linux", "GOARCH=" + arch,
		"go", "build", "-trimpath", "-buildvcs=false", "-ldflags=-s -w", "-o", out, pkg,
	}
	if _, err := output(ctx, module, "env", cmd...); err != nil {
		return err
	}
	body, err := os.ReadFile(out)
	if err != nil {
		return err
	}
	t[dst] = file{mode: 0o755, body: body}
	return os.Remove(out)
}

func fillBusybox(ctx context.Context, b builder, t tree) error {
	debs, err := fetchDebs(ctx, b.cache, []string{"busybox-static"})
	if err != nil {
		return err
	}
	unpacked := tree{}
	if err := unpacked.addDebs(ctx, debs, func(name string) bool { return name == "usr/bin/busybox" }); err != nil {
		return err
	}
	busybox, ok := unpacked["usr/bin/busybox"]
	if !ok {
		return fmt.Errorf("%s holds no bin/busybox", filepath.Base(debs[0]))
	}
	t["bin/busybox"] = busybox

	// Its own list of applets is the only one that cannot be wrong.
	bin := filepath.Join(b.tmp, "busybox")
	if err := os.WriteFile(bin, busybox.body, 0o755); err != nil {
		return err
	}
	applets, err := output(ctx, "", bin, "--list")
	if err != nil {
		return err
	}
	for name := range bytes.Lines(applets) {
		if name := strings.TrimSpace(string(name)); name != "busybox" {
			t["bin/"+name] = file{link: "busybox"}
		}
	}
	return os.Remove(bin)
}

// pythonPackages is what Python and its standard library load at run time.
// Packages that only maintainer scripts need (dpkg, perl, tar …) are left out,
// and so are the modules in pythonDropped with the libraries that only they
// use; checkLibraries proves that nothing else is missing.
var pythonPackages = []string{
	"python3-minimal", "python3.11-minimal", "libpython3.11-minimal", "libpython3.11-stdlib",
	"libc6", "libbz2-1.0", "libcrypt1", "libexpat1", "libffi8", "liblzma5", "libncursesw6",
	"libreadline8", "libsqlite3-0", "libssl3", "libtinfo6", "libuuid1", "zlib1g",
}

var pythonDropped = []string{
	"usr/bin/py3", "usr/sbin/", "usr/share/", "usr/lib/valgrind/", // Debian's packaging helpers
	"usr/lib/x86_64-linux-gnu/gconv/", "usr/lib/aarch64-linux-gnu/gconv/", // Python brings its own codecs
	"usr/lib/python3.11/lib2to3/", "usr/lib/python3.11/pydoc_data/", "usr/lib/python3.11/test/",
	"usr/lib/python3.11/lib-dynload/nis.", "usr/lib/python3.11/lib-dynload/_dbm.", "usr/lib/python3.11/lib-dynload/_gdbm.",
	"usr/lib/python3.11/lib-dynload/_test", "usr/lib/python3.11/lib-dynload/_xxtest", "usr/lib/python3.11/lib-dynload/_ctypes_test",
}

func fillPython(ctx context.Context, b builder, t tree) error {
	debs, err := fetchDebs(ctx, b.cache, pythonPackages)
	if err != nil {
		return err
	}
	keep := func(name string) bool {
		for _, prefix := range pythonDropped {
			if strings.HasPrefix(name, prefix) {
				return false
			}
		}
		return true
	}
	if err := t.addDebs(ctx, debs, keep); err != nil {
		return err
	}
	t.linkMerged()
	if err := t.checkLibraries(); err != nil {
		return err
	}
	script, err := os.ReadFile(filepath.Join(b.samples, "run-python", "run.py"))
	if err != nil {
		return err
	}
	t["app/run.py"] = file{mode: 0o644, body: script}
	return nil
}
