package gate

import (
	"strings"
	"testing"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"callgate.dev/callgate/api/v1alpha1"
	"callgate.dev/callgate/internal/sandbox"
)

func renderJob(tool *v1alpha1.Tool) *batchv1.Job {
	return sandbox.Job(sandbox.Input{
		Tool: tool, Install: "callgate-system", RunnerImage: "runner:1", CallUID: "call-uid",
		Call: types.NamespacedName{Namespace: "agents", Name: "say-hello"}, Attempt: 1,
	})
}

// starting is a call with a sandbox that is ten seconds old and not running yet.
func starting() Starting {
	tool := testTool("echo")
	s := Starting{
		Now: created.Add(12 * time.Second), Call: testCall(`{"text":"hello"}`), Tool: &tool,
		Want: renderJob(&tool), Job: renderJob(&tool), Pod: &corev1.Pod{},
		State: sandbox.State{Phase: sandbox.PhaseStarting, Words: "Unschedulable: no node fits"},
	}
	s.Job.CreationTimestamp = metav1.NewTime(created.Add(2 * time.Second))
	s.Since = s.Job.CreationTimestamp.Time
	s.Pod.Labels, s.Pod.Spec = s.Want.Spec.Template.Labels, *s.Want.Spec.Template.Spec.DeepCopy()
	return s
}

func TestStart(t *testing.T) {
	age := func(s *Starting, d time.Duration) { s.Now = s.Job.CreationTimestamp.Add(d) }
	state := func(s *Starting, state sandbox.State) { s.State = state }
	exceeded := func(s *Starting) sandbox.State {
		return sandbox.Observe(s.Job, nil, []corev1.Event{{Type: "Warning", Reason: "FailedCreate", Message: `Error creating: pods "x" is forbidden: exceeded quota: q`}})
	}
	openNetwork := func(s *Starting) {
		s.Call.Status.Attempts = []v1alpha1.Attempt{{Number: 1, Outcome: v1alpha1.OutcomeNeverStarted, ErrorCode: v1alpha1.ErrorToolUnavailable,
			Message: "the tool was not started: the sandbox's network policy was not in force"}}
	}
	refused := func(s *Starting) { s.Pod, s.State = nil, exceeded(s) }
	for _, tc := range []struct {
		reason    string
		change    func(*Starting)
		code      v1alpha1.ErrorCode
		retryable bool
		message   string
		act       Act
		wait      string
		after     time.Duration
	}{
		{reason: "no Job: make it", change: func(s *Starting) { s.Job, s.Pod, s.State = nil, nil, sandbox.State{Phase: sandbox.PhaseMissing} },
			act: ActCreateSandbox, wait: "Starting", message: "creating the sandbox", after: time.Second},
		{reason: "a Job of this name that is not ours", change: func(s *Starting) { s.Job.Labels = nil },
			code: v1alpha1.ErrorToolUnavailable, retryable: true, message: "exists and was not made by Callgate for this call: delete it"},
		{reason: "a Job of another call", change: func(s *Starting) { s.Job.Annotations[v1alpha1.AnnotationCall] = "agents/another" },
			code: v1alpha1.ErrorToolUnavailable, retryable: true, message: "was not made by Callgate for this call"},
		{reason: "not ours comes before anything it says of itself",
			change: func(s *Starting) {
				s.Job.Labels, s.State = nil, sandbox.State{Phase: sandbox.PhaseRunning}
				s.Job.DeletionTimestamp = &metav1.Time{Time: s.Now}
			},
			code: v1alpha1.ErrorToolUnavailable, retryable: true, message: "was not made by Callgate"},
		{reason: "a Job that is being deleted is waited for", change: func(s *Starting) { s.Job.DeletionTimestamp = &metav1.Time{Time: s.Now} },
			wait: "Starting", message: "an earlier sandbox is being deleted", after: time.Second},
		{reason: "but not for ever", change: func(s *Starting) { s.Job.DeletionTimestamp = &metav1.Time{Time: s.Now}; age(s, 120*time.Second) },
			code: v1alpha1.ErrorToolUnavailable, retryable: true, message: "was not gone within startDeadlineSeconds (120): look at its finalizers"},
		{reason: "nor are sandboxes made for ever that do not start", change: func(s *Starting) { s.Since = s.Now.Add(-120 * time.Second); s.Job = nil },
			code: v1alpha1.ErrorToolUnavailable, retryable: true, message: "no sandbox started within startDeadlineSeconds (120)"},
		{reason: "and what kept it from being made is said",
			change: func(s *Starting) {
				s.Since, s.Job = s.Now.Add(-120*time.Second), nil
				s.Call.Status.Conditions = []metav1.Condition{{Type: v1alpha1.ConditionSucceeded, Message: "the sandbox cannot be created: exceeded quota"}}
			},
			code: v1alpha1.ErrorToolUnavailable, retryable: true, message: "no sandbox started within startDeadlineSeconds (120): the sandbox cannot be created: exceeded quota"},
		{reason: "the Tool changed since: made again, even if it runs",
			change: func(s *Starting) {
				s.Tool.Spec.Container.Image = "echo:2"
				s.Want, s.State = renderJob(s.Tool), sandbox.State{Phase: sandbox.PhaseRunning}
			}, act: ActDeleteSandbox, wait: "Starting", message: "the Tool changed", after: time.Second},

		{reason: "it runs: send the call", change: func(s *Starting) { state(s, sandbox.State{Phase: sandbox.PhaseRunning}) }, act: ActDispatch, wait: "Running"},
		{reason: "it runs, past its start deadline: it is there, use it",
			change: func(s *Starting) { state(s, sandbox.State{Phase: sandbox.PhaseRunning}); age(s, time.Hour) }, act: ActDispatch, wait: "Running"},
		{reason: "it runs, and the pod is not the one we render",
			change: func(s *Starting) {
				state(s, sandbox.State{Phase: sandbox.PhaseRunning})
				s.Pod.Spec.Containers = append(s.Pod.Spec.Containers, corev1.Container{Name: "mesh"})
			}, code: v1alpha1.ErrorToolUnavailable, message: `spec.containers[1] "mesh" was added; an admission webhook may have done it`},
		{reason: "it runs and is being evicted: not a byte for it, another one is made",
			change: func(s *Starting) {
				state(s, sandbox.State{Phase: sandbox.PhaseRunning, Disrupted: true, Words: "EvictionByEvictionAPI: Eviction API: evicting"})
			}, act: ActDeleteSandbox, wait: "Retrying", message: "going away before it got the call: EvictionByEvictionAPI", after: time.Second},

		{reason: "it ended by itself: another one is made", change: func(s *Starting) { state(s, sandbox.State{Phase: sandbox.PhaseNeverStarted, Words: "no call"}) },
			act: ActDeleteSandbox, wait: "Retrying", message: "ended before it got the call: no call", after: time.Second},
		{reason: "it ended, and in Run that would mean it may have run; here nothing was sent",
			change: func(s *Starting) { state(s, sandbox.State{Phase: sandbox.PhaseEnded, Words: "Evicted: low on memory"}) },
			act:    ActDeleteSandbox, wait: "Retrying", message: "ended before it got the call: Evicted: low on memory", after: time.Second},
		{reason: "the first one stays a second, so that a cause that lasts does not make a hundred",
			change: func(s *Starting) { state(s, sandbox.State{Phase: sandbox.PhaseEnded}); age(s, 400*time.Millisecond) },
			wait:   "Retrying", after: 600 * time.Millisecond},
		{reason: "a later one stays half as long as all before it took",
			change: func(s *Starting) {
				state(s, sandbox.State{Phase: sandbox.PhaseEnded})
				s.Since = s.Job.CreationTimestamp.Add(-40 * time.Second)
				age(s, 5*time.Second)
			}, wait: "Retrying", after: 15 * time.Second},
		{reason: "and the start deadline is over all of them",
			change: func(s *Starting) {
				state(s, sandbox.State{Phase: sandbox.PhaseEnded, Words: "Evicted: low on memory"})
				s.Since = s.Job.CreationTimestamp.Add(-118 * time.Second)
				age(s, 2*time.Second)
			}, code: v1alpha1.ErrorToolUnavailable, retryable: true, message: "ended before it got the call: Evicted: low on memory"},
		{reason: "a clock of the API server that is ahead makes no age below zero",
			change: func(s *Starting) {
				state(s, sandbox.State{Phase: sandbox.PhaseStarting, Permanent: true, Words: "InvalidImageName"})
				s.Since = s.Now
				s.Job.CreationTimestamp = metav1.NewTime(s.Now.Add(5 * time.Minute))
			}, wait: "Starting", after: 6 * time.Second},
		{reason: "our runner cannot be executed in it",
			change: func(s *Starting) {
				state(s, sandbox.State{Phase: sandbox.PhaseNeverStarted, Permanent: true, Words: "StartError: exec format error"})
			},
			code: v1alpha1.ErrorToolUnavailable, message: "StartError: exec format error"},

		{reason: "it starts: wait, bounded, with the cluster's words", change: func(*Starting) {},
			wait: "Starting", message: "waiting for the sandbox: Unschedulable: no node fits", after: 110 * time.Second},
		{reason: "the last second of the start deadline", change: func(s *Starting) { age(s, 119*time.Second) }, wait: "Starting", after: time.Second},
		{reason: "the start deadline: the cluster's words, and time may cure it", change: func(s *Starting) { age(s, 120*time.Second) },
			code: v1alpha1.ErrorToolUnavailable, retryable: true, message: "did not start within startDeadlineSeconds (120): Unschedulable: no node fits"},
		{reason: "the start deadline after an attempt whose network was open: that is why",
			change: func(s *Starting) { openNetwork(s); age(s, 120*time.Second) },
			code:   v1alpha1.ErrorToolUnavailable, retryable: true,
			message: "did not start within startDeadlineSeconds (120): Unschedulable: no node fits; attempt 1: the tool was not started: the sandbox's network policy was not in force"},
		{reason: "… and without a sandbox", change: func(s *Starting) { openNetwork(s); s.Since, s.Job = s.Now.Add(-120*time.Second), nil },
			code: v1alpha1.ErrorToolUnavailable, retryable: true, message: "no sandbox started within startDeadlineSeconds (120); attempt 1: the tool was not started: the sandbox's network"},
		{reason: "… and by the call's own deadline", change: func(s *Starting) { openNetwork(s); s.Call.Spec.DeadlineSeconds = 12 },
			code: v1alpha1.ErrorToolUnavailable, retryable: true, message: "no node fits); attempt 1: the tool was not started: the sandbox's network"},
		{reason: "the Tool's own start deadline", change: func(s *Starting) { s.Tool.Spec.StartDeadlineSeconds = 10 },
			code: v1alpha1.ErrorToolUnavailable, retryable: true, message: "startDeadlineSeconds (10)"},
		{reason: "C014: a quota that is used up stays retryable to the end",
			change: func(s *Starting) {
				state(s, exceeded(s))
				age(s, 120*time.Second)
			}, code: v1alpha1.ErrorToolUnavailable, retryable: true, message: "exceeded quota: q"},
		{reason: "C014: and is waited for until then",
			change: func(s *Starting) {
				state(s, exceeded(s))
			}, wait: "Starting", message: "exceeded quota: q", after: 110 * time.Second},
		{reason: "C014: after 10 s a new Job is made, for which the Job controller asks at once",
			change: refused,
			act:    ActDeleteSandbox, wait: "Retrying", message: "exceeded quota: q", after: time.Second},
		{reason: "C014: not earlier",
			change: func(s *Starting) {
				refused(s)
				age(s, 9*time.Second)
			}, wait: "Starting", message: "exceeded quota: q", after: 111 * time.Second},
		{reason: "C014: and ever more rarely",
			change: func(s *Starting) {
				refused(s)
				s.Since = s.Now.Add(-50 * time.Second)
			}, wait: "Starting", message: "exceeded quota: q", after: 70 * time.Second},
		{reason: "C014: the last one stays, for what it says",
			change: func(s *Starting) {
				refused(s)
				s.Tool.Spec.StartDeadlineSeconds = 20
			}, wait: "Starting", message: "exceeded quota: q", after: 10 * time.Second},
		{reason: "C017: what no time cures ends early, and is not retryable",
			change: func(s *Starting) {
				state(s, sandbox.State{Phase: sandbox.PhaseStarting, Permanent: true, Words: "violates PodSecurity"})
			},
			code: v1alpha1.ErrorToolUnavailable, message: "the sandbox cannot start: violates PodSecurity"},
		{reason: "but not in the first seconds: a Secret made in the same moment may be seen late",
			change: func(s *Starting) {
				state(s, sandbox.State{Phase: sandbox.PhaseStarting, Permanent: true, Words: `secret "s" not found`})
				age(s, 2*time.Second)
			},
			wait: "Starting", message: `secret "s" not found`, after: 4 * time.Second},
		{reason: "what no time cures, under a start deadline that is shorter still",
			change: func(s *Starting) {
				s.Tool.Spec.StartDeadlineSeconds = 3
				state(s, sandbox.State{Phase: sandbox.PhaseStarting, Permanent: true, Words: "InvalidImageName"})
				age(s, 3*time.Second)
			}, code: v1alpha1.ErrorToolUnavailable, message: "startDeadlineSeconds (3): InvalidImageName"},

		{reason: "the call's deadline shortens the wait", change: func(s *Starting) { s.Call.Spec.DeadlineSeconds = 20 }, wait: "Starting", after: 8 * time.Second},
		{reason: "the call's deadline is over: it never starts, and says what it waited for",
			change: func(s *Starting) { s.Call.Spec.DeadlineSeconds = 12 },
			code:   v1alpha1.ErrorToolUnavailable, retryable: true, message: "deadlineSeconds (12) passed before the tool started; it was Starting (waiting for the sandbox: Unschedulable: no node fits)"},
		{reason: "the call's deadline is over: not even in a sandbox that runs",
			change: func(s *Starting) {
				s.Call.Spec.DeadlineSeconds = 12
				state(s, sandbox.State{Phase: sandbox.PhaseRunning})
			},
			code: v1alpha1.ErrorToolUnavailable, retryable: true, message: "deadlineSeconds (12)"},
	} {
		t.Run(tc.reason, func(t *testing.T) {
			s := starting()
			tc.change(&s)
			got := Start(s)
			message := got.Message
			if got.Ended() != (tc.code != "") {
				t.Fatalf("ended is %v: %+v", got.Ended(), got.Result)
			}
			if got.Ended() {
				message = got.Result.Message
				if got.Result.ErrorCode != tc.code || *got.Result.Retryable != tc.retryable {
					t.Errorf("the end is %s, retryable %v, want %s, %v", got.Result.ErrorCode, *got.Result.Retryable, tc.code, tc.retryable)
				}
			} else if got.Act != tc.act || got.Reason != tc.wait || got.After != tc.after {
				t.Errorf("act %q, reason %q, after %s; want %q, %q, %s", got.Act, got.Reason, got.After, tc.act, tc.wait, tc.after)
			}
			if !strings.Contains(message, tc.message) {
				t.Errorf("message %q, want %q in it", message, tc.message)
			}
		})
	}
}
