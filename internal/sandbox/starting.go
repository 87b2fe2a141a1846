package sandbox

import (
	"slices"
	"strings"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
)

// permanentReasons are the waiting reasons of a container that only a change
// of the Tool or of the namespace can cure. CreateContainerError is none of
// them: a node under load gives it for its own timeouts, too.
var permanentReasons = []string{"InvalidImageName", "CreateContainerConfigError", "RunContainerError", "ErrImageNeverPull"}

// The words of others, by which what a wait is for is told from what a change
// is for. They are those of Kubernetes 1.37, containerd 2 and CRI-O; a text that
// is not known is waited for until the start deadline.
var (
	// passingWords are of refusals and failures that time may cure.
	passingWords = []string{
		"exceeded quota",               // somebody may free it
		"status unknown for quota",     // a quota that is not counted yet
		"error looking up service acc", // a namespace that was made just now
		"not yet ready to handle",      // an admission plugin that is starting
		"failed calling webhook",       // a webhook that is down
		"failed to sync",               // a kubelet that has not seen the Secret yet
		"not registered",               // the same for a volume
		"context deadline exceeded",
		"timed out",
	}
	// finalWords are of an API server that refuses a pod for what it is.
	finalWords = []string{"is forbidden", "is invalid", "denied the request"}
	// imageMissingWords are of a registry that answered and has no such image.
	imageMissingWords = []string{": not found", "manifest unknown", "name unknown", "repository does not exist"}
	// mountWords are of a volume whose Secret or ConfigMap, or a key of it, is not there.
	mountWords = []string{"not found", "references non-existent"}
	// runtimeWords are of a node without the RuntimeClass's handler; the last are of
	// a kubelet that was asked for a user namespace as well.
	runtimeWords = []string{"no runtime for", "failed to find runtime handler", "is not known"}
)

func passing(message string) bool { return containsAny(message, passingWords) }

func containsAny(s string, parts []string) bool {
	return slices.ContainsFunc(parts, func(part string) bool { return strings.Contains(s, part) })
}

// observeJob reads the state of a Job without a pod.
func observeJob(job *batchv1.Job, events []corev1.Event) State {
	if job == nil {
		return State{Phase: PhaseMissing}
	}
	for _, c := range job.Status.Conditions {
		if c.Type == batchv1.JobFailed && c.Status == corev1.ConditionTrue {
			// The pod was there and is gone, or never came; which is not known here.
			return State{Phase: PhaseEnded, Words: join(c.Reason, c.Message)}
		}
	}
	e := newest(events, func(corev1.Event) bool { return true })
	if e == nil {
		return State{Phase: PhaseStarting, Words: "the Job has no pod yet", Unexplained: true}
	}
	permanent := containsAny(e.Message, finalWords) && !passing(e.Message)
	return State{Phase: PhaseStarting, Words: join(e.Reason, e.Message), Unexplained: true,
		Permanent: permanent, Refused: e.Reason == "FailedCreate" && !permanent}
}

// observeStarting reads why the container of a pod does not run yet.
func observeStarting(s State, pod *corev1.Pod, status *corev1.ContainerStatus, events []corev1.Event) State {
	s.Phase = PhaseStarting
	if c := podCondition(pod, corev1.PodScheduled); c != nil && c.Status == corev1.ConditionFalse {
		s.Words = join(c.Reason, c.Message)
		return s
	}
	if status != nil && status.State.Waiting != nil {
		if w := status.State.Waiting; w.Reason != "" && w.Reason != "ContainerCreating" && w.Reason != "PodInitializing" {
			return explained(s, w.Reason, w.Message)
		}
	}
	s.Words, s.Unexplained = "the container is being created", true
	if c := podCondition(pod, corev1.PodReadyToStartContainers); c != nil && c.Status == corev1.ConditionFalse {
		s.Words = "the node has not set up the pod's volumes and network yet"
	}
	// The other warnings only repeat in fewer words what one of these says.
	e := newest(events, func(e corev1.Event) bool {
		return e.Reason != "Failed" || strings.HasPrefix(e.Message, "Failed to pull image")
	})
	if e != nil {
		return explained(s, e.Reason, e.Message)
	}
	return s
}

// explained reads a waiting container's reason, or the event that tells it.
func explained(s State, reason, message string) State {
	s.Words = join(reason, message)
	switch {
	case passing(message):
	case slices.Contains(permanentReasons, reason):
		s.Permanent = true
	case reason == "ErrImagePull", reason == "ImagePullBackOff", reason == "Failed":
		// An image volume's failure is told by an event only.
		s.ImageMissing = containsAny(message, imageMissingWords)
		s.Permanent = s.ImageMissing
	case reason == "FailedMount":
		s.Permanent = containsAny(message, mountWords)
	case reason == "FailedCreatePodSandBox":
		s.Permanent = containsAny(message, runtimeWords)
	}
	return s
}

// newest is the newest wanted warning; nil if there is none.
func newest(events []corev1.Event, wanted func(corev1.Event) bool) *corev1.Event {
	for i := range slices.Backward(events) {
		if e := &events[i]; e.Type == corev1.EventTypeWarning && wanted(*e) {
			return e
		}
	}
	return nil
}

func podCondition(pod *corev1.Pod, kind corev1.PodConditionType) *corev1.PodCondition {
	for i := range pod.Status.Conditions {
		if pod.Status.Conditions[i].Type == kind {
			return &pod.Status.Conditions[i]
		}
	}
	return nil
}
