package gate

import (
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"callgate.dev/callgate/api/v1alpha1"
	"callgate.dev/callgate/internal/dispatch"
	"callgate.dev/callgate/internal/sandbox"
	"callgate.dev/callgate/internal/sandbox/recorded"
	"callgate.dev/callgate/internal/wire"
)

const recordings = "../sandbox/testdata"

// The end of every sandbox that never started, by recordings: after how many
// seconds of the Job's life, with which flag and in whose words.
func TestStartRecorded(t *testing.T) {
	const deadline = 120
	for _, tc := range []struct {
		name string
		// waits is the last of the looked-at seconds at which it still waits; ends the first at which it is over,
		// or 0 and retryable: its place is taken by another sandbox at once, until the start deadline.
		waits, ends int
		retryable   bool
		words       string
	}{
		// At once: nothing but waste could come of a wait.
		{"sidecar-injected", -1, 0, false, `spec.containers[1] "injected" was added`},
		{"sidecar-image-missing", -1, 0, false, `spec.containers[1] "injected" was added`},
		{"image-mutated", -1, 0, false, "spec.containers[0].image"},
		{"user-mutated", -1, 0, false, "spec.securityContext"},
		{"start-error", -1, 0, false, "StartError"},
		{"kubelet-out-of-cpu", -1, 0, true, "OutOfcpu"},
		{"kubelet-node-affinity", -1, 0, true, "NodeAffinity"},
		{"kubelet-admission-error", -1, 0, true, "UnexpectedAdmissionError"},
		{"draining", -1, 0, true, "EvictionByEvictionAPI"},
		{"drained", -1, 0, true, "EvictionByEvictionAPI"},
		{"no-call", -1, 0, true, "before a call reached it"},
		{"node-lost", -1, 0, true, "DeletionByTaintManager"},
		{"evicted-storage", -1, 0, true, "Evicted"},
		{"second-container", -1, 0, true, "started a second time"},
		// After a short grace: what is missing may be made in the same moment.
		{"invalid-image-name", 4, 8, false, "InvalidImageName"},
		{"err-image-never-pull", 4, 8, false, "ErrImageNeverPull"},
		{"missing-secret", 4, 8, false, `secret "absent" not found`},
		{"missing-key", 4, 8, false, "couldn't find key token"},
		{"missing-configmap", 4, 8, false, `configmap "absent" not found`},
		{"missing-volume-secret", 4, 8, false, "FailedMount"},
		{"run-as-non-root", 4, 8, false, "non-root policy"},
		{"runtime-handler-missing", 4, 8, false, "no runtime for"},
		{"quota-demands", 4, 8, false, "must specify limits.cpu"},
		{"limit-range-max", 4, 8, false, "maximum memory usage"},
		{"pod-security", 4, 8, false, "violates PodSecurity"},
		{"pod-security-injected", 4, 8, false, "injected"},
		{"policy-denied", 4, 8, false, "images must be signed"},
		{"runtime-class-missing", 4, 8, false, `RuntimeClass "absent" not found`},
		// After a longer one: an image may be on its way to its registry.
		{"err-image-pull", 14, 18, false, "not found"},
		{"image-pull-back-off", 14, 18, false, "not found"},
		{"runner-missing", 14, 18, false, "absent-runner:1: not found"},
		// At the start deadline: others may free, mend or add what is missing.
		{"registry-down", deadline - 1, deadline + 1, true, "connection refused"},
		{"unschedulable-cpu", deadline - 1, deadline + 1, true, "Insufficient cpu"},
		{"unschedulable-selector", deadline - 1, deadline + 1, true, "didn't match"},
		{"quota-exceeded", deadline - 1, deadline + 1, true, "exceeded quota"},
		{"webhook-down", deadline - 1, deadline + 1, true, "failed calling webhook"},
		{"start-error-memory", deadline - 1, deadline + 1, true, "memory limit too low?"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			r := recorded.Read(t, recordings, tc.name)
			for _, skew := range []time.Duration{0, -5 * time.Minute, 5 * time.Minute} {
				at := func(seconds int) Verdict {
					tool := testTool("echo")
					pod := recorded.Skewed(r.Pod, skew)
					call := testCall(`{"text":"hello"}`)
					call.CreationTimestamp = r.Job.CreationTimestamp
					return Start(Starting{
						Now:  r.Job.CreationTimestamp.Add(time.Duration(seconds)*time.Second + 500*time.Millisecond),
						Call: call, Tool: &tool, Since: r.Job.CreationTimestamp.Time, Want: r.Job, Job: r.Job, Pod: pod, State: sandbox.Observe(r.Job, pod, r.Events),
					})
				}
				if tc.waits >= 0 {
					v := at(tc.waits)
					if v.Ended() || v.Act != ActNone || !strings.Contains(v.Message, tc.words) {
						t.Errorf("after %d s, skew %s: %+v %+v, want it to wait with %q", tc.waits, skew, v, v.Result, tc.words)
					}
					if look := time.Duration(tc.ends-tc.waits) * time.Second; v.After <= 0 || v.After > look {
						t.Errorf("after %d s it looks again after %s, which is past its end", tc.waits, v.After)
					}
				}
				v := at(tc.ends)
				if tc.ends == 0 && tc.retryable {
					if v.Ended() || v.Reason != v1alpha1.ReasonRetrying || !strings.Contains(v.Message, tc.words) {
						t.Errorf("skew %s: %+v %+v, want another sandbox, and %q", skew, v, v.Result, tc.words)
					}
					if v := at(1); v.Act != ActDeleteSandbox {
						t.Errorf("skew %s: after a second %+v, want it deleted", skew, v)
					}
					v = at(deadline)
				}
				if !v.Ended() {
					t.Fatalf("after %d s, skew %s: %+v, want it over", tc.ends, skew, v)
				}
				if v.Result.ErrorCode != v1alpha1.ErrorToolUnavailable || *v.Result.Retryable != tc.retryable || !strings.Contains(v.Result.Message, tc.words) {
					t.Errorf("skew %s: it ends %s, %v: %s; want tool_unavailable, %v, %q", skew, v.Result.ErrorCode, *v.Result.Retryable, v.Result.Message, tc.retryable, tc.words)
				}
			}
		})
	}
	for _, name := range []string{"waits", "quota-met", "limit-range-default"} {
		r := recorded.Read(t, recordings, name)
		tool := testTool("echo")
		call := testCall(`{"text":"hello"}`)
		v := Start(Starting{Now: r.Job.CreationTimestamp.Add(time.Second), Call: call, Tool: &tool, Since: r.Job.CreationTimestamp.Time, Want: r.Job, Job: r.Job, Pod: r.Pod, State: sandbox.Observe(r.Job, r.Pod, r.Events)})
		if v.Act != ActDispatch {
			t.Errorf("%s: %+v %+v, want the call sent", name, v, v.Result)
		}
	}
}

// A pod that waited for a quota or a node has its grace from then on.
func TestGraceBeginsWithThePod(t *testing.T) {
	r := recorded.Read(t, recordings, "missing-secret")
	tool := testTool("echo")
	r.Job.CreationTimestamp = metav1.NewTime(r.Pod.CreationTimestamp.Add(-time.Minute))
	s := Starting{Now: r.Pod.CreationTimestamp.Add(3 * time.Second), Call: testCall(`{}`), Tool: &tool, Since: r.Job.CreationTimestamp.Time, Want: r.Job, Job: r.Job, Pod: r.Pod, State: sandbox.Observe(r.Job, r.Pod, r.Events)}
	if v := Start(s); v.Ended() {
		t.Errorf("over in the first seconds of its pod: %s", v.Result.Message)
	}
	s.Pod = r.Pod.DeepCopy()
	for i := range s.Pod.Status.Conditions {
		if c := &s.Pod.Status.Conditions[i]; c.Type == corev1.PodScheduled {
			c.LastTransitionTime = metav1.NewTime(r.Pod.CreationTimestamp.Add(30 * time.Second))
		}
	}
	for after, over := range map[time.Duration]bool{33 * time.Second: false, 37 * time.Second: true} {
		s.Now = r.Pod.CreationTimestamp.Add(after)
		if v := Start(s); v.Ended() != over {
			t.Errorf("%s after its pod, which had a node after 30 s: %+v", after, v)
		}
	}
}

// What is said of a call that was sent and accepted, and whose sandbox then
// ended as recorded, without a result.
func TestRunRecorded(t *testing.T) {
	for _, tc := range []struct {
		name  string
		code  v1alpha1.ErrorCode
		words []string
	}{
		{"oom", v1alpha1.ErrorToolFailed, []string{"ran out of memory", "224Mi", "limits.memory"}},
		{"oom-gvisor", v1alpha1.ErrorToolFailed, []string{"ran out of memory"}},
		{"oom-child-gvisor", v1alpha1.ErrorToolFailed, []string{"ran out of memory"}},
		{"oom-v2", v1alpha1.ErrorToolFailed, []string{"ran out of memory"}},
		{"oom-v2-unseen", v1alpha1.ErrorOutcomeUnknown, []string{"exit code 137", "may have taken effect"}},
		{"exit-137", v1alpha1.ErrorOutcomeUnknown, []string{"exit code 137"}},
		{"exit-3", v1alpha1.ErrorOutcomeUnknown, []string{"exit code 3"}},
		{"drained", v1alpha1.ErrorOutcomeUnknown, []string{"Eviction API: evicting"}},
		{"drained-exit-0", v1alpha1.ErrorOutcomeUnknown, []string{"Eviction API: evicting"}},
		{"node-shutdown", v1alpha1.ErrorOutcomeUnknown, []string{"imminent node shutdown"}},
		{"node-shutdown-exit-0", v1alpha1.ErrorOutcomeUnknown, []string{"imminent node shutdown"}},
		{"node-shutdown-succeeded", v1alpha1.ErrorOutcomeUnknown, []string{"imminent node shutdown"}},
		{"evicted-memory", v1alpha1.ErrorOutcomeUnknown, []string{"low on resource: memory"}},
		{"evicted-storage", v1alpha1.ErrorOutcomeUnknown, []string{"exceeds the limit"}},
		{"preempted", v1alpha1.ErrorOutcomeUnknown, []string{"preempting"}},
		{"node-gone", v1alpha1.ErrorOutcomeUnknown, []string{"node no longer exists"}},
		{"second-container", v1alpha1.ErrorOutcomeUnknown, []string{"second time"}},
		{"pod-deadline", v1alpha1.ErrorOutcomeUnknown, []string{"DeadlineExceeded"}},
		// Exit code 64 is "no call", but the frame says that it was accepted.
		{"deleted", v1alpha1.ErrorOutcomeUnknown, []string{"being deleted"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			rec := recorded.Read(t, recordings, tc.name)
			for _, skew := range []time.Duration{0, -5 * time.Minute, 5 * time.Minute} {
				r := runningCall(t)
				r.Pod = recorded.Skewed(rec.Pod, skew)
				r.State = sandbox.Observe(nil, r.Pod, nil)
				r.Session.Done, r.Session.Err, r.Session.FromLog, r.Session.Reads = true, dispatch.ErrNoResult, true, 1
				v := Run(r)
				if !v.Ended() || v.Result.ErrorCode != tc.code || *v.Result.Retryable {
					t.Fatalf("skew %s: %+v %+v, want %s, not retryable", skew, v, v.Result, tc.code)
				}
				for _, words := range tc.words {
					if !strings.Contains(v.Result.Message, words) {
						t.Errorf("message %q lacks %q", v.Result.Message, words)
					}
				}
			}
		})
	}
}

// C023: a node that is lost keeps its pod for ever; the call ends all the same.
func TestRunNodeLost(t *testing.T) {
	rec := recorded.Read(t, recordings, "node-lost")
	r := runningCall(t)
	r.Pod, r.State = rec.Pod, sandbox.Observe(nil, rec.Pod, nil)
	r.Now = sent.Add(19 * time.Second)
	r.Pod.DeletionTimestamp = &metav1.Time{Time: r.Now.Add(time.Second)}
	if v := Run(r); v.Ended() || v.After <= 0 {
		t.Errorf("within the grace of its deletion: %+v", v)
	}
	r.Now = r.Pod.DeletionTimestamp.Add(31 * time.Second)
	if v := Run(r); !v.Ended() || v.Result.ErrorCode != v1alpha1.ErrorOutcomeUnknown || *v.Result.Retryable || !strings.Contains(v.Result.Message, "node node-1 did not end its sandbox") {
		t.Errorf("past all bounds: %+v %+v", v, v.Result)
	}
}

// What a tool printed or how it ended, while its sandbox was told to go.
func TestRunInDrain(t *testing.T) {
	rec := recorded.Read(t, recordings, "draining")
	for _, tc := range []struct {
		reason string
		result wire.Result
		code   v1alpha1.ErrorCode // empty: success
		words  string
	}{
		{"it used its grace: the whole result counts", wire.Result{Stdout: []byte("1"), StdoutBytes: 1}, "", ""},
		{"ended from outside: never the tool's own failure", wire.Result{Signal: "SIGKILL", ExitCode: -1}, v1alpha1.ErrorOutcomeUnknown, "Eviction API: evicting"},
		{"the same with SIGTERM", wire.Result{Signal: "SIGTERM", ExitCode: -1}, v1alpha1.ErrorOutcomeUnknown, "Eviction API: evicting"},
		{"the same by a shell's exit code", wire.Result{ExitCode: 143}, v1alpha1.ErrorOutcomeUnknown, "Eviction API: evicting"},
		{"the same by a shell's exit code", wire.Result{ExitCode: 137}, v1alpha1.ErrorOutcomeUnknown, "Eviction API: evicting"},
		{"its own failure stays its own", wire.Result{ExitCode: 3}, v1alpha1.ErrorToolFailed, "exit code 3"},
		{"its own crash stays its own", wire.Result{Signal: "SIGSEGV", ExitCode: -1}, v1alpha1.ErrorToolFailed, "SIGSEGV"},
		{"its time limit stays its own", wire.Result{TimedOut: true, Signal: "SIGKILL", ExitCode: -1}, v1alpha1.ErrorToolTimeout, "8s"},
	} {
		t.Run(tc.reason, func(t *testing.T) {
			r := runningCall(t)
			r.Pod, r.State = rec.Pod, sandbox.Observe(nil, rec.Pod, nil)
			r.Session.Result, r.Session.Done = &tc.result, true
			v := Run(r)
			if !v.Ended() || *v.Result.OK != (tc.code == "") || v.Result.ErrorCode != tc.code || !strings.Contains(v.Result.Message, tc.words) {
				t.Errorf("%+v %+v, want %q with %q", v, v.Result, tc.code, tc.words)
			}
		})
	}
	// Without a drain the same signal is the tool's end.
	r := runningCall(t)
	r.Session.Result, r.Session.Done = &wire.Result{Signal: "SIGTERM", ExitCode: -1}, true
	if v := Run(r); v.Result == nil || v.Result.ErrorCode != v1alpha1.ErrorToolFailed {
		t.Errorf("SIGTERM in no drain: %+v", v.Result)
	}
}
