package controllers_test

import (
	"testing"
	"time"

	"k8s.io/utils/ptr"

	"callgate.dev/callgate/api/v1alpha1"
)

// A finished call is deleted when its time is over, and not before. Its answer
// still is that of its duplicates.
func TestFinishedCallGoesWhenItsTimeIsOver(t *testing.T) {
	t.Parallel()
	tools := openNamespace(t)
	allow(t, tools)
	newTool(t, tools, "tool")
	keyed := func(ttl *int32) *v1alpha1.ToolCall {
		call := callObject(tools, "tool", func(s *v1alpha1.ToolCallSpec) { s.TTLSecondsAfterFinished, s.IdempotencyKey = ttl, "order-1" })
		call.Namespace = tools // whose finished calls are nobody else's business
		return propose(t, agent, call)
	}
	first := keyed(ptr.To[int32](0))
	startPod(t, first, prints(`"done once"`, 0))
	waitForOutcome(t, first, 1)
	other := callObject(tools, "tool", func(s *v1alpha1.ToolCallSpec) { s.TTLSecondsAfterFinished = ptr.To[int32](600) })
	other.Namespace = tools
	propose(t, agent, other)
	startPod(t, other, prints("1", 0))
	waitForEnd(t, other)
	begun := time.Now()
	eventually(t, "the finished call deleted", func() (bool, any) { return !get(t, keyOf(first), &v1alpha1.ToolCall{}), first.Name })
	if took := time.Since(begun); took > 30*time.Second {
		t.Errorf("it was deleted after %s, want about 10s", took)
	}
	if !get(t, keyOf(other), other) {
		t.Error("a call that asked to be kept for ten minutes is gone")
	}
	again := keyed(nil)
	again = waitForEnd(t, again)
	want{}.check(t, again)
	if data := string(again.Status.Result.Data.Raw); data != `"done once"` || again.Status.DuplicateOfRef == nil || again.Status.DuplicateOfRef.Name != first.Name {
		t.Errorf("the duplicate answers %s of %s, want the answer of the call that is gone", data, show(again.Status.DuplicateOfRef))
	}
	neverHadASandbox(t, again)
	waitForNoSandbox(t, first)
}
