package sandbox

import (
	"fmt"

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
	// Unexplained: why it does not start stands in the events of its pod, or of
	// its Job if it has none, and nowhere else.
	Unexplained bool
	// Permanent: waiting longer cannot help, only a change can.
	Permanent bool
	// Refused: the API server refuses the Job's pod for a reason that time may cure.
	// The Job controller asks again, each time after twice as long, up to a minute.
	Refused bool
	// ImageMissing, with Permanent: a registry says that it has no such image.
	// That may have been asked while the image was on its way.
	ImageMissing bool
	// OutOfMemory: the kernel ended the container for its memory limit.
	OutOfMemory bool
	// Disrupted: the pod was told to go away (drain, eviction, preemption, the
	// shutdown of its node), so what its container did last was not its own will.
	Disrupted bool
}

// Ended says whether the sandbox's container is over, so that it prints nothing more.
func (s State) Ended() bool { return s.Phase == PhaseEnded || s.Phase == PhaseNeverStarted }

// Observe reads the state of a sandbox. job and pod may be nil; events are the
// warnings of the two, oldest first, and needed only if the state is
// Unexplained without them. It looks at container states and never at the
// pod's phase alone: a pod can be Failed though its container exited 0
// (kubernetes/kubernetes#115688). It reads no time: a node's clock is another.
func Observe(job *batchv1.Job, pod *corev1.Pod, events []corev1.Event) State {
	if pod == nil {
		return observeJob(job, events)
	}
	s := State{}
	var disruption string
	s.Disrupted, disruption = disrupted(pod)
	status := toolStatus(pod)
	switch {
	case status != nil && (status.RestartCount > 0 || status.LastTerminationState.Terminated != nil):
		// A second container in the same pod: the first may have had the call.
		// The kubelet counts one, too, when it has lost sight of the first.
		s.Phase, s.Words = PhaseEnded, "the sandbox's container was started a second time"
		if t := status.LastTerminationState.Terminated; t != nil && t.Reason == "ContainerStatusUnknown" {
			s.Words = "how the sandbox's container ended is not known to its node"
		}
	case status != nil && status.State.Running != nil:
		s.Phase, s.Words = PhaseRunning, disruption
		return s
	case status != nil && status.State.Terminated != nil:
		s = observeTerminated(s, status.State.Terminated)
	case pod.Status.Phase == corev1.PodFailed || pod.Status.Phase == corev1.PodSucceeded:
		// Refused before any container; or the state of one was lost with its
		// node or in an eviction, so it proves nothing.
		s.Phase, s.Words = PhaseEnded, "the pod ended without a word of its container"
	default:
		return observeStarting(s, pod, status, events)
	}
	if disruption != "" {
		s.Words += "; " + disruption
	}
	return s
}

func toolStatus(pod *corev1.Pod) *corev1.ContainerStatus {
	for i := range pod.Status.ContainerStatuses {
		if pod.Status.ContainerStatuses[i].Name == Container {
			return &pod.Status.ContainerStatuses[i]
		}
	}
	return nil
}

func observeTerminated(s State, t *corev1.ContainerStateTerminated) State {
	s.Phase = PhaseEnded
	s.OutOfMemory = t.Reason == "OOMKilled"
	s.Words = fmt.Sprintf("the sandbox's container ended with exit code %d", t.ExitCode)
	if t.Reason != "" && t.Reason != "Completed" && t.Reason != "Error" {
		s.Words += " (" + t.Reason + ")"
	}
	switch t.ExitCode {
	case wire.ExitNoCall, wire.ExitUsed, wire.ExitNetworkOpen, wire.ExitWritable:
		if t.Reason != "OOMKilled" {
			s.Permanent = t.ExitCode == wire.ExitWritable
			s.Phase = PhaseNeverStarted
			s.Words = runnerWords(t.ExitCode)
		}
	case 127, 128:
		// The runtime could not start our runner at all: it is the container's
		// command, so nothing of the tool ran.
		if t.Reason == "StartError" || t.Reason == "ContainerCannotRun" {
			s.Phase, s.Words, s.Permanent = PhaseNeverStarted, join(t.Reason, t.Message), !passing(t.Message)
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
	case wire.ExitWritable:
		return "the sandbox has a folder on the node's disk that nothing bounds: use an image that declares no VOLUME, " +
			"or set ignore_image_defined_volumes in the container runtime of the nodes"
	default:
		return "the sandbox's network policy was not in force: it reached the API server, which its Tool's egress does not include; " +
			"the cluster needs a network plugin that enforces NetworkPolicies, and no other NetworkPolicy may open the API server to it"
	}
}

// disrupted says whether the pod was told to go away, and in which words.
func disrupted(pod *corev1.Pod) (bool, string) {
	for _, c := range pod.Status.Conditions {
		if c.Type == corev1.DisruptionTarget && c.Status == corev1.ConditionTrue {
			return true, join(c.Reason, c.Message)
		}
	}
	switch {
	case pod.Status.Reason != "":
		// The kubelet's own decision, which not always sets the condition:
		// Evicted for a volume's size, DeadlineExceeded, OutOfcpu.
		return true, join(pod.Status.Reason, pod.Status.Message)
	case pod.DeletionTimestamp != nil:
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
