package gate

import (
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"

	"callgate.dev/callgate/api/v1alpha1"
	"callgate.dev/callgate/internal/dispatch"
	"callgate.dev/callgate/internal/result"
	"callgate.dev/callgate/internal/sandbox"
)

const (
	// maxReads bounds how often the log of an ended sandbox is read.
	maxReads = 5
	// readPause is the pause between two looks at a log.
	readPause = time.Second
	// stopPause is the time between two looks at a pod that is being deleted.
	stopPause = time.Second
)

// Running is everything that the decision about a call with an attempt in its
// status looks at: from here on a tool may have run.
type Running struct {
	Now     time.Time
	Call    *v1alpha1.ToolCall
	Attempt *v1alpha1.Attempt
	// Output says how the tool's answer is read.
	Output result.Spec
	// Pod with the attempt's podUID, nil if it is not there.
	Pod   *corev1.Pod
	State sandbox.State
	// Session with the sandbox in this process, nil if there is none.
	Session *dispatch.Snapshot
	// CanResend: the frame can be made again exactly, because the Tool is the
	// one that the call was decided with.
	CanResend bool
}

// Run decides about a call that was sent, or was about to be.
func Run(r Running) Verdict {
	if s := r.Session; s != nil && s.Result != nil && accepted(r) {
		return Verdict{Result: fromEnvelope(result.Normalize(r.Output, *s.Result)), Outcome: v1alpha1.OutcomeReported}
	}
	if r.Pod == nil {
		return lost(r, "its sandbox is gone")
	}
	switch r.State.Phase {
	case sandbox.PhaseNeverStarted:
		if r.Call.Spec.Cancel {
			return end(v1alpha1.ErrorCancelled, false, "cancelled by spec.cancel before the tool was started").outcome(v1alpha1.OutcomeNeverStarted)
		}
		return end(v1alpha1.ErrorToolUnavailable, true, "the tool was not started: %s", r.State.Words).outcome(v1alpha1.OutcomeNeverStarted)
	case sandbox.PhaseEnded:
		return ended(r)
	}
	return running(r)
}

// accepted says whether the session speaks of this attempt of this call.
func accepted(r Running) bool {
	a := r.Session
	return a != nil && a.Accepted != nil && a.Accepted.CallUID == string(r.Call.UID) && a.Accepted.Attempt == r.Attempt.Number
}

// watchdog is when the sandbox is ended whatever its runner says.
func watchdog(a *v1alpha1.Attempt) time.Time {
	return a.SendTime.Add(time.Duration(a.TimeoutSeconds+sandbox.GraceSeconds) * time.Second)
}

func running(r Running) Verdict {
	overdue := r.Now.After(watchdog(r.Attempt))
	if r.Call.Spec.Cancel || overdue {
		if r.Pod.DeletionTimestamp != nil {
			return wait(ActNone, v1alpha1.ReasonRunning, "ending the sandbox", stopPause)
		}
		return wait(ActStop, v1alpha1.ReasonRunning, "ending the sandbox", stopPause)
	}
	left := watchdog(r.Attempt).Sub(r.Now) + time.Millisecond
	s := r.Session
	switch {
	case s == nil:
		return wait(ActFollow, v1alpha1.ReasonRunning, "", left)
	case !s.Done:
		return wait(ActNone, v1alpha1.ReasonRunning, "", left)
	case s.FromLog && s.Ready && s.Accepted == nil && r.CanResend:
		// The log is there from its first line and shows that no call was
		// accepted: it may be sent again, to this pod only.
		return wait(ActResend, v1alpha1.ReasonRunning, "", left)
	}
	if pause := readPause - r.Now.Sub(s.EndTime); s.FromLog && pause > 0 {
		return wait(ActNone, v1alpha1.ReasonRunning, "", pause)
	}
	return wait(ActFollow, v1alpha1.ReasonRunning, "", left)
}

// ended decides about a sandbox whose container has ended, and whose result,
// if it printed one, did not come through the session.
func ended(r Running) Verdict {
	s := r.Session
	if s == nil || s.Done && !s.FromLog {
		return wait(ActFollow, v1alpha1.ReasonRunning, "", readPause)
	}
	if !s.Done {
		return wait(ActNone, v1alpha1.ReasonRunning, "", readPause)
	}
	if s.Reads < maxReads && s.Err != nil && !s.Ready {
		// Not even the first line could be read: a missing log proves nothing.
		return wait(ActFollow, v1alpha1.ReasonRunning, "", readPause)
	}
	return lost(r, r.State.Words)
}

// lost ends a call whose answer will not come.
func lost(r Running, words string) Verdict {
	again := r.Output.SideEffects == result.SideEffectsNone || r.Output.SideEffects == result.SideEffectsIdempotent
	mayHave := "it may have taken effect"
	switch {
	case r.Call.Spec.Cancel:
		return end(v1alpha1.ErrorCancelled, false, "cancelled by spec.cancel %s", cancelWords(r)).outcome(v1alpha1.OutcomeFailed)
	case r.Now.After(watchdog(r.Attempt)) && accepted(r):
		return end(v1alpha1.ErrorToolTimeout, again, "the tool ran past its time limit of %ds and was ended with its sandbox; %s",
			r.Attempt.TimeoutSeconds, mayHave).outcome(v1alpha1.OutcomeFailed)
	case r.State.OutOfMemory:
		return end(v1alpha1.ErrorToolFailed, false, "the sandbox ran out of memory: raise container.resources.limits.memory of the Tool, or ask for less").
			outcome(v1alpha1.OutcomeFailed)
	}
	return end(v1alpha1.ErrorOutcomeUnknown, again, "the answer is lost: %s; %s", words, mayHave).outcome(v1alpha1.OutcomeUnknown)
}

func cancelWords(r Running) string {
	if accepted(r) {
		return "while the tool was running; it may have taken effect"
	}
	return fmt.Sprintf("after the call was sent to sandbox %s; whether the tool started is not known", r.Attempt.Sandbox)
}
