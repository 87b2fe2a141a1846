package gate

import (
	"testing"
	"time"

	"callgate.dev/callgate/api/v1alpha1"
)

func TestRestored(t *testing.T) {
	for _, tc := range []struct {
		reason string
		label  string
		sent   bool
		before time.Time
		code   v1alpha1.ErrorCode
	}{
		{"an ordinary call", "", false, time.Time{}, ""},
		{"a call that Velero restored is not run", "velero.io/restore-name", false, time.Time{}, v1alpha1.ErrorCancelled},
		{"with an attempt in its status, it may have run", "velero.io/restore-name", true, time.Time{}, v1alpha1.ErrorOutcomeUnknown},
		{"another label is none of our business", "velero.io/backup-name", false, time.Time{}, ""},
		{"a call from before the restore may have run", "", false, created.Add(time.Second), v1alpha1.ErrorOutcomeUnknown},
		{"a call from after it is an ordinary one", "", false, created, ""},
	} {
		call := testCall(`{}`)
		call.Labels = map[string]string{tc.label: "r1"}
		if tc.sent {
			call.Status.Attempts = []v1alpha1.Attempt{{Number: 1}}
		}
		v := Restored(call, tc.before)
		if v.Ended() != (tc.code != "") || v.Ended() && v.Result.ErrorCode != tc.code {
			t.Errorf("%s: %+v", tc.reason, v.Result)
		}
		if v.Ended() && *v.Result.Retryable {
			t.Errorf("%s: it is retryable, and may have run", tc.reason)
		}
		call.Labels, call.Annotations = nil, call.Labels
		if w := Restored(call, tc.before); w.Ended() != v.Ended() {
			t.Errorf("%s: as an annotation it ends: %v", tc.reason, w.Ended())
		}
	}
}
