package faults

import (
	"fmt"
	"testing"

	batchv1 "k8s.io/api/batch/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"callgate.dev/callgate/api/v1alpha1"
	"callgate.dev/callgate/internal/sandbox"
	"callgate.dev/callgate/test/cluster"
)

// warmTool is a counting Tool whose sandboxes wait.
func warmTool(t *testing.T, name string, replicas int32) *v1alpha1.Tool {
	t.Helper()
	tool := countingTool(t, name, func(s *v1alpha1.ToolSpec) { s.Warm = &v1alpha1.WarmPool{Replicas: ptr.To(replicas)} })
	cluster.WaitFor(t.Context(), t, tool, &v1alpha1.ToolList{}, func(o *v1alpha1.Tool) bool {
		w := o.Status.Warm
		return w != nil && *w.Ready == *o.Spec.Warm.Replicas
	}, func(o *v1alpha1.Tool) string { return cluster.JSONOf(t, o.Status) })
	return tool
}

// A call in a sandbox that waited, and a controller that is killed, frozen or
// two: its tool is started once, and nobody else's is in that sandbox.
func warmPool(t *testing.T) {
	whole := t // a controller outlives the row in which it starts
	p := first(t, "")
	for i, tc := range []struct {
		name, point, reason string
		seconds             float64
		between             func(*testing.T, *v1alpha1.ToolCall)
		attempts            int // 0: it depends
		gone                bool
	}{
		{name: "entry written", point: "entry-written", reason: "ready and not accepted: sent again to the same pod", attempts: 1},
		{name: "entry written, sandbox taken by another call", point: "entry-written", reason: "the frame proves that this one never started", between: takeSandbox, attempts: 2},
		{name: "half a frame sent", point: "half-frame", reason: "half a frame is no call: a new attempt", attempts: 2},
		{name: "sent", point: "sent", reason: "accepted or not: the log tells, or the exit code"},
		{name: "accepted", point: "accepted", reason: "accepted, no result, running: its log is followed", seconds: 3, attempts: 1},
		{name: "result seen", point: "result-seen", reason: "a whole result in the log, no status", attempts: 1},
		{name: "accepted, and the call deleted", point: "accepted", reason: "nothing but the sandbox's log says that it is used", seconds: 40, gone: true,
			between: func(t *testing.T, call *v1alpha1.ToolCall) {
				waitStarted(t, call)
				if err := cluster.Admin.Get(t.Context(), client.ObjectKeyFromObject(call), call); err != nil {
					t.Fatal(err)
				}
				if err := cluster.Admin.Delete(t.Context(), call); err != nil {
					t.Fatal(err)
				}
			}},
	} {
		ok := t.Run(tc.name, func(t *testing.T) {
			p.t = t
			tool := warmTool(t, fmt.Sprintf("warm-%d", i), 1)
			p.arm(t, tc.point+":kill")
			call := cluster.Propose(t.Context(), t, tool, countingArgs(tc.seconds, 0))
			p.waitExit()
			if tc.between != nil {
				tc.between(t, call)
			}
			p = p.next(whole)
			p.t = t
			if tc.gone {
				job := &batchv1.Job{}
				name := client.ObjectKey{Namespace: tool.Namespace, Name: call.Status.Attempts[0].Sandbox}
				if err := until(t.Context(), func() (bool, error) {
					err := cluster.Admin.Get(t.Context(), name, job)
					return apierrors.IsNotFound(err), client.IgnoreNotFound(err)
				}); err != nil {
					t.Errorf("%s: the sandbox is still there: %v", tc.reason, err)
				}
				started(t, call, 1)
				return
			}
			cluster.Finish(t.Context(), t, call)
			done(t, call, 0)
			a := call.Status.Attempts
			if tc.attempts > 0 && len(a) != tc.attempts || !sandbox.IsWarm(a[0].Sandbox) {
				t.Errorf("%s: %d attempts, want %d, the first in a sandbox that waited: %s", tc.reason, len(a), tc.attempts, cluster.JSONOf(t, a))
			}
		})
		if !ok {
			return // the next row needs a controller that waits
		}
	}
	t.Run("two leaders at once", func(t *testing.T) {
		p.t = t
		tool := warmTool(t, "warm-leaders", 3)
		p.arm(t, "entry-written:stop")
		calls := []*v1alpha1.ToolCall{cluster.Propose(t.Context(), t, tool, countingArgs(0, 0))}
		p.waitStopped()
		second := startArmed(t, "")
		endLease(t)
		second.waitReady()
		waitStarted(t, calls[0]) // so it leads
		p.thaw()
		for range 6 { // each of the two takes all of them, and all that wait, for its own
			calls = append(calls, cluster.Propose(t.Context(), t, tool, countingArgs(0, 0)))
		}
		p.waitExit()
		for _, call := range calls {
			cluster.Finish(t.Context(), t, call)
			done(t, call, 0)
			ran := 0
			for _, a := range call.Status.Attempts {
				if a.Outcome != v1alpha1.OutcomeNeverStarted {
					ran++
				}
			}
			if ran != 1 {
				t.Errorf("%d attempts started: %s", ran, cluster.JSONOf(t, call.Status.Attempts))
			}
		}
		second.kill()
	})
}
