package controllers_test

import (
	"testing"

	coordinationv1 "k8s.io/api/coordination/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"callgate.dev/callgate/api/v1alpha1"
)

// A namespace that is closed to the controller, its RoleBinding gone, ends its
// calls all the same: what runs with its answer, what does not in time.
func TestNamespaceClosedUnderWay(t *testing.T) {
	t.Parallel()
	tools := openNamespace(t)
	allow(t, tools)
	newTool(t, tools, "tool", func(s *v1alpha1.ToolSpec) { s.StartDeadlineSeconds, s.TimeoutSeconds = 15, 60 })
	keyed := func(s *v1alpha1.ToolCallSpec) { s.IdempotencyKey = "key" }
	tool, release := blocked(t)
	runs := newCall(t, tools, "tool", keyed)
	startPod(t, runs, tool)
	waitForSend(t, runs)
	starts := newCall(t, tools, "tool", func(s *v1alpha1.ToolCallSpec) { s.IdempotencyKey = "other" })
	pod := podOf(t, starts)
	remove(t, toolsBinding(tools))
	waitForBinding(t, tools, false)
	runPod(t, pod, prints("1", 0))
	release()
	runs = waitForEnd(t, runs)
	want{}.check(t, runs)
	duplicate := waitForEnd(t, newCall(t, tools, "tool", keyed))
	if ref := duplicate.Status.DuplicateOfRef; ref == nil || ref.UID != runs.UID || string(duplicate.Status.Result.Data.Raw) != `"late"` {
		t.Errorf("a duplicate of it got %+v", duplicate.Status)
	}
	starts = waitForEnd(t, starts)
	// Whether time can cure it is said only if the call's own write is refused before its Tool is seen to be not Ready.
	retryable := *starts.Status.Result.Retryable
	want{code: v1alpha1.ErrorToolUnavailable, retryable: retryable, message: []string{"forbidden"}}.check(t, starts)
	if len(starts.Status.Attempts) > 0 {
		t.Errorf("sent although it could not be noted: %+v", starts.Status.Attempts)
	}
}

// The key of a call that is deleted before it was sent goes with it.
func TestKeyOfDeletedCall(t *testing.T) {
	t.Parallel()
	tools := openNamespace(t)
	allow(t, tools)
	newTool(t, tools, "tool")
	call := newCall(t, tools, "tool", func(s *v1alpha1.ToolCallSpec) { s.IdempotencyKey = "key" })
	podOf(t, call)
	var leases coordinationv1.LeaseList
	if err := admin.List(t.Context(), &leases, client.InNamespace(tools)); err != nil || len(leases.Items) != 1 {
		t.Fatalf("%d Leases, want the key of the call: %v", len(leases.Items), err)
	}
	remove(t, call)
	eventually(t, "the key removed", func() (bool, any) {
		err := admin.List(t.Context(), &leases, client.InNamespace(tools))
		return err == nil && len(leases.Items) == 0, leases.Items
	})
}
