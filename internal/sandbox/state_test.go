package sandbox

import (
	"strings"
	"testing"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func podWith(change ...func(*corev1.Pod)) *corev1.Pod {
	p := &corev1.Pod{Spec: corev1.PodSpec{NodeName: "node-1"}, Status: corev1.PodStatus{Phase: corev1.PodPending}}
	for _, c := range change {
		c(p)
	}
	return p
}

func phase(p corev1.PodPhase, reason, message string) func(*corev1.Pod) {
	return func(pod *corev1.Pod) { pod.Status.Phase, pod.Status.Reason, pod.Status.Message = p, reason, message }
}

func condition(kind corev1.PodConditionType, status corev1.ConditionStatus, reason, message string) func(*corev1.Pod) {
	return func(pod *corev1.Pod) {
		pod.Status.Conditions = append(pod.Status.Conditions, corev1.PodCondition{Type: kind, Status: status, Reason: reason, Message: message})
	}
}

func container(change func(*corev1.ContainerStatus)) func(*corev1.Pod) {
	return func(pod *corev1.Pod) {
		// Never the first: whoever injects a container may put it in front.
		status := corev1.ContainerStatus{Name: Container}
		change(&status)
		pod.Status.ContainerStatuses = []corev1.ContainerStatus{{Name: "injected", RestartCount: 7}, status}
	}
}

func waiting(reason, message string) func(*corev1.Pod) {
	return container(func(s *corev1.ContainerStatus) {
		s.State.Waiting = &corev1.ContainerStateWaiting{Reason: reason, Message: message}
	})
}

func runs() func(*corev1.Pod) {
	return container(func(s *corev1.ContainerStatus) { s.State.Running = &corev1.ContainerStateRunning{} })
}

func exited(code int32, reason string) func(*corev1.Pod) {
	return container(func(s *corev1.ContainerStatus) {
		s.State.Terminated = &corev1.ContainerStateTerminated{ExitCode: code, Reason: reason, Message: "from the runtime"}
	})
}

func deleted(pod *corev1.Pod) {
	pod.DeletionTimestamp = &metav1.Time{Time: time.Unix(1, 0)}
}

func TestObservePod(t *testing.T) {
	for _, tc := range []struct {
		reason string
		pod    *corev1.Pod
		want   State // Words: what they must contain
	}{
		{"nothing known yet", podWith(), State{Phase: PhaseStarting, Words: "the container is being created", Unexplained: true}},
		{"unschedulable, with the scheduler's words",
			podWith(condition(corev1.PodScheduled, corev1.ConditionFalse, "Unschedulable", "0/1 nodes are available: 1 Insufficient cpu")),
			State{Phase: PhaseStarting, Words: "Unschedulable: 0/1 nodes are available: 1 Insufficient cpu"}},
		{"C013: a volume that is not there shows as ContainerCreating for ever: bounded by the caller, and named",
			podWith(waiting("ContainerCreating", ""), condition(corev1.PodReadyToStartContainers, corev1.ConditionFalse, "", "")),
			State{Phase: PhaseStarting, Words: "volumes and network", Unexplained: true}},
		{"an image that cannot be pulled may be there in a minute",
			podWith(waiting("ImagePullBackOff", "Back-off pulling image")), State{Phase: PhaseStarting, Words: "ImagePullBackOff: Back-off pulling image"}},
		{"the first failure to pull", podWith(waiting("ErrImagePull", "x:1: not found")), State{Phase: PhaseStarting, Words: "ErrImagePull: x:1: not found", Permanent: true, ImageMissing: true}},
		{"a name that is no image name stays none",
			podWith(waiting("InvalidImageName", "couldn't parse image")), State{Phase: PhaseStarting, Words: "InvalidImageName: couldn't parse image", Permanent: true}},
		{"a Secret that is not there",
			podWith(waiting("CreateContainerConfigError", `secret "orders" not found`)), State{Phase: PhaseStarting, Words: `secret "orders" not found`, Permanent: true}},
		{"a kubelet that has not seen the Secret yet says so with the same reason",
			podWith(waiting("CreateContainerConfigError", "failed to sync secret cache: timed out waiting for the condition")), State{Phase: PhaseStarting, Words: "failed to sync"}},
		{"a node under load gives up creating a container, and tries again",
			podWith(waiting("CreateContainerError", "context deadline exceeded")), State{Phase: PhaseStarting, Words: "context deadline exceeded"}},
		{"it runs", podWith(phase(corev1.PodRunning, "", ""), runs()), State{Phase: PhaseRunning}},
		{"it runs and is being deleted", podWith(phase(corev1.PodRunning, "", ""), runs(), deleted),
			State{Phase: PhaseRunning, Disrupted: true, Words: "being deleted"}},
		{"it runs and will be evicted", podWith(runs(), condition(corev1.DisruptionTarget, corev1.ConditionTrue, "EvictionByEvictionAPI", "Eviction API: evicting")),
			State{Phase: PhaseRunning, Disrupted: true, Words: "EvictionByEvictionAPI: Eviction API: evicting"}},
		{"a disruption that was called off", podWith(runs(), condition(corev1.DisruptionTarget, corev1.ConditionFalse, "", "")), State{Phase: PhaseRunning}},

		{"C005: phase Failed though exit code 0: the container's state decides, and it may have run",
			podWith(phase(corev1.PodFailed, "DeadlineExceeded", "Pod was active"), exited(0, "Completed")),
			State{Phase: PhaseEnded, Disrupted: true, Words: "exit code 0; DeadlineExceeded: Pod was active"}},
		{"C022: told to go, handled SIGTERM, exit 0: no success", podWith(phase(corev1.PodSucceeded, "", ""), exited(0, "Completed"), deleted),
			State{Phase: PhaseEnded, Disrupted: true, Words: "exit code 0"}},
		{"C022: the same with the condition of a node's shutdown",
			podWith(exited(0, "Completed"), condition(corev1.DisruptionTarget, corev1.ConditionTrue, "TerminationByKubelet", "Pod was terminated in response to imminent node shutdown.")),
			State{Phase: PhaseEnded, Disrupted: true, Words: "exit code 0"}},
		{"C026: out of memory", podWith(exited(137, "OOMKilled")), State{Phase: PhaseEnded, OutOfMemory: true, Words: "exit code 137 (OOMKilled)"}},
		{"C026: gVisor's shim gives 128 for it, which is not a failed start", podWith(exited(128, "OOMKilled")),
			State{Phase: PhaseEnded, OutOfMemory: true, Words: "exit code 128 (OOMKilled)"}},
		{"C026: gVisor without the reason: it may have run", podWith(exited(128, "Error")), State{Phase: PhaseEnded, Words: "exit code 128"}},
		{"C027: a child was out of memory, the container exited 0", podWith(exited(0, "OOMKilled")), State{Phase: PhaseEnded, OutOfMemory: true, Words: "exit code 0 (OOMKilled)"}},
		{"C028: 137 alone is not out of memory", podWith(exited(137, "Error")), State{Phase: PhaseEnded, Words: "exit code 137"}},
		{"C029: 143", podWith(exited(143, "Error")), State{Phase: PhaseEnded, Words: "exit code 143"}},
		{"C029: 126", podWith(exited(126, "Error")), State{Phase: PhaseEnded, Words: "exit code 126"}},
		{"C029: 127 without the runtime's word for a failed start", podWith(exited(127, "Error")), State{Phase: PhaseEnded, Words: "exit code 127"}},
		{"C029: 255", podWith(exited(255, "Error")), State{Phase: PhaseEnded, Words: "exit code 255"}},

		{"64: no call", podWith(exited(64, "Error")), State{Phase: PhaseNeverStarted, Words: "before a call reached it"}},
		{"65: used before", podWith(exited(65, "Error")), State{Phase: PhaseNeverStarted, Words: "used before"}},
		{"68: what can be written to is not bounded, and will not be", podWith(exited(68, "Error")), State{Phase: PhaseNeverStarted, Words: "declares no VOLUME", Permanent: true}},
		{"67: the network was open", podWith(exited(67, "Error")), State{Phase: PhaseNeverStarted, Words: "network policy was not in force"}},
		{"66: accepted, not reported", podWith(exited(66, "Error")), State{Phase: PhaseEnded, Words: "exit code 66"}},
		{"64 with an out-of-memory kill proves nothing", podWith(exited(64, "OOMKilled")), State{Phase: PhaseEnded, OutOfMemory: true, Words: "exit code 64 (OOMKilled)"}},
		{"the runtime could not start our runner", podWith(exited(128, "StartError")), State{Phase: PhaseNeverStarted, Permanent: true, Words: "StartError: from the runtime"}},
		{"a node under load did not start it in time", podWith(exited(128, "StartError"), func(p *corev1.Pod) {
			p.Status.ContainerStatuses[1].State.Terminated.Message = "context deadline exceeded"
		}), State{Phase: PhaseNeverStarted, Words: "context deadline exceeded"}},
		{"the same by its older name", podWith(exited(127, "ContainerCannotRun")), State{Phase: PhaseNeverStarted, Permanent: true, Words: "ContainerCannotRun: from the runtime"}},
		{"the node came back and does not know what became of it", podWith(exited(137, "ContainerStatusUnknown")),
			State{Phase: PhaseEnded, Words: "exit code 137 (ContainerStatusUnknown)"}},

		{"a second container: the first may have had the call, whatever the second says",
			podWith(container(func(s *corev1.ContainerStatus) {
				s.RestartCount = 1
				s.State.Terminated = &corev1.ContainerStateTerminated{ExitCode: 65}
			})), State{Phase: PhaseEnded, Words: "a second time"}},
		{"a second container that runs must get no call",
			podWith(container(func(s *corev1.ContainerStatus) {
				s.LastTerminationState.Terminated = &corev1.ContainerStateTerminated{ExitCode: 137}
				s.State.Running = &corev1.ContainerStateRunning{}
			})), State{Phase: PhaseEnded, Words: "a second time"}},
		{"refused by the kubelet before any container; but a lost status looks the same, so it proves nothing",
			podWith(phase(corev1.PodFailed, "OutOfcpu", "Node didn't have enough resource: cpu")),
			State{Phase: PhaseEnded, Disrupted: true, Words: "OutOfcpu: Node didn't have enough resource: cpu"}},
		{"evicted, its container's state lost", podWith(phase(corev1.PodFailed, "Evicted", "The node was low on resource: memory"), waiting("ContainerCreating", "")),
			State{Phase: PhaseEnded, Disrupted: true, Words: "Evicted: The node was low"}},
	} {
		t.Run(tc.reason, func(t *testing.T) {
			got := Observe(&batchv1.Job{}, tc.pod, nil)
			if words := got.Words; !strings.Contains(words, tc.want.Words) || tc.want.Words == "" && words != "" {
				t.Errorf("words are %q, want %q in them", words, tc.want.Words)
			}
			got.Words, tc.want.Words = "", ""
			if got != tc.want {
				t.Errorf("state is %+v, want %+v", got, tc.want)
			}
		})
	}
}

func TestObserveJobWithoutPod(t *testing.T) {
	warning := func(message string) corev1.Event {
		return corev1.Event{Type: corev1.EventTypeWarning, Reason: "FailedCreate", Message: "Error creating: " + message}
	}
	for _, tc := range []struct {
		reason string
		job    *batchv1.Job
		events []corev1.Event
		want   State
	}{
		{"no Job", nil, nil, State{Phase: PhaseMissing}},
		{"no pod yet", &batchv1.Job{}, nil, State{Phase: PhaseStarting, Words: "no pod yet", Unexplained: true}},
		{"C014: the quota is used up: somebody may free it", &batchv1.Job{},
			[]corev1.Event{warning(`pods "x" is forbidden: exceeded quota: q, requested: pods=1, used: pods=1, limited: pods=1`)},
			State{Phase: PhaseStarting, Unexplained: true, Refused: true, Words: "exceeded quota: q"}},
		{"C014: a quota whose use is not counted yet", &batchv1.Job{},
			[]corev1.Event{warning(`pods "x" is forbidden: status unknown for quota: q, resources: pods`)},
			State{Phase: PhaseStarting, Unexplained: true, Refused: true, Words: "status unknown for quota"}},
		{"C015: the quota demands what the pod lacks: no time cures it", &batchv1.Job{},
			[]corev1.Event{warning(`pods "x" is forbidden: failed quota: q: must specify limits.ephemeral-storage for: tool`)},
			State{Phase: PhaseStarting, Unexplained: true, Permanent: true, Words: "must specify limits.ephemeral-storage"}},
		{"C016: a LimitRange", &batchv1.Job{},
			[]corev1.Event{warning(`pods "x" is forbidden: maximum memory usage per Container is 64Mi, but limit is 224Mi`)},
			State{Phase: PhaseStarting, Unexplained: true, Permanent: true, Words: "maximum memory usage per Container is 64Mi"}},
		{"C017: Pod Security", &batchv1.Job{},
			[]corev1.Event{warning(`pods "x" is forbidden: violates PodSecurity "restricted:latest": runAsNonRoot != true`)},
			State{Phase: PhaseStarting, Unexplained: true, Permanent: true, Words: `violates PodSecurity "restricted:latest"`}},
		{"a webhook's refusal", &batchv1.Job{}, []corev1.Event{warning(`admission webhook "v.example" denied the request: no`)},
			State{Phase: PhaseStarting, Unexplained: true, Permanent: true, Words: "denied the request"}},
		{"a webhook that is down", &batchv1.Job{}, []corev1.Event{warning(`Internal error occurred: failed calling webhook "v.example": connection refused`)},
			State{Phase: PhaseStarting, Unexplained: true, Refused: true, Words: "failed calling webhook"}},
		{"a namespace that was made just now has no ServiceAccount yet", &batchv1.Job{},
			[]corev1.Event{warning(`pods "x" is forbidden: error looking up service account tools/default: serviceaccount "default" not found`)},
			State{Phase: PhaseStarting, Unexplained: true, Refused: true, Words: "service account"}},
		{"an invalid pod", &batchv1.Job{}, []corev1.Event{warning(`Pod "x" is invalid: spec.containers[0].image: Required value`)},
			State{Phase: PhaseStarting, Unexplained: true, Permanent: true, Words: "is invalid"}},
		{"the newest warning counts", &batchv1.Job{},
			[]corev1.Event{warning(`pods "x" is forbidden: violates PodSecurity`), warning(`pods "x" is forbidden: exceeded quota: q`), {Type: corev1.EventTypeNormal, Message: "is forbidden"}},
			State{Phase: PhaseStarting, Unexplained: true, Refused: true, Words: "exceeded quota"}},
		{"the Job has failed: its pod may have been there",
			&batchv1.Job{Status: batchv1.JobStatus{Conditions: []batchv1.JobCondition{
				{Type: batchv1.JobFailed, Status: corev1.ConditionTrue, Reason: "DeadlineExceeded", Message: "Job was active longer than specified deadline"}}}},
			nil, State{Phase: PhaseEnded, Words: "DeadlineExceeded: Job was active longer"}},
	} {
		t.Run(tc.reason, func(t *testing.T) {
			got := Observe(tc.job, nil, tc.events)
			if !strings.Contains(got.Words, tc.want.Words) {
				t.Errorf("words are %q, want %q in them", got.Words, tc.want.Words)
			}
			got.Words, tc.want.Words = "", ""
			if got != tc.want {
				t.Errorf("state is %+v, want %+v", got, tc.want)
			}
		})
	}
}

// An event alone says that a node cannot make the sandbox, and whether it ever will.
func TestObserveEventOfAPod(t *testing.T) {
	pod := podWith(waiting("ContainerCreating", ""))
	for _, tc := range []struct {
		reason, event, message string
		permanent              bool
	}{
		{"a handler that the node has not", "FailedCreatePodSandBox", `no runtime for "unhandled" is configured`, true},
		{"the same, with a user namespace", "FailedCreatePodSandBox",
			"Failed to create pod sandbox: can't set `spec.hostUsers: false`, RuntimeClass handler \"x\" does not support user namespaces: the handler \"x\" is not known", true},
		{"a network plugin that starts late", "FailedCreatePodSandBox", "failed to set up pod network: not ready", false},
		{"a Secret of a volume", "FailedMount", `MountVolume.SetUp failed for volume "s" : secret "s" not found`, true},
	} {
		got := Observe(&batchv1.Job{}, pod, []corev1.Event{{Type: corev1.EventTypeWarning, Reason: tc.event, Message: tc.message}})
		if got.Phase != PhaseStarting || got.Permanent != tc.permanent || !strings.Contains(got.Words, tc.message) {
			t.Errorf("%s: %+v", tc.reason, got)
		}
	}
}
