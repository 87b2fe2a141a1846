package controllers

import (
	"context"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"callgate.dev/callgate/api/v1alpha1"
	"callgate.dev/callgate/internal/gate"
	"callgate.dev/callgate/internal/idempotency"
)

// liveCall is the API server, which has one call.
type liveCall struct {
	client.Client
	call    v1alpha1.ToolCall
	deleted int
}

func (l *liveCall) Get(_ context.Context, _ client.ObjectKey, o client.Object, _ ...client.GetOption) error {
	l.call.DeepCopyInto(o.(*v1alpha1.ToolCall))
	return nil
}

func (l *liveCall) Delete(context.Context, client.Object, ...client.DeleteOption) error {
	l.deleted++
	return nil
}

// What a call that seems never to have been sent leaves behind is removed only
// if the API server, too, knows of no attempt.
func TestNothingIsRemovedOnAnOldState(t *testing.T) {
	call := &v1alpha1.ToolCall{ObjectMeta: metav1.ObjectMeta{Namespace: "agents", Name: "call", UID: "call", ResourceVersion: "1"}}
	for _, tc := range []struct {
		name, reason string
		live         func(*v1alpha1.ToolCall)
		sent, stays  bool
	}{
		{"as it is", "nothing has changed", func(*v1alpha1.ToolCall) {}, true, false},
		{"written to", "somebody else's writes do not matter", func(c *v1alpha1.ToolCall) { c.ResourceVersion = "2" }, true, false},
		{"sent", "its tool may run", func(c *v1alpha1.ToolCall) { c.Status.Attempts = []v1alpha1.Attempt{{Number: 1}} }, true, true},
		{"made again", "another call of that name", func(c *v1alpha1.ToolCall) { c.UID = types.UID("other") }, true, true},
		{"key not sent", "the key itself says that no call was sent", func(*v1alpha1.ToolCall) {}, false, false},
	} {
		t.Run(tc.name, func(t *testing.T) {
			server := &liveCall{call: *call.DeepCopy()}
			tc.live(&server.call)
			r := &ToolCallReconciler{Client: server, APIReader: server}
			lease := idempotency.New(idempotency.Key{Lease: "callgate-key-1"}, &v1alpha1.Tool{}, call, "digest", "install", time.Now())
			if tc.sent {
				idempotency.Send(lease, 1)
			}
			status := &v1alpha1.ToolCallStatus{Result: gate.Failure(v1alpha1.ErrorToolUnavailable, true, "it did not start")}
			err := r.settleKey(t.Context(), lease, call, status)
			if tc.stays != (server.deleted == 0) || tc.stays != apierrors.IsConflict(err) {
				t.Errorf("%s: deleted %d times, %v", tc.reason, server.deleted, err)
			}
			if !tc.sent {
				return
			}
			if err := r.sameAttempts(t.Context(), call); tc.stays != apierrors.IsConflict(err) {
				t.Errorf("%s: %v", tc.reason, err)
			}
		})
	}
}
