package sandbox

import (
	"fmt"
	"strings"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"

	"callgate.dev/callgate/internal/wire"
)

// Phase is how far a sandbox is.
type Phase string

// The phases of a sandbox, in the order of its life.
const (
	// PhaseMissing: there is no Job.
	PhaseMissing Phase = "Missing"
	// PhaseStarting: the Job is there, its container does not run yet.
	PhaseStarting Phase = "Starting"
	// PhaseRunning: the container runs; it waits for a call or works on it.
	PhaseRunning Phase = "Running"
	// PhaseNeverStarted: it ended, and surely no call was accepted in it.
	PhaseNeverStarted Phase = "NeverStarted"
	// PhaseEnded: it ended, and a call that was sent to it may have run in it.
	PhaseEnded Phase = "Ended"
)

// State is what the cluster says of one sandbox.
type State struct {
	Phase Phase
	// Words are the cluster's own: why it does not start, or how it ended.
	Words string
	// Permanent: waiting longer cannot help, only a change can.
	Permanent bool
	// OutOfMemory: the kernel ended the container for its memory limit.
	OutOfMemory bool
	// Disrupted: the pod was told to go away (drain, eviction, preemption).
	Disrupted bool
}

// Ended says whether the sandbox's container is over, so that it prints nothing more.
func (s State) Ended() bool { return s.Phase == PhaseEnded || s.Phase == PhaseNeverStarted }

// permanentReasons are the waiting reasons of a container that only a change
// of the Tool or of the namespace can cure. CreateContainerError is none of
// them: a node under load gives it for its own timeouts, too.
var permanentReasons = map[string]bool{
	"InvalidImageName":           true,
	"CreateContainerConfigError": true,
	"RunContainerError":          true,
	"ErrImageNeverPull":          true,
}

// Observe reads the state of a sandbox. job and pod may be nil; events are the
// warnings of the Job, oldest first. It looks at container states and never at
// the pod's phase alone: a pod can be Failed though its container exited 0
// (kubernetes/kubernetes#115688).
func Observe(job *batchv1.Job, pod *corev1.Pod, events []corev1.Event) State {
	if pod == nil {
		return observeJob(job, events)
	}
	s := State{}
	var disruption string
	s.Disrupted, disruption = disrupted(pod)
	var status *corev1.ContainerStatus
	for i := range pod.Status.ContainerStatuses {
		if pod.Status.ContainerStatuses[i].Name == Container {
			status = &pod.Status.ContainerStatuses[i]
		}
	}
	notRunning := PhaseStarting
	if pod.Status.Phase == corev1.PodFailed || pod.Status.Phase == corev1.PodSucceeded {
		// Refused before any container; or the state of one was lost with its
		// node or in an eviction, so it proves nothing.
		notRunning = PhaseEnded
	}
	switch {
	case status == nil:
		s.Phase, s.Words = notRunning, podWords(pod)
	case status.RestartCount > 0 || status.LastTerminationState.Terminated != nil:
		// A second container in the same pod: the first may have had the call.
		s.Phase, s.Words = PhaseEnded, "the sandbox's container was started a second time"
	case status.State.Running != nil:
		s.Phase, s.Words = PhaseRunning, disruption
	case status.State.Terminated != nil:
		s = observeTerminated(s, status.State.Terminated)
	default:
		s.Phase, s.Words = notRunning, podWords(pod)
		if w := status.State.Waiting; w != nil && w.Reason != "" && w.Reason != "ContainerCreating" && w.Reason != "PodInitializing" {
			s.Words = join(w.Reason, w.Message)
			s.Permanent = permanentReasons[w.Reason]
		}
	}
	return s
}

func observeTerminated(s State, t *corev1.ContainerStateTerminated) State {
	s.Phase = PhaseEnded
	s.OutOfMemory = t.Reason == "OOMKilled"
	s.Words = fmt.Sprintf("the sandbox's container ended with exit code %d", t.ExitCode)
	if t.Reason != "" && t.Reason != "Completed" && t.Reason != "Error" {
		s.Words += " (" + t.Reason + ")"
	}
	switch t.ExitCode {
	case wire.ExitNoCall, wire.ExitUsed, wire.ExitNetworkOpen:
		if t.Reason != "OOMKilled" {
			s.Phase = PhaseNeverStarted
			s.Words = runnerWords(t.ExitCode)
		}
	case 127, 128:
		// The runtime could not start our runner at all: it is the container's
		// command, so nothing of the tool ran.
		if t.Reason == "StartError" || t.Reason == "ContainerCannotRun" {
			s.Phase, s.Words, s.Permanent = PhaseNeverStarted, join(t.Reason, t.Message), true
		}
	}
	return s
}

func runnerWords(code int32) string {
	switch code {
	case wire.ExitNoCall:
		return "the sandbox ended before a call reached it"
	case wire.ExitUsed:
		return "the sandbox had been used before and refused the call"
	default:
		return "the sandbox's network policy was not in force"
	}
}

func observeJob(job *batchv1.Job, events []corev1.Event) State {
	if job == nil {
		return State{Phase: PhaseMissing}
	}
	s := State{Phase: PhaseStarting, Words: "the Job has no pod yet"}
	for i := len(events) - 1; i >= 0; i-- {
		if e := events[i]; e.Type == corev1.EventTypeWarning {
			s.Words = join(e.Reason, e.Message)
			s.Permanent = refusedForGood(e.Message)
			break
		}
	}
	for _, c := range job.Status.Conditions {
		if c.Type == batchv1.JobFailed && c.Status == corev1.ConditionTrue {
			// The pod was there and is gone, or never came; which is not known here.
			s.Phase, s.Words = PhaseEnded, join(c.Reason, c.Message)
		}
	}
	return s
}

// refusedForGood says whether the refusal of a pod can be cured by time. A
// quota can; a policy, a limit range or an invalid pod cannot.
func refusedForGood(message string) bool {
	for _, passing := range []string{"exceeded quota", "status unknown for quota"} {
		if strings.Contains(message, passing) {
			return false
		}
	}
	for _, final := range []string{"is forbidden", "is invalid", "denied the request"} {
		if strings.Contains(message, final) {
			return true
		}
	}
	return false
}

func podWords(pod *corev1.Pod) string {
	if pod.Status.Reason != "" || pod.Status.Message != "" {
		return join(pod.Status.Reason, pod.Status.Message)
	}
	for _, c := range pod.Status.Conditions {
		if c.Type == corev1.PodScheduled && c.Status == corev1.ConditionFalse {
			return join(c.Reason, c.Message)
		}
	}
	for _, c := range pod.Status.Conditions {
		if c.Type == corev1.PodReadyToStartContainers && c.Status == corev1.ConditionFalse && pod.Spec.NodeName != "" {
			return "the node has not set up the pod's volumes and network yet"
		}
	}
	return "the container is being created"
}

// disrupted says whether the pod was told to go away, and in which words.
func disrupted(pod *corev1.Pod) (bool, string) {
	for _, c := range pod.Status.Conditions {
		if c.Type == corev1.DisruptionTarget && c.Status == corev1.ConditionTrue {
			return true, join(c.Reason, c.Message)
		}
	}
	if pod.DeletionTimestamp != nil {
		return true, "the pod is being deleted"
	}
	return false, ""
}

func join(reason, message string) string {
	switch {
	case reason == "":
		return message
	case message == "":
		return reason
	}
	return reason + ": " + message
}
