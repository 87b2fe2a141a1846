package main

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"sort"
	"strings"
)

// The versions of everything that is built here. What is built from a module of
// its own (kubernetes, etcd, gvisor) has its version in that module's go.mod;
// it is repeated here for the progress lines only, and a test compares them.
const (
	kubernetesVersion = "v1.37.2"
	etcdVersion       = "v3.7.3"
	containerdVersion = "v2.4.2"
	runcVersion       = "v1.5.3"
	cniVersion        = "v1.10.0"
	kubeRouterVersion = "v2.1.0"
	corednsVersion    = "v1.15.0"
	gvisorVersion     = "v0.0.0-20260905035102-160fafc42237"
)

// A step builds some of the cluster's programs with one call of the go command.
type step struct {
	// name and version appear in the progress lines.
	name, version string
	// module is the folder, relative to this one, whose go.mod pins what is
	// built. Empty means the packages carry their version themselves.
	module string
	// programs maps the package to the file name it is built to.
	programs map[string]string
	// links maps further names to the program they stand for.
	links map[string]string
	// flags go to the go command, ahead of the packages.
	flags []string
	// cgo is set for what needs a C compiler and Debian's libraries.
	cgo bool
}

// kubernetesFlags make the programs report their release. Without them they
// call themselves v0.0.0-master and every version check fails.
func kubernetesFlags() []string {
	const pkg = "k8s.io/component-base/version"
	part := strings.SplitN(strings.TrimPrefix(kubernetesVersion, "v"), ".", 3)
	return []string{"-ldflags", fmt.Sprintf("-s -w -X %[1]s.gitVersion=%[2]s -X %[1]s.gitMajor=%[3]s -X %[1]s.gitMinor=%[4]s -X %[1]s.gitTreeState=clean",
		pkg, kubernetesVersion, part[0], part[1])}
}

var stripped = []string{"-ldflags", "-s -w"}

// steps are in the order in which they are built: the longest first, so that
// whoever watches sees how long it takes.
var steps = []step{
	{name: "Kubernetes", version: kubernetesVersion, module: "kubernetes", flags: kubernetesFlags(),
		programs: map[string]string{".": "kubernetes"},
		links: map[string]string{"kube-apiserver": "kubernetes", "kube-controller-manager": "kubernetes", "kube-scheduler": "kubernetes",
			"kubelet": "kubernetes", "kube-proxy": "kubernetes", "kubectl": "kubernetes"}},
	{name: "etcd", version: etcdVersion, module: "etcd", flags: stripped, programs: map[string]string{".": "etcd"}},
	{name: "containerd", version: containerdVersion, flags: stripped, programs: map[string]string{
		"github.com/containerd/containerd/v2/cmd/containerd":              "containerd",
		"github.com/containerd/containerd/v2/cmd/containerd-shim-runc-v2": "containerd-shim-runc-v2",
		"github.com/containerd/containerd/v2/cmd/ctr":                     "ctr"}},
	{name: "runc", version: runcVersion, flags: append([]string{"-tags", "seccomp"}, stripped...), cgo: true,
		programs: map[string]string{"github.com/opencontainers/runc": "runc"}},
	{name: "CNI plugins", version: cniVersion, flags: stripped, programs: map[string]string{
		"github.com/containernetworking/plugins/plugins/main/bridge":     "bridge",
		"github.com/containernetworking/plugins/plugins/main/loopback":   "loopback",
		"github.com/containernetworking/plugins/plugins/ipam/host-local": "host-local",
		"github.com/containernetworking/plugins/plugins/meta/portmap":    "portmap"}},
	{name: "kube-router", version: kubeRouterVersion, flags: stripped,
		programs: map[string]string{"github.com/cloudnativelabs/kube-router/v2/cmd/kube-router": "kube-router"}},
	{name: "CoreDNS", version: corednsVersion, flags: stripped, programs: map[string]string{"github.com/coredns/coredns": "coredns"}},
	{name: "gVisor", version: gvisorVersion, module: "gvisor", flags: stripped,
		programs: map[string]string{"gvisor.dev/gvisor/runsc": "runsc", "./shim": "containerd-shim-runsc-v1"}},
	{name: "pause", version: "container", module: ".", flags: stripped, programs: map[string]string{"./pause": "pause"}},
}

// files returns the names of all files the step leaves in the bin folder, sorted.
func (s step) files() []string {
	var names []string
	for _, file := range s.programs {
		names = append(names, file)
	}
	for link := range s.links {
		names = append(names, link)
	}
	sort.Strings(names)
	return names
}

// packages returns the packages the step builds, sorted.
func (s step) packages() []string {
	var names []string
	for pkg := range s.programs {
		names = append(names, pkg)
	}
	sort.Strings(names)
	return names
}

// cacheKey names one set of binaries: it changes with every version, flag,
// module file and source below dir that goes into them, and with the Go release.
func cacheKey(dir string, steps []step) (string, error) {
	hash := sha256.New()
	_, _ = fmt.Fprintln(hash, runtime.Version(), runtime.GOOS, runtime.GOARCH) // a hash never fails
	for _, s := range steps {
		_, _ = fmt.Fprintln(hash, s.name, s.version, s.packages(), s.files(), s.flags, s.cgo)
		if s.module == "" {
			continue
		}
		folder := s.module
		if folder == "." { // this program's own sources do not change what it builds
			folder = strings.TrimPrefix(s.packages()[0], "./")
		}
		sources := os.DirFS(filepath.Join(dir, folder))
		err := fs.WalkDir(sources, ".", func(path string, entry fs.DirEntry, err error) error {
			if err != nil || entry.IsDir() {
				return err
			}
			content, err := fs.ReadFile(sources, path)
			if err != nil {
				return err
			}
			_, _ = fmt.Fprintf(hash, "%s/%s %d\n%s\n", folder, path, len(content), content)
			return nil
		})
		if err != nil {
			return "", fmt.Errorf("key of the binaries: %w", err)
		}
	}
	return hex.EncodeToString(hash.Sum(nil))[:12], nil
}
