package gate

import (
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"callgate.dev/callgate/api/v1alpha1"
)

// attempts makes closed attempts; a letter each: N never started, R reported, U unknown.
func attempts(outcomes string, code v1alpha1.ErrorCode) []v1alpha1.Attempt {
	var all []v1alpha1.Attempt
	for i, o := range outcomes {
		outcome := map[rune]v1alpha1.AttemptOutcome{'N': v1alpha1.OutcomeNeverStarted, 'R': v1alpha1.OutcomeReported, 'U': v1alpha1.OutcomeUnknown}[o]
		all = append(all, v1alpha1.Attempt{Number: int32(i + 1), Outcome: outcome, ErrorCode: code, Message: "it said so"})
	}
	return all
}

func TestRetry(t *testing.T) {
	for _, tc := range []struct {
		reason     string
		outcomes   string
		code       v1alpha1.ErrorCode
		final      bool // the end is not retryable
		maxRetries *int32
		deadline   int32
		starting   time.Duration // since the call was allowed to start
		noTool     bool

		again time.Duration // the pause; 0 means that the call ends
	}{
		{reason: "exit code 75, or a timeout of a tool that may run twice", outcomes: "R", code: "tool_timeout", again: time.Second},
		{reason: "an end that no repetition cures", outcomes: "R", code: "tool_failed", final: true},
		{reason: "by default once", outcomes: "RR", code: "tool_timeout"},
		{reason: "as often as the Tool says, with twice the pause", outcomes: "RR", code: "tool_timeout", maxRetries: ptr.To[int32](2), again: 2 * time.Second},
		{reason: "or never", outcomes: "R", code: "tool_timeout", maxRetries: ptr.To[int32](0)},
		{reason: "one that never started is not counted", outcomes: "NRN", code: "tool_unavailable", maxRetries: ptr.To[int32](0), again: 4 * time.Second},
		{reason: "nor are those before it", outcomes: "NNR", code: "outcome_unknown", again: 4 * time.Second},
		{reason: "but the time to start is over all of them", outcomes: "NN", code: "tool_unavailable", starting: 118 * time.Second},
		{reason: "until then", outcomes: "NN", code: "tool_unavailable", starting: 117 * time.Second, again: 2 * time.Second},
		{reason: "a started one does not end by the time to start", outcomes: "R", code: "tool_timeout", starting: time.Hour, again: time.Second},
		{reason: "the pause has an upper bound", outcomes: "NNNNNNNN", code: "tool_unavailable", again: 30 * time.Second},
		{reason: "not past the call's own deadline", outcomes: "R", code: "tool_timeout", deadline: 61},
		{reason: "but before it", outcomes: "R", code: "tool_timeout", deadline: 62, again: time.Second},
		{reason: "a Tool that is gone takes no new attempt", outcomes: "R", code: "tool_timeout", noTool: true},
		{reason: "status holds 64 attempts", outcomes: strings.Repeat("N", 64), code: "tool_unavailable"},
	} {
		t.Run(tc.reason, func(t *testing.T) {
			now := created.Add(time.Minute)
			tool := testTool("echo")
			tool.Spec.MaxRetries = tc.maxRetries
			call := testCall(`{}`)
			call.Spec.DeadlineSeconds = tc.deadline
			status := &v1alpha1.ToolCallStatus{Attempts: attempts(tc.outcomes, tc.code), StartingTime: ptr.To(metav1.NewMicroTime(now.Add(-tc.starting)))}
			r := Retrying{Now: now, Call: call, Status: status, Tool: &tool,
				End: Verdict{Result: Failure(tc.code, !tc.final, "it said so"), Outcome: status.Attempts[len(status.Attempts)-1].Outcome}}
			if tc.noTool {
				r.Tool = nil
			}
			v := Retry(r)
			if v.Ended() != (tc.again == 0) || !v.Ended() && (v.After != tc.again || v.Reason != v1alpha1.ReasonRetrying) {
				t.Fatalf("ended %v, %s after %s, want %s", v.Ended(), v.Reason, v.After, tc.again)
			}
			if !v.Ended() && strings.Contains(v.Message, "it said so") {
				t.Errorf("a condition quotes the tool: %q", v.Message)
			}
		})
	}
}

func TestRest(t *testing.T) {
	now := created.Add(time.Minute)
	tool := testTool("echo")
	for _, tc := range []struct {
		reason   string
		outcomes string
		ago      time.Duration
		left     time.Duration
	}{
		{"no attempt, no pause", "", 0, 0},
		{"a second after the first", "R", 400 * time.Millisecond, 600 * time.Millisecond},
		{"over", "R", time.Second, 0},
		{"twice as long after the second", "RN", 500 * time.Millisecond, 1500 * time.Millisecond},
		{"a clock that was put back does not make it wait for ever", "R", -time.Hour, 0},
	} {
		call := testCall(`{}`)
		if call.Status.Attempts = attempts(tc.outcomes, "tool_failed"); len(call.Status.Attempts) > 0 {
			call.Status.Attempts[len(call.Status.Attempts)-1].EndTime = ptr.To(metav1.NewMicroTime(now.Add(-tc.ago)))
		}
		if v := Rest(call, &tool, now); v.After != tc.left || v.Passed() != (tc.left == 0) {
			t.Errorf("%s: %s", tc.reason, v.After)
		}
	}
}

// What one attempt may have done is not forgotten because a later one never started.
func TestRetryEndsWithWhatMayHaveHappened(t *testing.T) {
	now := created.Add(time.Minute)
	tool := testTool("echo")
	tool.Spec.SideEffects = v1alpha1.SideEffectsIdempotent
	for _, tc := range []struct {
		reason   string
		outcomes string
		end      *v1alpha1.Result
		code     v1alpha1.ErrorCode
		message  string
	}{
		{"the answer of the first was lost, the second never started", "UN", Failure("tool_unavailable", true, "no call came"), "outcome_unknown",
			"attempt 1 ended with outcome_unknown: it said so; it was not tried again: tool_unavailable: no call came"},
		{"cancelled, and the first may have had an effect", "UN", Failure("cancelled", false, "by spec.cancel"), "cancelled",
			"attempt 1 ended with outcome_unknown: it said so; it was not tried again: cancelled: by spec.cancel"},
		{"none started", "NN", Failure("tool_unavailable", true, "no call came"), "tool_unavailable", "no call came"},
		{"the last one started, and is the answer itself", "NU", Failure("outcome_unknown", false, "lost"), "outcome_unknown", "lost"},
	} {
		status := &v1alpha1.ToolCallStatus{Attempts: attempts(tc.outcomes, "outcome_unknown"), StartingTime: ptr.To(metav1.NewMicroTime(now.Add(-time.Hour)))}
		end := Verdict{Result: tc.end, Outcome: status.Attempts[len(tc.outcomes)-1].Outcome}
		v := Retry(Retrying{Now: now, Call: testCall(`{}`), Status: status, Tool: &tool, End: end})
		if !v.Ended() || v.Result.ErrorCode != tc.code || v.Result.Message != tc.message || *v.Result.Retryable != *tc.end.Retryable || v.Outcome != end.Outcome {
			t.Errorf("%s: %s %+v", tc.reason, v.Outcome, v.Result)
		}
	}
}

// A Tool that became unsafe to run twice is not run again after an attempt that
// may have had an effect.
func TestRestAfterToolBecameUnsafe(t *testing.T) {
	for _, tc := range []struct {
		reason      string
		outcomes    string
		code        v1alpha1.ErrorCode
		sideEffects v1alpha1.SideEffects
		ends        bool
	}{
		{"its answer was lost", "U", "outcome_unknown", v1alpha1.SideEffectsNonIdempotent, true},
		{"it ran out of time", "R", "tool_timeout", v1alpha1.SideEffectsNonIdempotent, true},
		{"also if one that never started came after it", "UN", "outcome_unknown", v1alpha1.SideEffectsNonIdempotent, true},
		{"a second run is safe", "U", "outcome_unknown", v1alpha1.SideEffectsIdempotent, false},
		{"it promised with exit code 75 that nothing was done", "R", "tool_failed", v1alpha1.SideEffectsNonIdempotent, false},
		{"it never started", "N", "tool_unavailable", v1alpha1.SideEffectsNonIdempotent, false},
	} {
		tool := testTool("echo")
		tool.Spec.SideEffects = tc.sideEffects
		call := testCall(`{}`)
		call.Status.Attempts = attempts(tc.outcomes, tc.code)
		if v := Rest(call, &tool, created); v.Ended() != tc.ends || v.Ended() && !strings.Contains(v.Result.Message, "Tool tools/echo changed") {
			t.Errorf("%s: %+v", tc.reason, v.Result)
		}
	}
}

func TestAfterAttempts(t *testing.T) {
	for _, tc := range []struct {
		reason   string
		outcomes string
		end      *v1alpha1.Result
		code     v1alpha1.ErrorCode
		message  string
	}{
		{"without an attempt the end stands", "", Failure("tool_not_allowed", false, "no policy"), "tool_not_allowed", "no policy"},
		{"nor one that never started", "N", Failure("tool_not_allowed", false, "no policy"), "tool_not_allowed", "no policy"},
		{"what may have happened stays the answer, with why there was no further attempt", "RN", Failure("tool_not_allowed", false, "no policy"),
			"tool_timeout", "attempt 1 ended with tool_timeout: it said so; it was not tried again: tool_not_allowed: no policy"},
		{"a cancelled call is cancelled, and says what happened before", "R", Failure("cancelled", false, "by spec.cancel"),
			"cancelled", "attempt 1 ended with tool_timeout: it said so; it was not tried again: cancelled: by spec.cancel"},
		{"a result of another call stands", "R", &v1alpha1.Result{OK: ptr.To(true), Retryable: ptr.To(false)}, "", ""},
	} {
		v := AfterAttempts(attempts(tc.outcomes, "tool_timeout"), nil, Verdict{Result: tc.end})
		if v.Result.ErrorCode != tc.code || v.Result.Message != tc.message || *v.Result.Retryable {
			t.Errorf("%s: %s %q, retryable %v", tc.reason, v.Result.ErrorCode, v.Result.Message, *v.Result.Retryable)
		}
	}
	for _, tc := range []struct {
		reason      string
		outcomes    string
		sideEffects v1alpha1.SideEffects
		retryable   bool
	}{
		{"a second run is safe", "R", v1alpha1.SideEffectsIdempotent, true},
		{"the Tool became unsafe to run twice, and an attempt may have had an effect", "R", v1alpha1.SideEffectsNonIdempotent, false},
		{"the same, and none started", "N", v1alpha1.SideEffectsNonIdempotent, true},
	} {
		tool := testTool("echo")
		tool.Spec.SideEffects = tc.sideEffects
		if v := AfterAttempts(attempts(tc.outcomes, "tool_timeout"), &tool, Verdict{Result: Failure("approval_expired", true, "nobody agreed")}); *v.Result.Retryable != tc.retryable {
			t.Errorf("%s: retryable %v", tc.reason, *v.Result.Retryable)
		}
	}
	if v := AfterAttempts(nil, nil, Verdict{Act: ActDispatch}); v.Act != ActDispatch || v.Ended() {
		t.Errorf("a wait becomes %+v", v)
	}
}
