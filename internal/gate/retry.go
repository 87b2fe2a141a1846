package gate

import (
	"fmt"
	"slices"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"callgate.dev/callgate/api/v1alpha1"
	"callgate.dev/callgate/internal/jsonvalue"
	"callgate.dev/callgate/internal/sandbox"
)

const (
	// maxAttempts is what status.attempts holds.
	maxAttempts = 64
	// maxBackoff bounds the pause before an attempt; the first is firstBackoff,
	// each further one twice the one before.
	firstBackoff = time.Second
	maxBackoff   = 30 * time.Second
	// maxAttemptMessage bounds what an attempt keeps of how it ended, in bytes.
	maxAttemptMessage = 1024
	// defaultMaxRetries is that of a Tool from before the field.
	defaultMaxRetries = 1
)

// Retrying is everything that the decision looks at whether a call whose
// attempt has ended is tried again.
type Retrying struct {
	Now  time.Time
	Call *v1alpha1.ToolCall
	// Status of the call, with the attempt closed by [Close].
	Status *v1alpha1.ToolCallStatus
	// Tool as it is now; nil if it is gone.
	Tool *v1alpha1.Tool
	// End of the attempt, by [Run].
	End Verdict
}

// Retry decides whether the end of an attempt is the end of the call. Only an
// end that is retryable can be followed by another attempt: the tool was never
// started, it promised with exit code 75 that nothing was done, or it may safely
// run again. Attempts that started are bounded by the Tool's maxRetries, the
// others by its startDeadlineSeconds, all by the call's own deadline.
func Retry(r Retrying) Verdict {
	v := retry(r)
	if v.Ended() && r.End.Outcome == v1alpha1.OutcomeNeverStarted {
		// An attempt before it may have done something all the same.
		return AfterAttempts(r.Status.Attempts, r.Tool, v)
	}
	return v
}

func retry(r Retrying) Verdict {
	attempts := r.Status.Attempts
	if !*r.End.Result.Retryable || r.Tool == nil || r.Tool.DeletionTimestamp != nil || len(attempts) >= maxAttempts {
		return r.End
	}
	pause := backoff(len(attempts))
	if d := deadline(r.Call); !d.IsZero() && !r.Now.Add(pause).Before(d) {
		return r.End
	}
	if r.End.Outcome == v1alpha1.OutcomeNeverStarted {
		if limit := sandbox.StartDeadlineSeconds(r.Tool); r.Now.Add(pause).Sub(startingSince(r.Status, r.Now)) >= time.Duration(limit)*time.Second {
			return r.End
		}
	} else if started(r.Status) > maxRetries(r.Tool) {
		return r.End
	}
	last := &attempts[len(attempts)-1]
	return wait(ActNone, v1alpha1.ReasonRetrying, fmt.Sprintf("attempt %d ended with %s; the call is tried again", last.Number, last.ErrorCode), pause)
}

func maxRetries(t *v1alpha1.Tool) int {
	if n := t.Spec.MaxRetries; n != nil {
		return int(*n)
	}
	return defaultMaxRetries
}

// started counts the attempts that may have started the tool.
func started(s *v1alpha1.ToolCallStatus) (n int) {
	for i := range s.Attempts {
		if s.Attempts[i].Outcome != v1alpha1.OutcomeNeverStarted {
			n++
		}
	}
	return n
}

// startingSince is when the call was last allowed to start.
func startingSince(s *v1alpha1.ToolCallStatus, now time.Time) time.Time {
	if s.StartingTime == nil {
		return now
	}
	return s.StartingTime.Time
}

func backoff(attempts int) time.Duration {
	return min(firstBackoff<<min(max(attempts-1, 0), 10), maxBackoff)
}

// Rest is the pause before the next attempt of a call; nothing if it is over, or
// the call had none. A Tool that became unsafe to run twice ends the call.
func Rest(call *v1alpha1.ToolCall, tool *v1alpha1.Tool, now time.Time) Verdict {
	n := len(call.Status.Attempts)
	if n == 0 {
		return Verdict{}
	}
	last := &call.Status.Attempts[n-1]
	if mayHaveHadEffect(call.Status.Attempts) && !again(tool) {
		return end(v1alpha1.ErrorToolUnavailable, false, "Tool %s/%s changed to sideEffects: NonIdempotent, and the call may have taken effect", tool.Namespace, tool.Name)
	}
	if last.EndTime == nil {
		return Verdict{}
	}
	left := last.EndTime.Add(backoff(n)).Sub(now)
	if left <= 0 || left > maxBackoff { // the clock was put back
		return Verdict{}
	}
	return withDeadline(wait(ActNone, v1alpha1.ReasonRetrying, fmt.Sprintf("attempt %d ended with %s; the call is tried again", last.Number, last.ErrorCode), left), call, now)
}

// mayHaveHadEffect says whether any attempt ended in a way after which only a
// tool that is safe to run twice may run again: every failure of one that may
// have started but exit code 75.
func mayHaveHadEffect(attempts []v1alpha1.Attempt) bool {
	return slices.ContainsFunc(attempts, func(a v1alpha1.Attempt) bool {
		return a.Outcome != v1alpha1.OutcomeNeverStarted && a.ErrorCode != v1alpha1.ErrorToolFailed
	})
}

// Close brings the end of an attempt into its record.
func Close(a *v1alpha1.Attempt, v Verdict, now time.Time) {
	a.Outcome = v.Outcome
	a.EndTime = ptr.To(metav1.NewMicroTime(now))
	if !*v.Result.OK {
		a.ErrorCode, a.Message = v.Result.ErrorCode, jsonvalue.Cut(v.Result.Message, maxAttemptMessage)
	}
}

// AfterAttempts is the end of a call that was to be tried again and cannot be:
// what happened in the last attempt that may have started stays the answer.
// tool is the Tool as it is now, nil if it is gone: where it is not safe to run
// twice any more, no end invites to propose the call again.
func AfterAttempts(attempts []v1alpha1.Attempt, tool *v1alpha1.Tool, v Verdict) Verdict {
	if !v.Ended() || *v.Result.OK {
		return v
	}
	for i := range slices.Backward(attempts) {
		a := &attempts[i]
		if a.Outcome == v1alpha1.OutcomeNeverStarted {
			continue
		}
		code := a.ErrorCode
		if v.Result.ErrorCode == v1alpha1.ErrorCancelled {
			code = v1alpha1.ErrorCancelled
		}
		retryable := *v.Result.Retryable && (tool == nil || again(tool) || !mayHaveHadEffect(attempts))
		v.Result = Failure(code, retryable, fmt.Sprintf("attempt %d ended with %s: %s; it was not tried again: %s: %s",
			a.Number, a.ErrorCode, a.Message, v.Result.ErrorCode, v.Result.Message))
		return v
	}
	return v
}
