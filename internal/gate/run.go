package gate

import (
	"errors"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"

	"callgate.dev/callgate/api/v1alpha1"
	"callgate.dev/callgate/internal/dispatch"
	"callgate.dev/callgate/internal/jsonvalue"
	"callgate.dev/callgate/internal/result"
	"callgate.dev/callgate/internal/sandbox"
	"callgate.dev/callgate/internal/wire"
)

const (
	// maxReads bounds how often the log of an ended sandbox is read, as long as
	// it cannot be read to its end: a kubelet may be starting again.
	maxReads = 10
	// readPause is the pause between two looks at a log.
	readPause = time.Second
	// stopPause is the time between two looks at a pod that is being deleted.
	stopPause = time.Second
	// stopSoon is how far off the end of a deleted pod may be without asking for
	// a sooner one.
	stopSoon = 5 * time.Second
	// stopLimit is how long a pod may outlive its deletion, until its node is
	// taken for lost.
	stopLimit = 30 * time.Second
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
	s := r.Session
	switch {
	case s != nil && s.Result != nil && accepted(r) && r.State.Disrupted && cutOff(s.Result):
		return lost(r, "the tool was ended together with its sandbox: "+r.State.Words)
	case s != nil && s.Result != nil && accepted(r):
		return Verdict{Result: fromEnvelope(result.Normalize(r.Output, *s.Result)), Outcome: v1alpha1.OutcomeReported}
	case s != nil && s.Accepted != nil && !accepted(r):
		// A sandbox serves one call, ever, and the frame proves which.
		return neverStarted(r, "its sandbox had taken another call")
	case r.Pod == nil && s != nil && !s.Done && !overdue(r):
		// The pod's last words may be on their way.
		return wait(ActNone, v1alpha1.ReasonRunning, "its sandbox is gone", untilOverdue(r))
	case r.Pod == nil:
		return lost(r, "its sandbox is gone")
	case r.State.Phase == sandbox.PhaseNeverStarted && !accepted(r):
		return neverStarted(r, r.State.Words)
	case r.State.Ended():
		return ended(r)
	}
	return running(r)
}

// cutOff says whether a tool's end looks like that of a process which was ended
// from outside, with a signal or, by a shell that waited for one, with its code.
func cutOff(res *wire.Result) bool {
	const sigkill, sigterm = 128 + 9, 128 + 15
	switch {
	case res.TimedOut || res.StartErrorKind != "":
		return false
	case res.Signal != "":
		return res.Signal == "SIGKILL" || res.Signal == "SIGTERM"
	}
	return res.ExitCode == sigkill || res.ExitCode == sigterm
}

func neverStarted(r Running, words string) Verdict {
	v := end(v1alpha1.ErrorToolUnavailable, !r.State.Permanent, "the tool was not started: %s", words)
	if by := withdrawn(r.Call); by != "" {
		v = end(v1alpha1.ErrorCancelled, false, "cancelled by %s before the tool was started", by)
	}
	return v.outcome(v1alpha1.OutcomeNeverStarted)
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

func overdue(r Running) bool { return r.Now.After(watchdog(r.Attempt)) }

func untilOverdue(r Running) time.Duration {
	return watchdog(r.Attempt).Sub(r.Now) + time.Millisecond
}

func running(r Running) Verdict {
	if withdrawn(r.Call) != "" || overdue(r) {
		return stop(r)
	}
	s := r.Session
	switch {
	case s != nil && !s.Done:
		return wait(ActNone, v1alpha1.ReasonRunning, "", untilOverdue(r))
	case s != nil && s.Ready && s.Accepted == nil && errors.Is(s.Err, dispatch.ErrNotAccepted) && r.CanResend && sameArgs(r.Call):
		// The log is there from its first line and shows that no call was
		// accepted: it may be sent again, to this pod only.
		return wait(ActResend, v1alpha1.ReasonRunning, "", untilOverdue(r))
	}
	if pause := untilRead(r); pause > 0 {
		return wait(ActNone, v1alpha1.ReasonRunning, "", pause)
	}
	return wait(ActFollow, v1alpha1.ReasonRunning, "", untilOverdue(r))
}

// sameArgs says whether the arguments are those that were judged.
func sameArgs(call *v1alpha1.ToolCall) bool {
	digest, err := jsonvalue.CanonicalDigest(Args(call))
	return err == nil && digest == call.Status.ArgsDigest
}

// stop ends a sandbox that may still work.
func stop(r Running) Verdict {
	d := r.Pod.DeletionTimestamp // the end of its grace period
	switch {
	case d == nil || d.After(r.Now.Add(stopSoon)):
		return wait(ActStop, v1alpha1.ReasonRunning, "ending the sandbox", stopPause)
	case outlives(r):
		return lost(r, fmt.Sprintf("node %s did not end its sandbox within %s", r.Pod.Spec.NodeName, stopLimit))
	}
	return wait(ActNone, v1alpha1.ReasonRunning, "ending the sandbox", stopPause)
}

// Unstopped decides about a call whose sandbox has to be ended and must not be:
// its namespace is closed to the controller, or refuses deletions. words are the
// API server's.
func Unstopped(r Running, words string) Verdict {
	words = "the sandbox cannot be ended: " + words
	if left := watchdog(r.Attempt).Add(stopLimit).Sub(r.Now); left > 0 {
		return wait(ActNone, v1alpha1.ReasonRunning, words, min(left, 2*stopPause))
	}
	return end(v1alpha1.ErrorOutcomeUnknown, repeatable(r.Output.SideEffects), "the answer is lost: %s; it may have taken effect", words).outcome(v1alpha1.OutcomeUnknown)
}

// outlives says whether a pod was not ended long after its deletion: its node
// is silent, and what became of the tool is not known there either.
func outlives(r Running) bool {
	return r.Pod != nil && !r.State.Ended() && r.Pod.DeletionTimestamp != nil && r.Now.Sub(r.Pod.DeletionTimestamp.Time) > stopLimit
}

// untilRead is what is left of the pause after the last read of the log.
func untilRead(r Running) time.Duration {
	if s := r.Session; s != nil && s.FromLog {
		return readPause - r.Now.Sub(s.EndTime)
	}
	return 0
}

// ended decides about a sandbox whose container has ended, and whose result,
// if it printed one, did not come through the session.
func ended(r Running) Verdict {
	s := r.Session
	if s != nil && !s.Done {
		return wait(ActNone, v1alpha1.ReasonRunning, "", readPause)
	}
	if s != nil && s.Reads > 0 {
		// Without its first line or its end a log proves nothing.
		whole := s.Ready && errors.Is(s.Err, dispatch.ErrNoResult)
		if whole || s.Reads >= maxReads {
			return lost(r, r.State.Words)
		}
	}
	if pause := untilRead(r); pause > 0 {
		return wait(ActNone, v1alpha1.ReasonRunning, "", pause)
	}
	return wait(ActFollow, v1alpha1.ReasonRunning, "", readPause)
}

// lost ends a call whose answer will not come.
func lost(r Running, words string) Verdict {
	again := repeatable(r.Output.SideEffects)
	mayHave := "it may have taken effect"
	switch {
	case withdrawn(r.Call) != "":
		return end(v1alpha1.ErrorCancelled, false, "cancelled by %s %s", withdrawn(r.Call), cancelWords(r)).outcome(v1alpha1.OutcomeFailed)
	case r.State.OutOfMemory:
		return end(v1alpha1.ErrorToolFailed, false, "the sandbox ran out of memory%s: raise container.resources.limits.memory of the Tool, or ask for less", memoryWords(r.Pod)).
			outcome(v1alpha1.OutcomeFailed)
	case overdue(r) && accepted(r) && !outlives(r):
		return end(v1alpha1.ErrorToolTimeout, again, "the tool ran past its time limit of %ds and was ended with its sandbox; %s",
			r.Attempt.TimeoutSeconds, mayHave).outcome(v1alpha1.OutcomeFailed)
	}
	if s := r.Session; s != nil && s.Err != nil {
		words += "; " + s.Err.Error()
	}
	return end(v1alpha1.ErrorOutcomeUnknown, again, "the answer is lost: %s; %s", words, mayHave).outcome(v1alpha1.OutcomeUnknown)
}

// memoryWords name the limit that was reached: the Tool's, and room for /tmp and for the runner.
func memoryWords(pod *corev1.Pod) string {
	if pod != nil {
		for _, c := range pod.Spec.Containers {
			if limit := c.Resources.Limits.Memory(); c.Name == sandbox.Container && !limit.IsZero() {
				return fmt.Sprintf(" (its limit is %s, with /tmp and the runner)", limit)
			}
		}
	}
	return ""
}

func cancelWords(r Running) string {
	if accepted(r) {
		return "while the tool was running; it may have taken effect"
	}
	return fmt.Sprintf("after the call was sent to sandbox %s; whether the tool started is not known", r.Attempt.Sandbox)
}

// repeatable says whether a second run is safe, also beside the first one.
func repeatable(sideEffects string) bool {
	return sideEffects == result.SideEffectsNone || sideEffects == result.SideEffectsIdempotent
}
