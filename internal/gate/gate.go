// Package gate decides what happens to a call, purely: what was observed goes
// in, one verdict comes out. There is no client, clock or cache in it.
//
// A call passes these decisions, in this order: [Admit] (may it run, with which
// command?), [Duplicate] (is it the first of its kind?), [Rate] (are there too
// many?), [Approve] (does a person have to agree?), [Queue] (is it its turn?),
// [Start] (is its sandbox ready to get it?) and [Run] (what became of it?).
// All but the last are made again at every look until the call is sent; after
// that only the last.
package gate

import (
	"fmt"
	"time"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/utils/ptr"

	"callgate.dev/callgate/api/v1alpha1"
	"callgate.dev/callgate/internal/jsonvalue"
	"callgate.dev/callgate/internal/result"
)

// Act is what the reconciler has to do before it writes the status.
type Act string

// The acts. Each one may be done again without harm.
const (
	// ActNone: nothing; wait.
	ActNone Act = ""
	// ActConfirm: read Tools and policies from the API server itself, and decide again.
	ActConfirm Act = "Confirm"
	// ActTakeKey: create or take over the Lease of a key, and decide again.
	ActTakeKey Act = "TakeKey"
	// ActCount: count the call in the window of a rate limit, and decide again.
	ActCount Act = "Count"
	// ActCreateSandbox: create the Job.
	ActCreateSandbox Act = "CreateSandbox"
	// ActDeleteSandbox: delete the Job, which never got the call.
	ActDeleteSandbox Act = "DeleteSandbox"
	// ActDispatch: write the attempt into the status and, only if that
	// succeeded, send the call.
	ActDispatch Act = "Dispatch"
	// ActResend: send the call again to the pod that the status names.
	ActResend Act = "Resend"
	// ActFollow: read the log of the sandbox.
	ActFollow Act = "Follow"
	// ActStop: delete the pod.
	ActStop Act = "Stop"
)

// Verdict is what a decision comes to: an end, or an act and a wait.
type Verdict struct {
	Act Act
	// Reason and Message of the Succeeded condition while the call is under
	// way. They never hold arguments or output.
	Reason, Message string
	// After is when to look again although nothing changed. Zero means that the
	// act itself goes on to the next look at once.
	After time.Duration
	// Result ends the call.
	Result *v1alpha1.Result
	// Outcome of the attempt, with Result, if there was one.
	Outcome v1alpha1.AttemptOutcome
	// RetryTime is when the call may be proposed again, with rate_limited.
	RetryTime time.Time
}

// Passed says whether a check has nothing to say: the call goes on to the next.
func (v Verdict) Passed() bool {
	return v.Act == ActNone && v.Reason == "" && v.Result == nil
}

// Ended says whether the call is over.
func (v Verdict) Ended() bool { return v.Result != nil }

func wait(act Act, reason, message string, after time.Duration) Verdict {
	return Verdict{Act: act, Reason: reason, Message: printable(message), After: max(after, time.Millisecond)}
}

func end(code v1alpha1.ErrorCode, retryable bool, format string, args ...any) Verdict {
	return Verdict{Result: Failure(code, retryable, fmt.Sprintf(format, args...))}
}

func (v Verdict) outcome(o v1alpha1.AttemptOutcome) Verdict {
	v.Outcome = o
	return v
}

// Failure is the envelope of a call that did not succeed. The message is made
// printable and bounded: part of it may come from the cluster or from a tool.
func Failure(code v1alpha1.ErrorCode, retryable bool, message string) *v1alpha1.Result {
	return &v1alpha1.Result{
		OK:        ptr.To(false),
		ErrorCode: code,
		Message:   printable(message),
		Retryable: ptr.To(retryable),
	}
}

// maxMessage bounds every message, in bytes: a condition's may have 32 KiB.
const maxMessage = 4096

func printable(message string) string {
	return jsonvalue.Cut(jsonvalue.Printable(message), maxMessage)
}

func fromEnvelope(e result.Envelope) *v1alpha1.Result {
	if !e.OK {
		return Failure(v1alpha1.ErrorCode(e.ErrorCode), e.Retryable, e.Message)
	}
	return &v1alpha1.Result{OK: ptr.To(true), Data: &apiextensionsv1.JSON{Raw: e.Data}, Message: printable(e.Message), Retryable: ptr.To(false)}
}

// Args are the arguments of a call as JSON; absent means {}.
func Args(call *v1alpha1.ToolCall) []byte {
	if call.Spec.Args == nil {
		return []byte("{}")
	}
	return jsonvalue.ArgsOrEmpty(call.Spec.Args.Raw)
}

// deadline is when the call as a whole is over; zero if it has none.
func deadline(call *v1alpha1.ToolCall) time.Time {
	if call.Spec.DeadlineSeconds == 0 {
		return time.Time{}
	}
	return call.CreationTimestamp.Add(time.Duration(call.Spec.DeadlineSeconds) * time.Second)
}

// withDeadline bounds a wait before the start by the call's own deadline: when
// it is over, the call never starts and ends with the code of its wait.
func withDeadline(v Verdict, call *v1alpha1.ToolCall, now time.Time) Verdict {
	d := deadline(call)
	if d.IsZero() || v.Ended() || v.Act == ActConfirm {
		return v
	}
	left := d.Sub(now)
	if left <= 0 {
		why := v.Reason
		if v.Message != "" {
			why += " (" + v.Message + ")"
		}
		return end(v1alpha1.ErrorToolUnavailable, true,
			"the call's deadlineSeconds (%d) passed before the tool started; it was %s%s", call.Spec.DeadlineSeconds, why, attemptWords(call))
	}
	if v.After == 0 || v.After > left {
		v.After = left
	}
	return v
}
