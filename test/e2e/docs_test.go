package e2e

import (
	"bytes"
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"k8s.io/client-go/tools/clientcmd"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"callgate.dev/callgate/api/v1alpha1"
	"callgate.dev/callgate/test/cluster"
)

// The program of docs/call-a-tool.md is the one in docs/examples, fits the 40
// lines it promises, and works: a call is answered, and Ctrl-C cancels one.
func TestDocsCallATool(t *testing.T) {
	ctx := start(t)
	source, err := os.ReadFile("../../docs/examples/call-a-tool/main.go")
	if err != nil {
		t.Fatal(err)
	}
	page, err := os.ReadFile("../../docs/call-a-tool.md")
	if err != nil {
		t.Fatal(err)
	}
	_, block, _ := strings.Cut(string(page), "```go\n")
	block, _, _ = strings.Cut(block, "```")
	if block == "" || !strings.Contains(string(source), block) {
		t.Fatal("the Go block of docs/call-a-tool.md is not the program in docs/examples/call-a-tool")
	}
	if n := strings.Count(block, "\n"); n > 40 {
		t.Errorf("main has %d lines, the page promises 40 at most", n)
	}

	program := buildWith(ctx, t, strings.NewReplacer(`"tools"`, `"`+toolsNS+`"`, `"agents"`, `"`+agentsNS+`"`).Replace(string(source)))
	kubeconfig := agentKubeconfig(t)
	describe := func(s *v1alpha1.ToolSpec) { s.Description = "Says what it was told." }
	shell(ctx, t, "docs-echo", "cat", describe)
	shell(ctx, t, "docs-sleep", "sleep 1000", timeout(300))

	echo := exec.CommandContext(ctx, program, "docs-echo", `{"a":1}`)
	echo.Env = append(os.Environ(), "KUBECONFIG="+kubeconfig)
	out, err := echo.CombinedOutput()
	if err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	for _, want := range []string{"docs-echo: Says what it was told.\n", `{"ok":true,"data":{"a":1},"error_code":null,"message":null,"retryable":false}` + "\n"} {
		if !strings.Contains(string(out), want) {
			t.Errorf("the program printed %s\nwithout %s", out, want)
		}
	}

	var printed bytes.Buffer
	sleep := exec.CommandContext(ctx, program, "docs-sleep", `{}`)
	sleep.Env, sleep.Stdout, sleep.Stderr = echo.Env, &printed, &printed
	if err := sleep.Start(); err != nil {
		t.Fatal(err)
	}
	waitReason(ctx, t, callTo(ctx, t, "docs-sleep"), v1alpha1.ReasonRunning)
	if err := sleep.Process.Signal(os.Interrupt); err != nil {
		t.Fatal(err)
	}
	if err := sleep.Wait(); err != nil || !strings.Contains(printed.String(), `"error_code":"cancelled"`) {
		t.Errorf("after Ctrl-C: %v: %s", err, printed.String())
	}
}

// buildWith compiles a program inside this module.
func buildWith(ctx context.Context, t *testing.T, source string) string {
	t.Helper()
	dir, err := os.MkdirTemp(".", "_program-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	if err := os.WriteFile(filepath.Join(dir, "main.go"), []byte(source), 0o600); err != nil {
		t.Fatal(err)
	}
	program := filepath.Join(t.TempDir(), "program")
	if out, err := exec.CommandContext(ctx, "go", "build", "-o", program, "./"+dir).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	return program
}

// agentKubeconfig is one whose user acts as the agent.
func agentKubeconfig(t *testing.T) string {
	t.Helper()
	c, err := clientcmd.NewDefaultClientConfigLoadingRules().Load()
	if err != nil {
		t.Fatal(err)
	}
	for _, user := range c.AuthInfos {
		user.Impersonate = "system:serviceaccount:" + agentsNS + ":" + cluster.AgentName
		user.ImpersonateGroups = []string{"system:serviceaccounts", "system:serviceaccounts:" + agentsNS, "system:authenticated"}
	}
	path := filepath.Join(t.TempDir(), "kubeconfig")
	if err := clientcmd.WriteToFile(*c, path); err != nil {
		t.Fatal(err)
	}
	return path
}

// callTo waits for the call that somebody else makes to a function.
func callTo(ctx context.Context, t *testing.T, function string) *v1alpha1.ToolCall {
	t.Helper()
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	watcher, err := admin.Watch(ctx, &v1alpha1.ToolCallList{}, client.InNamespace(agentsNS))
	if err != nil {
		t.Fatal(err)
	}
	defer watcher.Stop()
	for event := range watcher.ResultChan() {
		if call, ok := event.Object.(*v1alpha1.ToolCall); ok && call.Spec.ToolRef.FunctionName == function {
			return call
		}
	}
	t.Fatalf("no call of %s within a minute", function)
	return nil
}
