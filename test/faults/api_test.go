package faults

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"callgate.dev/callgate/api/v1alpha1"
	"callgate.dev/callgate/internal/sandbox"
	"callgate.dev/callgate/test/cluster"
)

// writes of a call's life, in their order. by is how a write of the call is
// known; the writes of a cancelled call come after the call is there.
var writes = []struct {
	name      string
	by        func(call *v1alpha1.ToolCall) func(*http.Request, string) bool
	cancelled bool
}{
	{name: "key", by: func(c *v1alpha1.ToolCall) func(*http.Request, string) bool {
		return write(http.MethodPost, "/leases", []string{c.Namespace + "/" + c.Name})
	}},
	{name: "job", by: func(c *v1alpha1.ToolCall) func(*http.Request, string) bool {
		return write(http.MethodPost, "/jobs", []string{c.Namespace + "/" + c.Name})
	}},
	{name: "key-sent", by: func(c *v1alpha1.ToolCall) func(*http.Request, string) bool {
		return write(http.MethodPut, "/leases/callgate-key-", []string{c.Namespace + "/" + c.Name}, "callgate.dev/result")
	}},
	{name: "entry", by: func(c *v1alpha1.ToolCall) func(*http.Request, string) bool {
		return write(http.MethodPut, "/toolcalls/"+c.Name+"/status", []string{`"podUID"`}, `"completionTime"`)
	}},
	{name: "key-end", by: func(c *v1alpha1.ToolCall) func(*http.Request, string) bool {
		return write(http.MethodPut, "/leases/callgate-key-", []string{c.Namespace + "/" + c.Name, "callgate.dev/result"})
	}},
	{name: "result", by: func(c *v1alpha1.ToolCall) func(*http.Request, string) bool {
		return write(http.MethodPut, "/toolcalls/"+c.Name+"/status", []string{`"completionTime"`})
	}},
	{name: "pod-delete", cancelled: true, by: func(c *v1alpha1.ToolCall) func(*http.Request, string) bool {
		return write(http.MethodDelete, "/pods/"+sandbox.JobName(c.UID, 1), nil)
	}},
	{name: "job-delete", cancelled: true, by: func(c *v1alpha1.ToolCall) func(*http.Request, string) bool {
		return write(http.MethodDelete, "/jobs/"+sandbox.JobName(c.UID, 1), nil)
	}},
}

// Each write of a call's life fails in each way once, also in the way that it
// took effect and nobody heard of it. The call ends as if nothing had happened.
func failedWrites(t *testing.T) {
	proxy := newProxy(t)
	first(t, proxy.url)
	tool := countingTool(t, "writes")
	t.Run("writes", func(t *testing.T) {
		for _, w := range writes {
			for name, a := range map[string]answer{
				"lost": lost, "timeout": timeout, "conflict": refuse(http.StatusConflict, "Conflict"), "error": refuse(http.StatusInternalServerError, "InternalError"),
			} {
				t.Run(w.name+"-"+name, func(t *testing.T) {
					cluster.Start(t)
					failedWrite(t, proxy, tool, w.name+"-"+name, w.by, a, w.cancelled)
				})
			}
		}
	})
}

func failedWrite(t *testing.T, p *proxy, tool *v1alpha1.Tool, name string, by func(*v1alpha1.ToolCall) func(*http.Request, string) bool, a answer, cancelled bool) {
	t.Helper()
	ctx := t.Context()
	call := &v1alpha1.ToolCall{ObjectMeta: metav1.ObjectMeta{Namespace: cluster.AgentsNS, Name: name}, Spec: v1alpha1.ToolCallSpec{
		ToolRef: v1alpha1.ToolReference{Namespace: tool.Namespace, Name: tool.Name}, IdempotencyKey: name, Args: ptr.To(cluster.Raw(countingArgs(0, 0)))}}
	var r *rule
	if cancelled {
		call.Spec.Args = ptr.To(cluster.Raw(countingArgs(50, 0)))
	} else {
		r = p.on(by(call), a)
	}
	if err := cluster.Agent.Create(ctx, call); err != nil {
		t.Fatal(err)
	}
	if cancelled {
		waitStarted(t, call)
		r = p.on(by(call), a)
		cluster.Cancel(ctx, t, call)
	}
	r.waitApplied(t)
	cluster.Finish(ctx, t, call)
	if !cancelled {
		done(t, call, 0)
		if n := len(call.Status.Attempts); n != 1 {
			t.Errorf("%d attempts, want 1: %s", n, cluster.JSONOf(t, call.Status.Attempts))
		}
		return
	}
	cluster.Failed(t, call, v1alpha1.ErrorCancelled, false)
	started(t, call, 1)
	cluster.WaitGone(ctx, t, call)
}

// Somebody else writes to a call all the time (C045): its end is written, once.
func TestWriterBesideCallKeepsItsResult(t *testing.T) {
	cluster.Start(t)
	tool := countingTool(t, "written-to")
	call := cluster.Propose(t.Context(), t, tool, countingArgs(1, 0))
	ctx, cancel := context.WithCancel(t.Context())
	written := make(chan int)
	go func() {
		n := 0
		for ; ctx.Err() == nil; n++ {
			other := call.DeepCopy()
			patch := fmt.Sprintf(`{"metadata":{"annotations":{"example.com/n":"%d"}}}`, n)
			_ = cluster.Admin.Patch(ctx, other, client.RawPatch("application/merge-patch+json", []byte(patch)))
			time.Sleep(10 * time.Millisecond)
		}
		written <- n
	}()
	end := cluster.Finish(t.Context(), t, call.DeepCopy())
	result := cluster.JSONOf(t, end.Status)
	time.Sleep(time.Second) // more writes to a call that has ended
	cancel()
	t.Logf("%d writes beside it", <-written)
	done(t, end, 0)
	if err := cluster.Admin.Get(t.Context(), client.ObjectKeyFromObject(end), end); err != nil {
		t.Fatal(err)
	}
	if now := cluster.JSONOf(t, end.Status); now != result {
		t.Errorf("the status of a call that had ended changed from %s to %s", result, now)
	}
}

// The controller goes on with what it knew some seconds ago: watches of one
// resource say nothing from a write of the call on.
func staleCache(t *testing.T) {
	const stale = 4 * time.Second
	proxy := newProxy(t, "toolcalls", "jobs", "pods", "leases")
	first(t, proxy.url)
	tool := countingTool(t, "stale")
	hasty := countingTool(t, "stale-hasty", func(s *v1alpha1.ToolSpec) { s.StartDeadlineSeconds = 8 })
	for _, tc := range []struct {
		name, resource, since, reason string
		tool                          *v1alpha1.Tool
		seconds                       float64
	}{
		{"not sent, runs", "toolcalls", "entry", "the call seems never to have been sent, while its tool runs and answers", tool, 1},
		{"not sent, sandbox ended", "toolcalls", "entry", "its sandbox, which has the answer, seems to have ended without its call", tool, 0},
		{"not sent, start deadline over", "toolcalls", "entry", "it seems never to have started in time, and its key to be free", hasty, 0},
		{"not ended", "toolcalls", "result", "the call seems to run after its end", tool, 0},
		{"no sandbox", "jobs", "job", "its sandbox seems not to be there (C033)", tool, 0},
		{"no pod", "pods", "job", "its pod seems not to be there", tool, 0},
		{"no key", "leases", "key", "its key seems to be nobody's", tool, 0},
	} {
		t.Run(tc.name, func(t *testing.T) {
			tool, name := tc.tool, "stale-"+strings.NewReplacer(" ", "-", ",", "").Replace(tc.name)
			call := &v1alpha1.ToolCall{ObjectMeta: metav1.ObjectMeta{Namespace: cluster.AgentsNS, Name: name}, Spec: v1alpha1.ToolCallSpec{
				ToolRef: v1alpha1.ToolReference{Namespace: tool.Namespace, Name: tool.Name}, IdempotencyKey: name, Args: ptr.To(cluster.Raw(countingArgs(tc.seconds, 0)))}}
			var matches func(*http.Request, string) bool
			for _, w := range writes {
				if w.name == tc.since {
					matches = w.by(call)
				}
			}
			lock, stale := proxy.held[tc.resource], stale
			if tool == hasty {
				stale += time.Duration(hasty.Spec.StartDeadlineSeconds) * time.Second // it is over while the cache is stale
			}
			r := proxy.on(matches, func(w http.ResponseWriter, pass func(http.ResponseWriter)) {
				lock.Lock()
				time.AfterFunc(stale, lock.Unlock)
				pass(w)
			})
			if err := cluster.Agent.Create(t.Context(), call); err != nil {
				t.Fatal(err)
			}
			r.waitApplied(t)
			again := call.DeepCopy()
			again.ObjectMeta = metav1.ObjectMeta{Namespace: call.Namespace, Name: name + "-again"}
			if err := cluster.Agent.Create(t.Context(), again); err != nil {
				t.Fatal(err)
			}
			lock.RLock()
			lock.RUnlock() //nolint:staticcheck // it only waits until the cache is as before
			cluster.Finish(t.Context(), t, call)
			done(t, call, 0)
			if n := len(call.Status.Attempts); n != 1 {
				t.Errorf("%s: %d attempts, want 1: %s", tc.reason, n, cluster.JSONOf(t, call.Status.Attempts))
			}
			cluster.Finish(t.Context(), t, again)
			started(t, again, 0)
			if ref := again.Status.DuplicateOfRef; ref == nil || ref.Name != call.Name {
				t.Errorf("%s: a call with the same key is no duplicate: %s", tc.reason, cluster.JSONOf(t, again.Status))
			}
		})
	}
}
