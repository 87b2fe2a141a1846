package gate

import (
	"strings"
	"testing"
	"time"

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
