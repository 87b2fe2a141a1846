package gate

import (
	"strings"
	"testing"
	"time"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"callgate.dev/callgate/api/v1alpha1"
	"callgate.dev/callgate/internal/idempotency"
)

func TestDuplicate(t *testing.T) {
	const mine, other = "call-uid", "first-uid"
	now := created.Add(time.Minute)
	answer := &v1alpha1.Result{OK: ptr.To(true), Data: &apiextensionsv1.JSON{Raw: []byte(`{"n":1}`)}, Retryable: ptr.To(false)}
	failed := Failure(v1alpha1.ErrorToolFailed, false, "exit code 3")
	ran := []v1alpha1.Attempt{{Number: 1, Outcome: v1alpha1.OutcomeReported}}
	record := func(change func(*idempotency.Record)) *idempotency.Record {
		r := &idempotency.Record{Holder: other, Call: types.NamespacedName{Namespace: "agents", Name: "first"}, ArgsDigest: "digest"}
		if change != nil {
			change(r)
		}
		return r
	}
	first := func(result *v1alpha1.Result, attempts []v1alpha1.Attempt) *v1alpha1.ToolCall {
		c := testCall(`{}`)
		c.UID, c.Name, c.Status.Result, c.Status.Attempts = other, "first", result, attempts
		return c
	}
	for _, tc := range []struct {
		reason      string
		record      *idempotency.Record
		holder      *v1alpha1.ToolCall
		sideEffects v1alpha1.SideEffects
		digest      string // of this call, if not the first one's
		byArgs      bool   // the key is the arguments
		deadline    int32

		act       Act
		code      v1alpha1.ErrorCode
		ok        bool
		waits     bool
		passes    bool
		duplicate bool
		message   string
	}{
		{reason: "nobody has the key", act: ActTakeKey},
		{reason: "the key is the call's own", record: record(func(r *idempotency.Record) { r.Holder = mine }), passes: true},
		{reason: "the first call is under way", record: record(nil), holder: first(nil, nil), waits: true, duplicate: true, message: "agents/first with the same spec.idempotencyKey is under way"},
		{reason: "and so long as it is, its key does not expire", record: record(func(r *idempotency.Record) { r.Ended, r.Expires = created, created }), holder: first(nil, ran), waits: true, duplicate: true},
		{reason: "a wait for another call ends at the call's own deadline", record: record(nil), holder: first(nil, nil), deadline: 60, code: v1alpha1.ErrorToolUnavailable, duplicate: true, message: "AwaitingFirstCall"},
		{reason: "its answer is given to all", record: record(nil), holder: first(answer, ran), ok: true, duplicate: true},
		{reason: "its failure, too, if it ran: the same action would fail the same way", record: record(nil), holder: first(failed, ran), code: v1alpha1.ErrorToolFailed, duplicate: true},
		{reason: "an end that invites to try again frees the key", record: record(nil), holder: first(Failure(v1alpha1.ErrorToolTimeout, true, ""), ran), act: ActTakeKey},
		{reason: "a call that was cancelled before it started frees the key", record: record(nil), holder: first(Failure(v1alpha1.ErrorCancelled, false, ""), nil), act: ActTakeKey},
		{reason: "and so does one whose sandbox never started the tool", record: record(nil), holder: first(Failure(v1alpha1.ErrorToolUnavailable, false, ""),
			[]v1alpha1.Attempt{{Number: 1, Outcome: v1alpha1.OutcomeNeverStarted}}), act: ActTakeKey},
		{reason: "a call that may have run before a restore keeps the key, though no attempt was restored", record: record(nil),
			holder: first(Failure(v1alpha1.ErrorOutcomeUnknown, false, ""), nil), code: v1alpha1.ErrorOutcomeUnknown, duplicate: true},
		{reason: "other arguments under the same key are another action", record: record(nil), holder: first(nil, nil), digest: "another", code: v1alpha1.ErrorIdempotencyConflict, message: "agents/first"},
		{reason: "also when the first call has ended", record: record(nil), holder: first(answer, ran), digest: "another", code: v1alpha1.ErrorIdempotencyConflict},
		{reason: "but not with a key that was freed", record: record(nil), holder: first(Failure(v1alpha1.ErrorApprovalDenied, false, ""), nil), digest: "another", act: ActTakeKey},
		{reason: "nor with one that has expired", record: record(func(r *idempotency.Record) { r.Ended, r.Expires = created, now.Add(-1) }), digest: "another", act: ActTakeKey},
		{reason: "a first call that was deleted left its answer", record: record(func(r *idempotency.Record) { r.Sent, r.Ended, r.Expires, r.Result = true, created, now.Add(1), answer }), ok: true, duplicate: true},
		{reason: "until that expires", record: record(func(r *idempotency.Record) { r.Sent, r.Ended, r.Expires, r.Result = true, created, now.Add(-1), answer }), act: ActTakeKey},
		{reason: "an answer too large to be kept is not run for again", record: record(func(r *idempotency.Record) { r.Sent, r.Ended, r.Expires = true, created, now.Add(1) }), code: v1alpha1.ErrorOutcomeUnknown, duplicate: true, message: "was over 65536 bytes"},
		{reason: "a first call that was deleted before it was sent never ran", record: record(nil), act: ActTakeKey},
		{reason: "one that was deleted after it was sent may have run", record: record(func(r *idempotency.Record) { r.Sent = true }), code: v1alpha1.ErrorOutcomeUnknown, duplicate: true, message: "may have taken effect"},
		{reason: "which does not matter to a Tool that can run twice", record: record(func(r *idempotency.Record) { r.Sent = true }), sideEffects: v1alpha1.SideEffectsIdempotent, act: ActTakeKey},
		{reason: "also when its end was noted after it was deleted", record: record(func(r *idempotency.Record) { r.Sent, r.Ended, r.Expires = true, created, now.Add(1) }), sideEffects: v1alpha1.SideEffectsNone, act: ActTakeKey},
		{reason: "but an answer that is kept is given to all", record: record(func(r *idempotency.Record) { r.Sent, r.Ended, r.Expires, r.Result = true, created, now.Add(1), answer }), sideEffects: v1alpha1.SideEffectsNone, ok: true, duplicate: true},
		{reason: "the arguments are in the name of their own key", record: record(nil), holder: first(answer, ran), byArgs: true, ok: true, duplicate: true},
		{reason: "and the words say why the calls are one", record: record(nil), holder: first(nil, nil), byArgs: true, waits: true, duplicate: true, message: "with the same arguments by the same caller"},
	} {
		t.Run(tc.reason, func(t *testing.T) {
			call, tool := testCall(`{}`), testTool("echo")
			call.UID, call.Spec.DeadlineSeconds, tool.Spec.SideEffects = mine, tc.deadline, tc.sideEffects
			k := Keyed{Now: now, Call: call, Tool: &tool, ArgsDigest: "digest", Key: idempotency.Key{Explicit: !tc.byArgs}, Record: tc.record, Holder: tc.holder}
			if tc.digest != "" {
				k.ArgsDigest = tc.digest
			}
			v, duplicate := Duplicate(k)
			text := v.Message
			switch {
			case v.Act != tc.act:
				t.Errorf("act %q", v.Act)
			case v.Passed() != tc.passes:
				t.Errorf("passed: %v", v.Passed())
			case v.Ended() != (tc.code != "" || tc.ok):
				t.Fatalf("ended: %v", v.Ended())
			case tc.waits && (v.Reason != v1alpha1.ReasonAwaitingFirstCall || v.After <= 0):
				t.Errorf("waits as %s for %s", v.Reason, v.After)
			}
			if v.Ended() {
				text = v.Result.Message
				if *v.Result.OK != tc.ok || v.Result.ErrorCode != tc.code {
					t.Errorf("ends with %v %s", *v.Result.OK, v.Result.ErrorCode)
				}
			}
			if !strings.Contains(text, tc.message) {
				t.Errorf("the message is %q", text)
			}
			if (duplicate != nil) != tc.duplicate || duplicate != nil && (duplicate.UID != other || duplicate.Name != "first") {
				t.Errorf("duplicate of %v", duplicate)
			}
		})
	}
}
