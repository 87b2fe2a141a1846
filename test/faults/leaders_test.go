package faults

import (
	"testing"

	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"callgate.dev/callgate/api/v1alpha1"
	"callgate.dev/callgate/test/cluster"
)

// The leader is frozen between the entry and the first byte of a call; another
// controller becomes leader and brings the call to its end. Then the first one
// goes on where it stopped (C044).
func frozenLeader(t *testing.T) {
	whole := t // the next row's leader outlives this one
	first := first(t, "")
	tool := countingTool(t, "frozen")
	for _, tc := range []struct {
		name, reason string
		seconds      float64
		// ended: the call has ended when the first leader goes on.
		ended bool
		// paused: the first leader's clock stood still, too, as in a machine that was
		// suspended, so that it takes itself for the leader for some seconds more.
		paused bool
	}{
		{name: "thawed after the end", reason: "its frame finds no sandbox that waits", ended: true},
		{name: "thawed while the tool runs", reason: "a second frame is nobody's", seconds: 12},
		{name: "two leaders at once", reason: "only one of two writes of an entry is taken", seconds: 12, paused: true},
	} {
		ok := t.Run(tc.name, func(t *testing.T) {
			first.t = t
			first.arm(t, "entry-written:stop")
			call := cluster.Propose(t.Context(), t, tool, countingArgs(tc.seconds, 0))
			first.waitStopped()
			second := startArmed(t, "")
			if tc.paused {
				endLease(t)
			}
			second.waitReady()
			calls := []*v1alpha1.ToolCall{call}
			if tc.ended {
				cluster.Finish(t.Context(), t, call)
			} else {
				waitStarted(t, call)
			}
			status := cluster.JSONOf(t, call.Status)
			first.thaw()
			if tc.paused {
				for range 6 { // each of the two takes all of them for its own
					calls = append(calls, cluster.Propose(t.Context(), t, tool, countingArgs(0, 0)))
				}
			}
			first.waitExit()
			for _, c := range calls {
				cluster.Finish(t.Context(), t, c)
				done(t, c, 0)
				if n := len(c.Status.Attempts); n != 1 {
					t.Errorf("%s: %d attempts, want 1: %s", tc.reason, n, cluster.JSONOf(t, c.Status.Attempts))
				}
			}
			if err := cluster.Admin.Get(t.Context(), client.ObjectKeyFromObject(call), call); err != nil {
				t.Fatal(err)
			}
			if now := cluster.JSONOf(t, call.Status); tc.ended && now != status {
				t.Errorf("the status of a call that had ended changed from %s to %s", status, now)
			}
			second.kill()
			first = second.next(whole)
			first.t = t
			first.waitReady()
		})
		if !ok {
			return
		}
	}
}

// endLease lets the leader's Lease end within a second: what it writes into it
// is believed, and it writes nothing any more.
func endLease(t *testing.T) {
	t.Helper()
	lease := &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Namespace: install, Name: controllerName}}
	if err := cluster.Admin.Patch(t.Context(), lease, client.RawPatch("application/merge-patch+json", []byte(`{"spec":{"leaseDurationSeconds":1}}`))); err != nil {
		t.Fatal(err)
	}
}
