package gate

import (
	"fmt"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	apimeta "k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"callgate.dev/callgate/api/v1alpha1"
	"callgate.dev/callgate/internal/sandbox"
)

// permanentGrace is how long a state that only a change can cure may last: an
// object that is created in the same moment may be seen a little later.
const permanentGrace = 5 * time.Second

// createPause is the pause between two attempts to create a sandbox.
const createPause = 2 * time.Second

// Starting is everything that the decision whether a sandbox may get its call
// looks at. No byte of the call was sent.
type Starting struct {
	Now  time.Time
	Call *v1alpha1.ToolCall
	Tool *v1alpha1.Tool
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
// reason that time may cure. words say what, and the API server's reason.
func Unstored(call *v1alpha1.ToolCall, tool *v1alpha1.Tool, now time.Time, words string) Verdict {
	return unstored(call, tool, call.CreationTimestamp.Time, now, words)
}

// Uncreated decides about a call whose sandbox could not be created, for a reason
// that time may cure. words say which.
func Uncreated(s Starting, words string) Verdict {
	since := s.Call.CreationTimestamp.Time
	if c := apimeta.FindStatusCondition(s.Call.Status.Conditions, v1alpha1.ConditionApproved); c != nil {
		// People may have taken longer than a sandbox may take to start.
		if since = s.Now; c.Status == metav1.ConditionTrue {
			since = c.LastTransitionTime.Time
		}
	}
	return unstored(s.Call, s.Tool, since, s.Now, words)
}

func unstored(call *v1alpha1.ToolCall, tool *v1alpha1.Tool, since, now time.Time, words string) Verdict {
	limit := sandbox.StartDeadlineSeconds(tool)
	left := since.Add(time.Duration(limit) * time.Second).Sub(now)
	if left <= 0 {
		return end(v1alpha1.ErrorToolUnavailable, true, "within startDeadlineSeconds (%d), %s", limit, words)
	}
	return withDeadline(wait(ActNone, v1alpha1.ReasonStarting, words, min(left, createPause)), call, now)
}

func start(s Starting) Verdict {
	if s.Job == nil {
		return wait(ActCreateSandbox, v1alpha1.ReasonStarting, "creating the sandbox", time.Second)
	}
	if !sandbox.IsOurs(s.Job, s.Want) {
		return end(v1alpha1.ErrorToolUnavailable, true, "Job %s/%s exists and was not made by Callgate for this call: delete it", s.Job.Namespace, s.Job.Name)
	}
	limit := sandbox.StartDeadlineSeconds(s.Tool)
	if d := s.Job.DeletionTimestamp; d != nil {
		if s.Now.Sub(d.Time) > time.Duration(limit)*time.Second {
			return end(v1alpha1.ErrorToolUnavailable, true, "Job %s/%s, an earlier sandbox of this call, was not gone within startDeadlineSeconds (%d) of its deletion: "+
				"look at its finalizers and at its pod", s.Job.Namespace, s.Job.Name, limit)
		}
		return wait(ActNone, v1alpha1.ReasonStarting, "an earlier sandbox is being deleted", time.Second)
	}
	if !sandbox.SameTemplate(s.Job, s.Want) {
		return wait(ActDeleteSandbox, v1alpha1.ReasonStarting, "the Tool changed; its sandbox is made again", time.Second)
	}
	age := s.Now.Sub(s.Job.CreationTimestamp.Time)
	left := time.Duration(limit)*time.Second - age
	switch s.State.Phase {
	case sandbox.PhaseRunning:
		if s.State.Disrupted {
			// The tool would be ended in the middle of its work.
			return end(v1alpha1.ErrorToolUnavailable, true, "the sandbox is going away before it got the call: %s", s.State.Words)
		}
		if diff := sandbox.Differs(s.Pod, s.Want.Spec.Template.Spec); diff != "" {
			return end(v1alpha1.ErrorToolUnavailable, false, "the sandbox's pod was changed on its way: %s; an admission webhook may have done it", diff)
		}
		return Verdict{Act: ActDispatch, Reason: v1alpha1.ReasonRunning}
	case sandbox.PhaseNeverStarted, sandbox.PhaseEnded:
		return end(v1alpha1.ErrorToolUnavailable, !s.State.Permanent, "the sandbox ended before it got the call: %s", s.State.Words)
	}
	if s.State.Permanent && age > permanentGrace {
		return end(v1alpha1.ErrorToolUnavailable, false, "the sandbox cannot start: %s", s.State.Words)
	}
	if left <= 0 {
		return end(v1alpha1.ErrorToolUnavailable, !s.State.Permanent, "the sandbox did not start within startDeadlineSeconds (%d): %s", limit, s.State.Words)
	}
	if s.State.Permanent {
		left = min(left, permanentGrace-age+time.Second)
	}
	return wait(ActNone, v1alpha1.ReasonStarting, fmt.Sprintf("waiting for the sandbox: %s", s.State.Words), left)
}
