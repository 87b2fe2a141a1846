package gate

import (
	"strings"
	"testing"
	"time"

	apimeta "k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"callgate.dev/callgate/api/v1alpha1"
)

func TestUnstored(t *testing.T) {
	tool := testTool("echo")
	tool.Spec.StartDeadlineSeconds = 10
	for _, tc := range []struct {
		reason   string
		age      time.Duration
		deadline int32
		ends     bool
		message  string
	}{
		{"time may cure it: it waits with the cluster's words, and tries again", time.Second, 0, false, "connection refused"},
		{"not past startDeadlineSeconds", 10 * time.Second, 0, true, "startDeadlineSeconds (10), connection refused"},
		{"nor past the call's own deadline, with the same words", 5 * time.Second, 5, true, "connection refused"},
	} {
		call := testCall(`{}`)
		call.Spec.DeadlineSeconds = tc.deadline
		v := Unstored(call, &tool, created.Add(tc.age), "connection refused")
		if v.Ended() != tc.ends {
			t.Fatalf("%s: ended is %v", tc.reason, v.Ended())
		}
		text := v.Message
		if tc.ends {
			text = v.Result.Message
			if v.Result.ErrorCode != v1alpha1.ErrorToolUnavailable || !*v.Result.Retryable {
				t.Errorf("%s: %s, retryable %v", tc.reason, v.Result.ErrorCode, *v.Result.Retryable)
			}
		} else if v.After <= 0 || v.After > 2*time.Second || v.Reason != v1alpha1.ReasonStarting {
			t.Errorf("%s: %s after %s", tc.reason, v.Reason, v.After)
		}
		if !strings.Contains(text, tc.message) {
			t.Errorf("%s: the message is %q", tc.reason, text)
		}
	}
}

// The time to create a sandbox begins when the people have agreed.
func TestUncreated(t *testing.T) {
	tool := testTool("echo")
	tool.Spec.StartDeadlineSeconds = 10
	approved := func(status metav1.ConditionStatus, after time.Duration) *metav1.Condition {
		return &metav1.Condition{Type: v1alpha1.ConditionApproved, Status: status, Reason: "x", LastTransitionTime: metav1.NewTime(created.Add(after))}
	}
	for _, tc := range []struct {
		reason   string
		age      time.Duration
		approved *metav1.Condition
		ends     bool
	}{
		{"nobody was asked: since its creation", 9 * time.Second, nil, false},
		{"and no longer", 10 * time.Second, nil, true},
		{"approved in this moment", time.Hour, approved(metav1.ConditionUnknown, 0), false},
		{"approved a while ago", time.Hour + 9*time.Second, approved(metav1.ConditionTrue, time.Hour), false},
		{"too long ago", time.Hour + 10*time.Second, approved(metav1.ConditionTrue, time.Hour), true},
	} {
		call := testCall(`{}`)
		if tc.approved != nil {
			apimeta.SetStatusCondition(&call.Status.Conditions, *tc.approved)
		}
		v := Uncreated(Starting{Now: created.Add(tc.age), Call: call, Tool: &tool}, "connection refused")
		if v.Ended() != tc.ends {
			t.Errorf("%s: ended is %v", tc.reason, v.Ended())
		}
		if v.Ended() && (v.Result.ErrorCode != v1alpha1.ErrorToolUnavailable || !strings.Contains(v.Result.Message, "startDeadlineSeconds (10), connection refused")) {
			t.Errorf("%s: %+v", tc.reason, v.Result)
		}
	}
}
