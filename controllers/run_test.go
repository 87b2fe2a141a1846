package controllers_test

import (
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/utils/ptr"

	"callgate.dev/callgate/api/v1alpha1"
)

// A call that was sent ends with what its runner says.
func TestAnswer(t *testing.T) {
	t.Parallel()
	tools := openNamespace(t)
	allow(t, tools)
	newTool(t, tools, "tool", func(s *v1alpha1.ToolSpec) {
		s.Container.Command = []string{"/tool", "--text=$(args.text)", "$(args.n)"}
		s.MaxRetries = ptr.To[int32](0)
	})
	for _, test := range []struct {
		reason   string
		stdout   string
		exitCode int
		want     want
		data     string
	}{
		{reason: "one JSON value and exit code 0", stdout: `{"updated":true,"none":null}`, data: `{"none":null,"updated":true}`},
		{reason: "exit code 75 promises that nothing was done", exitCode: 75, want: want{code: v1alpha1.ErrorToolFailed, retryable: true}},
		{reason: "any other exit code", exitCode: 3, want: want{code: v1alpha1.ErrorToolFailed, message: []string{"3"}}},
		{reason: "no JSON", stdout: marker, want: want{code: v1alpha1.ErrorInvalidOutput}},
	} {
		t.Run(test.reason, func(t *testing.T) {
			t.Parallel()
			var got toolCall
			call := newCall(t, tools, "tool", func(s *v1alpha1.ToolCallSpec) { s.TimeoutSeconds = 5 })
			pod := startPod(t, call, func(c toolCall) toolResult {
				got = c
				return prints(test.stdout, test.exitCode)(c)
			})
			call = waitForEnd(t, call)
			test.want.check(t, call)
			if data := call.Status.Result.Data; test.data != "" && (data == nil || string(data.Raw) != test.data) {
				t.Errorf("data is %s, want %s", show(data), test.data)
			}
			a := call.Status.Attempts[0]
			if a.Number != 1 || a.PodUID != pod.UID || a.Pod != pod.Name || a.Namespace != tools || a.Sandbox != jobKey(tools, call).Name ||
				a.Outcome != v1alpha1.OutcomeReported || a.ExitCode == nil || int(*a.ExitCode) != test.exitCode || a.TimeoutSeconds != 5 ||
				a.StartTime == nil || a.FinishTime == nil || a.ImageID == "" || a.SendTime.IsZero() || a.Node != nodeName {
				t.Errorf("the attempt is %s", show(a))
			}
			if n := attachedTo(call); n != 1 {
				t.Errorf("%d attaches, want 1", n)
			}
			// The absent argument's element is dropped.
			if len(got.Argv) != 2 || got.Argv[1] != "--text="+marker || string(got.Stdin) != `{"text":"`+marker+`"}` ||
				got.TimeoutMillis != 5000 || got.AllowSockets {
				t.Errorf("the runner got %s", show(got))
			}
			waitForNoSandbox(t, call)
		})
	}
}

// A call that was sent and whose answer does not come ends by what the cluster
// says of its pod. Without retries it is not run again.
func TestNoAnswer(t *testing.T) {
	t.Parallel()
	status := func(s corev1.PodStatus) func(*testing.T, *corev1.Pod) {
		return func(t *testing.T, pod *corev1.Pod) { setPod(t, pod, s) }
	}
	deleted := func(t *testing.T, pod *corev1.Pod) { remove(t, pod) }
	for _, test := range []struct {
		reason      string
		sideEffects v1alpha1.SideEffects
		then        func(*testing.T, *corev1.Pod)
		want        want
		outcome     v1alpha1.AttemptOutcome
	}{
		{reason: "out of memory", then: status(terminated(137, "OOMKilled")),
			want: want{code: v1alpha1.ErrorToolFailed, message: []string{"memory"}}, outcome: v1alpha1.OutcomeFailed},
		{reason: "ended without a result", then: status(terminated(0, "Completed")),
			want: want{code: v1alpha1.ErrorOutcomeUnknown, message: []string{"may have taken effect"}}, outcome: v1alpha1.OutcomeUnknown},
		{reason: "the pod is deleted", then: deleted,
			want: want{code: v1alpha1.ErrorOutcomeUnknown, message: []string{"may have taken effect"}}, outcome: v1alpha1.OutcomeUnknown},
		{reason: "the same, and the tool only reads", sideEffects: v1alpha1.SideEffectsNone, then: deleted,
			want: want{code: v1alpha1.ErrorOutcomeUnknown, retryable: true}, outcome: v1alpha1.OutcomeUnknown},
		{reason: "the same, and a second run changes nothing more", sideEffects: v1alpha1.SideEffectsIdempotent, then: deleted,
			want: want{code: v1alpha1.ErrorOutcomeUnknown, retryable: true}, outcome: v1alpha1.OutcomeUnknown},
	} {
		t.Run(test.reason, func(t *testing.T) {
			t.Parallel()
			tools := openNamespace(t)
			allow(t, tools)
			newTool(t, tools, "tool", func(s *v1alpha1.ToolSpec) {
				s.SideEffects, s.MaxRetries = test.sideEffects, ptr.To[int32](0)
			})
			call := newCall(t, tools, "tool")
			pod := startPod(t, call, nil) // nobody answers
			waitForSend(t, call)
			test.then(t, pod)
			call = waitForEnd(t, call)
			test.want.check(t, call)
			if a := call.Status.Attempts; len(a) != 1 || a[0].Outcome != test.outcome {
				t.Errorf("attempts are %s, want outcome %s", show(a), test.outcome)
			}
			waitForNoSandbox(t, call)
			if pods := podsOf(t, call); len(pods) > 0 {
				t.Errorf("there is another pod: %s", pods[0].Name)
			}
		})
	}
}

// blocked is a tool that works until the test lets it go.
func blocked(t *testing.T) (tool toolFunc, release func()) {
	gate := make(chan struct{})
	release = sync.OnceFunc(func() { close(gate) })
	t.Cleanup(release)
	return func(c toolCall) toolResult { <-gate; return prints(`"late"`, 0)(c) }, release
}

func TestTimeout(t *testing.T) {
	t.Parallel()
	tools := openNamespace(t)
	allow(t, tools)
	newTool(t, tools, "tool", func(s *v1alpha1.ToolSpec) { s.TimeoutSeconds = 1 })
	tool, _ := blocked(t)
	call := newCall(t, tools, "tool")
	pod := startPod(t, call, tool) // whose runner does not keep the time
	call = waitForEnd(t, call)
	want{code: v1alpha1.ErrorToolTimeout, message: []string{"1s"}}.check(t, call)
	a := call.Status.Attempts[0]
	if took := call.Status.CompletionTime.Sub(a.SendTime.Time); took < 10*time.Second {
		t.Errorf("ended %s after the call was sent, before timeout and grace", took)
	}
	if get(t, keyOf(pod), pod) && pod.DeletionTimestamp == nil {
		t.Error("the pod was left running")
	}
	waitForNoSandbox(t, call)
}

func TestCancel(t *testing.T) {
	t.Parallel()
	tools := openNamespace(t)
	allow(t, tools)
	newTool(t, tools, "tool")
	t.Run("from the beginning", func(t *testing.T) {
		t.Parallel()
		call := waitForEnd(t, newCall(t, tools, "tool", func(s *v1alpha1.ToolCallSpec) { s.Cancel = true }))
		want{code: v1alpha1.ErrorCancelled, message: []string{"before the tool was started"}}.check(t, call)
		waitForNoSandbox(t, call)
	})
	t.Run("while starting", func(t *testing.T) {
		t.Parallel()
		call := newCall(t, tools, "tool")
		podOf(t, call)
		waitForReason(t, call, v1alpha1.ReasonStarting)
		cancel(t, call)
		call = waitForEnd(t, call)
		want{code: v1alpha1.ErrorCancelled, message: []string{"before the tool was started"}}.check(t, call)
		if len(call.Status.Attempts) > 0 {
			t.Errorf("attempts: %s", show(call.Status.Attempts))
		}
		waitForNoSandbox(t, call)
	})
	t.Run("while running", func(t *testing.T) {
		t.Parallel()
		tool, _ := blocked(t)
		call := newCall(t, tools, "tool")
		startPod(t, call, tool)
		waitForSend(t, call)
		eventually(t, "the call taken by the runner", func() (bool, any) {
			return attachedTo(waitForSend(t, call)) == 1, nil
		})
		cancel(t, call)
		call = waitForEnd(t, call)
		want{code: v1alpha1.ErrorCancelled, message: []string{"may have taken effect"}}.check(t, call)
		waitForNoSandbox(t, call)
	})
	// kstatus compares generations: a finished call must not look unfinished
	// because somebody cancels it.
	t.Run("after the end", func(t *testing.T) {
		t.Parallel()
		call := newCall(t, tools, "tool")
		startPod(t, call, prints("1", 0))
		call = waitForEnd(t, call)
		cancel(t, call)
		call = waitForCall(t, call, "the new generation observed", func(now *v1alpha1.ToolCall) bool {
			return now.Generation == 2 && now.Status.ObservedGeneration == 2
		})
		for _, c := range call.Status.Conditions {
			if c.ObservedGeneration != 2 { // kubectl wait looks at this one
				t.Errorf("condition %s has observedGeneration %d", c.Type, c.ObservedGeneration)
			}
		}
		want{}.check(t, call)
	})
}
