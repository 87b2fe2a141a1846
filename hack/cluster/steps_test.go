package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// copyModules makes a copy of the folders whose contents the key depends on.
func copyModules(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	for _, module := range []string{"kubernetes", "etcd", "gvisor", "pause"} {
		if err := os.CopyFS(filepath.Join(dir, module), os.DirFS(module)); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

func TestCacheKeyChangesWithWhatIsBuilt(t *testing.T) {
	dir := copyModules(t)
	key := func(steps []step) string {
		t.Helper()
		k, err := cacheKey(dir, steps)
		if err != nil {
			t.Fatal(err)
		}
		return k
	}
	before := key(steps)
	if again := key(steps); again != before {
		t.Fatalf("the same sources give %s, then %s", before, again)
	}
	changed := append([]step(nil), steps...)
	changed[2].version = "v0.0.1"
	if key(changed) == before {
		t.Error("another version of containerd keeps the key")
	}
	for _, file := range []string{"kubernetes/go.sum", "gvisor/shim/main.go", "pause/main.go"} {
		path := filepath.Join(dir, file)
		content, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, append(content, '\n'), 0o600); err != nil {
			t.Fatal(err)
		}
		if key(steps) == before {
			t.Errorf("a change of %s keeps the key", file)
		}
		if err := os.WriteFile(path, content, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(filepath.Join(dir, "main.go"), []byte("package main"), 0o600); err != nil {
		t.Fatal(err)
	}
	if key(steps) != before {
		t.Error("this program's own source changes the key, though not what it builds")
	}
}

func TestVersionsAreThoseOfTheModules(t *testing.T) {
	for module, required := range map[string]string{
		"kubernetes": "k8s.io/kubernetes " + kubernetesVersion,
		"etcd":       "go.etcd.io/etcd/server/v3 " + etcdVersion,
		"gvisor":     "gvisor.dev/gvisor " + gvisorVersion,
	} {
		content, err := os.ReadFile(filepath.Join(module, "go.mod"))
		if err != nil {
			t.Fatal(err)
		}
		if !strings.Contains(string(content), required) {
			t.Errorf("%s/go.mod does not require %s", module, required)
		}
	}
}

// Every staging module of a Kubernetes release has to be replaced by the one
// published with it, or the build mixes two releases.
func TestKubernetesStagingModulesAreOfTheRelease(t *testing.T) {
	out, err := exec.Command("go", "mod", "edit", "-C", "kubernetes", "-print").Output()
	if err != nil {
		t.Skipf("go mod edit: %v", err)
	}
	want := "v0." + strings.TrimPrefix(kubernetesVersion, "v1.")
	for _, line := range strings.Split(string(out), "\n") {
		f := strings.Fields(strings.TrimPrefix(line, "replace "))
		if len(f) == 4 && f[1] == "=>" && f[3] != want {
			t.Errorf("%s is replaced by %s, want %s", f[0], f[3], want)
		}
	}
}

func TestInstalledName(t *testing.T) {
	for pkg, want := range map[string]string{
		"github.com/opencontainers/runc":                     "runc",
		"github.com/cloudnativelabs/kube-router/v2":          "kube-router",
		"github.com/containerd/containerd/v2/cmd/containerd": "containerd",
		"example.org/vim":                                    "vim",
	} {
		if got := installedName(pkg); got != want {
			t.Errorf("%s: got %s, want %s", pkg, got, want)
		}
	}
}

func TestInstalledNameIsTheProgram(t *testing.T) {
	for _, s := range steps {
		for pkg, file := range s.programs {
			if s.module == "" && installedName(pkg) != file {
				t.Errorf("%s: go install makes %s, the step says %s", pkg, installedName(pkg), file)
			}
		}
	}
}

func TestTail(t *testing.T) {
	tests := []struct {
		reason, text string
		n            int
		want         string
	}{
		{"fewer lines than asked for", "a\nb\n", 5, "a\nb"},
		{"the last ones", "a\nb\nc\n", 2, "b\nc"},
		{"nothing", "", 3, ""},
	}
	for _, test := range tests {
		if got := string(tail([]byte(test.text), test.n)); got != test.want {
			t.Errorf("%s: got %q, want %q", test.reason, got, test.want)
		}
	}
}
