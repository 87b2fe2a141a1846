package sandbox

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"callgate.dev/callgate/internal/sandbox/recorded"
)

func TestObserveRecorded(t *testing.T) {
	var (
		waits   = State{Phase: PhaseStarting}
		refused = State{Phase: PhaseStarting, Refused: true}
		final   = State{Phase: PhaseStarting, Permanent: true}
		noImage = State{Phase: PhaseStarting, Permanent: true, ImageMissing: true}
		never   = State{Phase: PhaseNeverStarted}
		ended   = State{Phase: PhaseEnded}
		memory  = State{Phase: PhaseEnded, OutOfMemory: true}
		cutOff  = State{Phase: PhaseEnded, Disrupted: true}
		runs    = State{Phase: PhaseRunning}
	)
	unexplained := func(s State) State { s.Unexplained = true; return s }
	broken := func(s State) State { s.Phase, s.Permanent = PhaseNeverStarted, true; return s }
	for _, tc := range []struct {
		name, reason string
		want         State
		words        string
	}{
		{"registry-down", "a registry that does not answer may come back", waits, "ImagePullBackOff: Back-off pulling image"},
		{"err-image-pull", "a registry that answered: it has no such image", noImage, "ErrImagePull: rpc error: code = NotFound"},
		{"image-pull-back-off", "the same, asked again", noImage, "localhost:5999/absent:1: not found"},
		{"runner-missing", "the image of a volume: its pod says no word of it, an event does", unexplained(noImage), "absent-runner:1: not found"},
		{"invalid-image-name", "no image name", final, "repository name (UPPER) must be lowercase"},
		{"err-image-never-pull", "may not be pulled", final, "not present with pull policy of Never"},
		{"missing-secret", "the Secret's name", final, `secret "absent" not found`},
		{"missing-key", "the key's name", final, "couldn't find key token in Secret fault-missing-key/present"},
		{"missing-configmap", "the ConfigMap's name", final, `configmap "absent" not found`},
		{"missing-volume-secret", "C013: its pod says ContainerCreating, an event says why", unexplained(final), `FailedMount: MountVolume.SetUp failed for volume "s" : secret "absent" not found`},
		{"missing-volume-configmap", "C013: the same of a ConfigMap", unexplained(final), `configmap "absent" not found`},
		{"run-as-non-root", "root", final, "runAsUser breaks non-root policy"},
		{"start-error", "nothing of the tool ran", broken(never), "StartError: failed to create containerd task"},
		{"start-error-gvisor", "the same under gVisor", broken(never), "StartError: failed to start containerd task"},
		{"start-error-memory", "too little memory for the runtime: a node that is full says the same", unexplained(waits), "memory limit too low?"},
		{"unschedulable-cpu", "C009: a node may come", waits, "Unschedulable: 0/1 nodes are available: 1 Insufficient cpu"},
		{"unschedulable-selector", "C009: a node may come", waits, "didn't match Pod's node affinity/selector"},
		{"quota-exceeded", "C014: somebody may free it", unexplained(refused), "FailedCreate: Error creating: pods \"callgate-"},
		{"quota-demands", "C015: no time gives the pod limits", unexplained(final), "must specify limits.cpu for: tool"},
		{"quota-met", "C015: ours always has limits", runs, ""},
		{"limit-range-max", "C016", unexplained(final), "maximum memory usage per Container is 64Mi, but limit is 224Mi"},
		{"limit-range-ratio", "C016", unexplained(final), "memory max limit to request ratio per Container is 2, but provided ratio is 7"},
		{"limit-range-default", "a default adds to the pod, and it runs", runs, ""},
		{"pod-security", "C017: the text of Pod Security", unexplained(final), `violates PodSecurity "restricted:latest": allowPrivilegeEscalation != false (container "tool"`},
		{"pod-security-injected", "C018: the name of the container that is to blame", unexplained(final), `(container "injected" must set`},
		{"policy-denied", "the policy's text", unexplained(final), "denied request: images must be signed"},
		{"webhook-down", "it may come back", unexplained(refused), `failed calling webhook "pods.webhook.example"`},
		{"runtime-class-missing", "no RuntimeClass", unexplained(final), `RuntimeClass "absent" not found`},
		{"runtime-handler-missing", "a RuntimeClass, and no such runtime on the node", unexplained(final), `no runtime for "unhandled" is configured`},
		{"kubelet-out-of-cpu", "refused by the kubelet", cutOff, "OutOfcpu: Pod was rejected: Node didn't have enough resource: cpu"},
		{"kubelet-node-affinity", "refused by the kubelet", cutOff, "NodeAffinity: Pod was rejected"},
		{"kubelet-admission-error", "refused by the kubelet", cutOff, "UnexpectedAdmissionError: Pod was rejected"},
		{"waits", "it waits for its call", runs, ""},
		{"sidecar-injected", "what is in the pod besides is not judged here", runs, ""},
		{"sidecar-image-missing", "C020: nor is what another container waits for", runs, ""},
		{"image-mutated", "nor is the image", runs, ""},
		{"user-mutated", "nor is the user", runs, ""},
		{"no-call", "64 is our runner's word that no call came", never, "before a call reached it"},

		{"exit-3", "it may have run", ended, "exit code 3"},
		{"exit-137", "C028: 137 is not out of memory", ended, "exit code 137"},
		{"oom", "C026", memory, "exit code 137 (OOMKilled)"},
		{"oom-child", "C027: the container ended well", memory, "exit code 0 (OOMKilled)"},
		{"oom-gvisor", "C026: gVisor gives 128", memory, "exit code 128 (OOMKilled)"},
		{"oom-child-gvisor", "C027: under gVisor all of the sandbox goes", memory, "exit code 128 (OOMKilled)"},
		{"oom-tmp-gvisor", "files in memory count", memory, "exit code 128 (OOMKilled)"},
		{"oom-v2", "C026: on cgroup v2 the runner goes with a child", memory, "exit code 137 (OOMKilled)"},
		{"oom-v2-unseen", "C028: without the word it is not known", ended, "exit code 137"},
		{"evicted-storage", "its container's end is not known; it is no second container", cutOff, `not known to its node; Evicted: Usage of EmptyDir volume "scratch" exceeds the limit "1Mi"`},
		{"evicted-memory", "evicted", cutOff, "exit code 137; TerminationByKubelet: The node was low on resource: memory"},
		{"preempted", "preempted", cutOff, "exit code 137; PreemptionByScheduler"},
		{"draining", "it runs on until its grace is over", State{Phase: PhaseRunning, Disrupted: true}, "EvictionByEvictionAPI: Eviction API: evicting"},
		{"drained", "ended by force in a drain", cutOff, "exit code 137; EvictionByEvictionAPI"},
		{"drained-exit-0", "C022: ended well in a drain: no success", cutOff, "exit code 0; EvictionByEvictionAPI"},
		{"node-shutdown", "ended by force by the shutdown of its node", cutOff, "exit code 137; TerminationByKubelet: Pod was terminated in response to imminent node shutdown"},
		{"node-shutdown-exit-0", "C022", cutOff, "exit code 0; TerminationByKubelet"},
		{"node-shutdown-succeeded", "C022", cutOff, "exit code 0; TerminationByKubelet"},
		{"node-not-ready", "C023: it may work on", runs, ""},
		{"node-lost", "C023: it may work on, and nobody will end it", State{Phase: PhaseRunning, Disrupted: true}, "DeletionByTaintManager"},
		{"node-gone", "C023", cutOff, "exit code 137 (ContainerStatusUnknown); DeletionByPodGC"},
		{"second-container", "the first may have had the call", ended, "started a second time"},
		{"pod-deadline", "C005: Failed, and its container ended well", cutOff, "exit code 0; DeadlineExceeded: Pod was active on the node longer"},
		{"pod-deadline-waiting", "ended before any container", cutOff, "DeadlineExceeded"},
		// The last that was seen of pods that are gone.
		{"deleted", "the runner left, as it had no call", State{Phase: PhaseNeverStarted, Disrupted: true}, "before a call reached it; the pod is being deleted"},
		{"force-deleted", "the same", State{Phase: PhaseNeverStarted, Disrupted: true}, "before a call reached it"},
		{"job-deadline", "the same", State{Phase: PhaseNeverStarted, Disrupted: true}, "before a call reached it"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			r := recorded.Read(t, "testdata", tc.name)
			got := Observe(r.Job, r.Pod, r.Events)
			if !strings.Contains(got.Words, tc.words) || tc.words == "" && got.Words != "" {
				t.Errorf("%s: words are %q, want %q in them", tc.reason, got.Words, tc.words)
			}
			words := got.Words
			got.Words = ""
			if got != tc.want {
				t.Errorf("%s: state is %+v, want %+v", tc.reason, got, tc.want)
			}
			if r.Pod == nil {
				return
			}
			// C046: no answer depends on a node's clock.
			for _, by := range []time.Duration{-5 * time.Minute, 5 * time.Minute} {
				again := Observe(r.Job, recorded.Skewed(r.Pod, by), r.Events)
				if again.Words != words {
					t.Errorf("words with the node's clock at %s: %q", by, again.Words)
				}
				again.Words = ""
				if again != tc.want {
					t.Errorf("state with the node's clock at %s: %+v", by, again)
				}
			}
		})
	}
}

// Every recording is in the table: one that no row reads shows nothing.
func TestEveryRecordingIsRead(t *testing.T) {
	files, err := filepath.Glob("testdata/*.json")
	if err != nil || len(files) == 0 {
		t.Fatal("no recordings", err)
	}
	source, err := os.ReadFile("recorded_test.go")
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range files {
		if name := strings.TrimSuffix(filepath.Base(f), ".json"); !strings.Contains(string(source), `{"`+name+`", `) {
			t.Errorf("no row reads %s", f)
		}
	}
}

// A pod that was there and is gone leaves its Job's words.
func TestObserveRecordedGone(t *testing.T) {
	for name, words := range map[string]string{
		"deleted": "BackoffLimitExceeded", "force-deleted": "BackoffLimitExceeded", "job-deadline": "DeadlineExceeded: Job was active longer", "exit-3": "BackoffLimitExceeded",
	} {
		r := recorded.Read(t, "testdata", name)
		if got := Observe(r.Job, nil, r.Events); got.Phase != PhaseEnded || !strings.Contains(got.Words, words) {
			t.Errorf("%s: %+v, want it ended with %q", name, got, words)
		}
	}
}
