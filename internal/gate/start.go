package gate

import (
	"fmt"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	apimeta "k8s.io/apimachinery/pkg/api/meta"

	"callgate.dev/callgate/api/v1alpha1"
	"callgate.dev/callgate/internal/sandbox"
)

// permanentGrace is how long a state that only a change can cure may last: an
// object that is created in the same moment may be seen a little later.
const permanentGrace = 5 * time.Second

// minStay is how long a sandbox that ended without its call stays, at least,
// before another one is made.
const minStay = time.Second

// refusedStay is the same for one whose pod the API server refuses: the Job
// controller asks four times in it, and then ever more rarely. A new Job is
// asked for at once, so that a quota that is freed is not noticed a minute later.
// The last one stays, for what it has to say.
const refusedStay = 10 * time.Second

// imageGrace is the same for an image that its registry does not have: it may
// be pushed in the same minute. The kubelet asks again after 10 s.
const imageGrace = 15 * time.Second

// createPause is the pause between two attempts to create a sandbox.
const createPause = 2 * time.Second

// Starting is everything that the decision whether a sandbox may get its call
// looks at. No byte of the call was sent.
type Starting struct {
	Now  time.Time
	Call *v1alpha1.ToolCall
	Tool *v1alpha1.Tool
	// Since is when the call was allowed to start. Sandboxes that do not start are
	// made again within startDeadlineSeconds from then.
	Since time.Time
	// Want is the sandbox as it is rendered now.
	Want *batchv1.Job
	// Job and Pod as they are; nil if they are not there.
	Job *batchv1.Job
	Pod *corev1.Pod
	// State of the two.
	State sandbox.State
}

// Start decides about the sandbox of a call that may run.
func Start(s Starting) Verdict { return withDeadline(start(s), s.Call, s.Now) }

// Unstored decides about a call for which something could not be stored, for a
// reason that time may cure. words say what, and the API server's reason; since
// is when the call was allowed to start.
func Unstored(call *v1alpha1.ToolCall, tool *v1alpha1.Tool, since, now time.Time, words string) Verdict {
	limit := sandbox.StartDeadlineSeconds(tool)
	left := since.Add(time.Duration(limit) * time.Second).Sub(now)
	if left <= 0 {
		return end(v1alpha1.ErrorToolUnavailable, true, "within startDeadlineSeconds (%d), %s", limit, words)
	}
	return withDeadline(wait(ActNone, v1alpha1.ReasonStarting, words, min(left, createPause)), call, now)
}

func start(s Starting) Verdict {
	limit := time.Duration(sandbox.StartDeadlineSeconds(s.Tool)) * time.Second
	left := limit - s.Now.Sub(s.Since)
	if s.Job == nil {
		if left <= 0 {
			return end(v1alpha1.ErrorToolUnavailable, true, "no sandbox started within startDeadlineSeconds (%d)%s%s", int(limit.Seconds()), lastWords(s.Call), attemptWords(s.Call))
		}
		return wait(ActCreateSandbox, v1alpha1.ReasonStarting, "creating the sandbox", time.Second)
	}
	if !sandbox.IsOurs(s.Job, s.Want) {
		return end(v1alpha1.ErrorToolUnavailable, true, "Job %s/%s exists and was not made by Callgate for this call: delete it", s.Job.Namespace, s.Job.Name)
	}
	if s.Job.DeletionTimestamp != nil {
		if left <= 0 {
			return end(v1alpha1.ErrorToolUnavailable, true, "Job %s/%s, an earlier sandbox of this call, was not gone within startDeadlineSeconds (%d): "+
				"look at its finalizers and at its pod", s.Job.Namespace, s.Job.Name, int(limit.Seconds()))
		}
		return wait(ActNone, v1alpha1.ReasonStarting, "an earlier sandbox is being deleted", time.Second)
	}
	if !sandbox.SameTemplate(s.Job, s.Want) {
		return wait(ActDeleteSandbox, v1alpha1.ReasonStarting, "the Tool changed; its sandbox is made again", time.Second)
	}
	if s.Pod != nil && !s.State.Ended() {
		// Not only when it runs: what was put into it may keep it from that.
		if diff := sandbox.Differs(s.Pod, s.Want.Spec.Template); diff != "" {
			return end(v1alpha1.ErrorToolUnavailable, false, "the sandbox's pod was changed on its way: %s; an admission webhook may have done it", diff)
		}
	}
	switch s.State.Phase {
	case sandbox.PhaseRunning:
		if s.State.Disrupted {
			// The tool would be ended in the middle of its work.
			return replace(s, left, "the sandbox is going away before it got the call: "+s.State.Words)
		}
		return Verdict{Act: ActDispatch, Reason: v1alpha1.ReasonRunning}
	case sandbox.PhaseNeverStarted, sandbox.PhaseEnded:
		return replace(s, left, "the sandbox ended before it got the call: "+s.State.Words)
	}
	if s.Pod == nil && s.State.Refused && left > refusedStay && s.Now.Sub(s.Job.CreationTimestamp.Time) >= stay(s, refusedStay) {
		return wait(ActDeleteSandbox, v1alpha1.ReasonRetrying, "the sandbox is made again: "+s.State.Words, time.Second)
	}
	grace := permanentGrace
	if s.State.ImageMissing {
		grace = imageGrace
	}
	lasted := max(s.Now.Sub(begun(s)), 0)
	if s.State.Permanent && lasted > grace {
		return end(v1alpha1.ErrorToolUnavailable, false, "the sandbox cannot start: %s", s.State.Words)
	}
	if left <= 0 {
		return end(v1alpha1.ErrorToolUnavailable, !s.State.Permanent, "the sandbox did not start within startDeadlineSeconds (%d): %s%s", int(limit.Seconds()), s.State.Words, attemptWords(s.Call))
	}
	if s.State.Permanent {
		left = min(left, grace-lasted+time.Second)
	}
	return wait(ActNone, v1alpha1.ReasonStarting, fmt.Sprintf("waiting for the sandbox: %s", s.State.Words), left)
}

// lastWords are what the call's status says that it waits for, which is why
// there is no sandbox.
func lastWords(call *v1alpha1.ToolCall) string {
	c := apimeta.FindStatusCondition(call.Status.Conditions, v1alpha1.ConditionSucceeded)
	if c == nil || c.Message == "" {
		return ""
	}
	return ": " + c.Message
}

// attemptWords say how the attempt before ended, if it never started: the time
// that is over now was spent on that as well.
func attemptWords(call *v1alpha1.ToolCall) string {
	n := len(call.Status.Attempts)
	if n == 0 || call.Status.Attempts[n-1].Outcome != v1alpha1.OutcomeNeverStarted || call.Status.Attempts[n-1].Message == "" {
		return ""
	}
	return fmt.Sprintf("; attempt %d: %s", call.Status.Attempts[n-1].Number, call.Status.Attempts[n-1].Message)
}

// replace decides about a sandbox that ended without its call: another one is
// made in its place, unless only a change can help or the time is over.
func replace(s Starting, left time.Duration, words string) Verdict {
	if s.State.Permanent || left <= 0 {
		return end(v1alpha1.ErrorToolUnavailable, !s.State.Permanent, "%s", words)
	}
	if pause := stay(s, minStay) - s.Now.Sub(s.Job.CreationTimestamp.Time); pause > 0 {
		return wait(ActNone, v1alpha1.ReasonRetrying, words, min(pause, left, maxBackoff))
	}
	return wait(ActDeleteSandbox, v1alpha1.ReasonRetrying, words, time.Second)
}

// stay is how long a sandbox stays before another one is made: half as long as
// all before it have taken, so that a cause that lasts does not make ever more.
func stay(s Starting, least time.Duration) time.Duration {
	return max(s.Job.CreationTimestamp.Sub(s.Since)/2, least)
}

// begun is when what the sandbox waits for now could begin: its pod may have
// waited for a quota or for a node before. These are times of the API server;
// a node's clock is another.
func begun(s Starting) time.Time {
	t := s.Job.CreationTimestamp.Time
	if s.Pod == nil {
		return t
	}
	if p := s.Pod.CreationTimestamp.Time; p.After(t) {
		t = p
	}
	for _, c := range s.Pod.Status.Conditions {
		// Set by the API server when the scheduler binds the pod.
		if c.Type == corev1.PodScheduled && c.Status == corev1.ConditionTrue && c.LastTransitionTime.After(t) {
			t = c.LastTransitionTime.Time
		}
	}
	return t
}
