package controllers_test

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"callgate.dev/callgate/api/v1alpha1"
)

// step is a block of commands of a page, and what the page says it prints at
// its end, if it says so.
type step struct{ commands, prints string }

func stepsOf(t *testing.T, page string) (steps []step) {
	t.Helper()
	content, err := os.ReadFile(filepath.Join("../docs", page))
	if err != nil {
		t.Fatal(err)
	}
	for _, part := range strings.Split(string(content), "\n```sh\n")[1:] {
		commands, rest, _ := strings.Cut(part, "\n```\n")
		s := step{commands: commands}
		if out, ok := strings.CutPrefix(rest, "\n```\n"); ok {
			s.prints, _, _ = strings.Cut(out, "\n```\n")
		}
		steps = append(steps, s)
	}
	return steps
}

// The commands of the page about duplicates and limits print what it says,
// with the sample tools and policies in place.
func TestDuplicateAndLimitDocs(t *testing.T) {
	t.Parallel()
	for _, file := range []string{"namespaces", "agents", "tools-access", "policies", "tool-update-order-status"} {
		if err := createAll(t.Context(), "../config/samples/"+file+".yaml"); err != nil {
			t.Fatalf("config/samples/%s.yaml: %v", file, err)
		}
	}
	waitForBinding(t, "tools", true)
	tool := &v1alpha1.Tool{}
	tool.Namespace, tool.Name = "tools", "update-order-status"
	waitForReady(t, tool, "True", v1alpha1.ReasonReady)
	work := runAll(t, "tools", prints(`{"updated":true,"order_id":4821,"status":"shipped"}`, 0))
	// Names of this run alone: what it did before would be remembered.
	own := strconv.FormatInt(time.Now().UnixMilli(), 36) + "-"
	runPage(t, "duplicates-and-limits.md", strings.NewReplacer("ship-", own+"ship-", "pack-", own+"pack-", "one-a-minute", own+"one-a-minute"))
	if n := work.ran(); n != 2 {
		t.Errorf("%d calls ran, the page speaks of one shipped and one packed", n)
	}
}

// runPage runs the commands of a page, changed by replace, and compares what
// they print with what the page says.
func runPage(t *testing.T, page string, replace *strings.Replacer) {
	t.Helper()
	// The pages set PATH and KUBECONFIG for the local cluster; here it is this one.
	dir := t.TempDir()
	if err := os.MkdirAll(filepath.Join(dir, ".cluster/images"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, ".cluster/images/images.env"), []byte("BUSYBOX=registry.example/busybox:1\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := clientcmd.WriteToFile(adminKubeconfig(), filepath.Join(dir, ".cluster/kubeconfig")); err != nil {
		t.Fatal(err)
	}
	assets, err := filepath.Abs(os.Getenv("KUBEBUILDER_ASSETS"))
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(assets, filepath.Join(dir, ".cluster/bin")); err != nil {
		t.Fatal(err)
	}
	steps := stepsOf(t, page)
	if len(steps) < 2 {
		t.Fatalf("%d blocks of commands", len(steps))
	}
	// One script: a block goes on where the one before it ended.
	output := func(i int) string { return filepath.Join(dir, fmt.Sprint("step-", i)) }
	var script strings.Builder
	for i, s := range steps {
		fmt.Fprintf(&script, "exec >%s\n%s\n", output(i), replace.Replace(s.commands))
	}
	ctx, stop := context.WithTimeout(t.Context(), 3*patience)
	defer stop()
	command := exec.CommandContext(ctx, "bash", "-euo", "pipefail", "-c", script.String())
	command.Dir = dir
	command.Env = append(os.Environ(), "HOME="+dir)
	if out, err := command.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	for i, s := range steps {
		content, err := os.ReadFile(output(i))
		if err != nil {
			t.Fatal(err)
		}
		printed := strings.TrimSuffix(string(content), "\n")
		if want := replace.Replace(s.prints); want != "" && !strings.HasSuffix("\n"+printed, "\n"+want) {
			t.Errorf("the page promises\n%s\nits commands printed\n%s", want, printed)
		}
	}
}

func adminKubeconfig() clientcmdapi.Config {
	cfg := environment.Config
	return clientcmdapi.Config{
		Clusters:       map[string]*clientcmdapi.Cluster{"c": {Server: cfg.Host, CertificateAuthorityData: cfg.CAData}},
		AuthInfos:      map[string]*clientcmdapi.AuthInfo{"u": {ClientCertificateData: cfg.CertData, ClientKeyData: cfg.KeyData, Token: cfg.BearerToken}},
		Contexts:       map[string]*clientcmdapi.Context{"x": {Cluster: "c", AuthInfo: "u"}},
		CurrentContext: "x",
	}
}
