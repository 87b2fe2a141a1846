package e2e

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"

	"sigs.k8s.io/controller-runtime/pkg/client"

	"callgate.dev/callgate/api/v1alpha1"
)

// E16: a daemon that left its session and outlives the tool is gone from the
// node with the call.
func TestDaemonDiesWithItsCall(t *testing.T) {
	ctx := start(t)
	if _, err := os.Stat("../../.cluster/cluster.json"); err != nil {
		t.Skip("SKIPPED: the node is not this machine, so its processes cannot be seen")
	}
	const mark = "sleep\x0061987"
	tool := shell(ctx, t, "daemon-dies", "setsid sleep 61987 & sleep 4; echo '{}'", timeout(20))
	call := propose(ctx, t, tool, "")
	waitReason(ctx, t, call, v1alpha1.ReasonRunning)
	waitAccepted(ctx, t, call)
	// Looks until the tool ends at the latest: its pod is gone soon after.
	for !onNode(t, mark) {
		if err := admin.Get(ctx, client.ObjectKeyFromObject(call), call); err != nil {
			t.Fatal(err)
		}
		if call.Status.Result != nil {
			t.Fatal("the daemon was never seen on the node, so its end would prove nothing")
		}
	}
	if got := succeeded(t, finish(ctx, t, call)); got != "{}" {
		t.Errorf("the answer is %s", got)
	}
	waitGone(ctx, t, call)
	if onNode(t, mark) {
		t.Error("the daemon is still on the node after the call's sandbox is gone")
	}
}

// onNode says whether a process with this in its command line runs here.
func onNode(t *testing.T, mark string) bool {
	t.Helper()
	paths, err := filepath.Glob("/proc/[0-9]*/cmdline")
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range paths {
		if line, err := os.ReadFile(path); err == nil && bytes.HasPrefix(line, []byte(mark)) {
			return true
		}
	}
	return false
}
