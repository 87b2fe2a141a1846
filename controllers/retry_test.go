package controllers_test

import (
	"slices"
	"sync"
	"testing"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"callgate.dev/callgate/api/v1alpha1"
	"callgate.dev/callgate/internal/sandbox"
)

// ends is a way that an attempt ends after its call was sent.
type ends func(*testing.T, *v1alpha1.ToolCall, int) *corev1.Pod

// answers is an attempt whose runner gives a result.
func answers(tool toolFunc) ends {
	return func(t *testing.T, call *v1alpha1.ToolCall, number int) *corev1.Pod {
		t.Helper()
		return startAttempt(t, call, number, tool)
	}
}

// silent is an attempt whose runner is not heard of; then happens to its pod.
func silent(then func(*testing.T, *corev1.Pod)) ends {
	return func(t *testing.T, call *v1alpha1.ToolCall, number int) *corev1.Pod {
		t.Helper()
		pod := startAttempt(t, call, number, nil)
		waitForAttempts(t, call, number)
		then(t, pod)
		return pod
	}
}

func exits(code int32) ends {
	return silent(func(t *testing.T, pod *corev1.Pod) { setPod(t, pod, terminated(code, "Error")) })
}

// Ways that an attempt ends.
var (
	tempFail = answers(prints("", 75))
	timeout  = answers(func(c toolCall) toolResult {
		r := prints("", 0)(c)
		r.TimedOut = true
		return r
	})
	podDeleted = silent(func(t *testing.T, pod *corev1.Pod) { remove(t, pod) })
)

func waitForAttempts(t *testing.T, call *v1alpha1.ToolCall, n int) *v1alpha1.ToolCall {
	t.Helper()
	return waitForCall(t, call, "an attempt", func(call *v1alpha1.ToolCall) bool { return len(call.Status.Attempts) >= n })
}

// waitForOutcome waits until attempt n has an end.
func waitForOutcome(t *testing.T, call *v1alpha1.ToolCall, n int) *v1alpha1.ToolCall {
	t.Helper()
	return waitForCall(t, call, "the end of an attempt", func(call *v1alpha1.ToolCall) bool {
		return len(call.Status.Attempts) >= n && call.Status.Attempts[n-1].Outcome != ""
	})
}

func withRetries(n int32, effects v1alpha1.SideEffects) func(*v1alpha1.ToolSpec) {
	return func(s *v1alpha1.ToolSpec) { s.MaxRetries, s.SideEffects = ptr.To(n), effects }
}

// noSandboxOf says that a certain attempt of a call has no sandbox.
func noSandboxOf(t *testing.T, call *v1alpha1.ToolCall, number int32) {
	t.Helper()
	if get(t, client.ObjectKey{Namespace: toolNamespace(call), Name: sandbox.JobName(call.UID, number)}, &batchv1.Job{}) {
		t.Errorf("attempt %d has a sandbox", number)
	}
}

// A call is tried again where that is safe, and nowhere else. What a second
// attempt answers is the answer of the call.
func TestRetriedOnlyWhereItIsSafe(t *testing.T) {
	t.Parallel()
	const none, idempotent, nonIdempotent = v1alpha1.SideEffectsNone, v1alpha1.SideEffectsIdempotent, v1alpha1.SideEffectsNonIdempotent
	never, reported, unknown := v1alpha1.OutcomeNeverStarted, v1alpha1.OutcomeReported, v1alpha1.OutcomeUnknown
	for _, test := range []struct {
		reason     string
		effects    v1alpha1.SideEffects
		maxRetries int32
		first      ends
		code       v1alpha1.ErrorCode // of the first attempt
		outcome    v1alpha1.AttemptOutcome
		retried    bool
		retryable  bool // of the call, if it is not
	}{
		{"the runner says that no call came", nonIdempotent, 0, exits(64), v1alpha1.ErrorToolUnavailable, never, true, false},
		{"the runner says that it was used before", nonIdempotent, 0, exits(65), v1alpha1.ErrorToolUnavailable, never, true, false},
		{"the runner says that it could not read the call", nonIdempotent, 0, exits(67), v1alpha1.ErrorToolUnavailable, never, true, false},
		{"exit code 75 promises that nothing was done", nonIdempotent, 1, tempFail, v1alpha1.ErrorToolFailed, reported, true, false},
		{"and of a tool that only reads", none, 1, tempFail, v1alpha1.ErrorToolFailed, reported, true, false},
		{"but not more often than the Tool says", nonIdempotent, 0, tempFail, v1alpha1.ErrorToolFailed, reported, false, true},
		{"a timeout of a tool that only reads", none, 1, timeout, v1alpha1.ErrorToolTimeout, reported, true, false},
		{"a timeout of a tool that may run twice", idempotent, 1, timeout, v1alpha1.ErrorToolTimeout, reported, true, false},
		{"a timeout of one that may not, however many retries it has", nonIdempotent, 10, timeout, v1alpha1.ErrorToolTimeout, reported, false, false},
		{"a lost answer of a tool that only reads", none, 1, podDeleted, v1alpha1.ErrorOutcomeUnknown, unknown, true, false},
		{"a lost answer of a tool that may run twice", idempotent, 1, podDeleted, v1alpha1.ErrorOutcomeUnknown, unknown, true, false},
		{"a lost answer of one that may not, however many retries it has", nonIdempotent, 10, podDeleted, v1alpha1.ErrorOutcomeUnknown, unknown, false, false},
		{"a failure of its own", idempotent, 10, answers(prints("", 3)), v1alpha1.ErrorToolFailed, reported, false, false},
		{"an answer that cannot be read", idempotent, 10, answers(prints("no JSON", 0)), v1alpha1.ErrorInvalidOutput, reported, false, false},
	} {
		t.Run(test.reason, func(t *testing.T) {
			t.Parallel()
			tools := openNamespace(t)
			allow(t, tools)
			newTool(t, tools, "tool", withRetries(test.maxRetries, test.effects))
			call := newCall(t, tools, "tool")
			first := test.first(t, call, 1)
			ended := waitForOutcome(t, call, 1)
			a := ended.Status.Attempts[0]
			if a.Outcome != test.outcome || a.ErrorCode != test.code || a.Message == "" || a.EndTime == nil || a.PodUID != first.UID {
				t.Errorf("the first attempt is %s, want %s with outcome %s", show(a), test.code, test.outcome)
			}
			if !test.retried {
				call = waitForEnd(t, call)
				want{code: test.code, retryable: test.retryable}.check(t, call)
				if n := len(call.Status.Attempts); n != 1 {
					t.Errorf("%d attempts, want 1", n)
				}
				noSandboxOf(t, call, 2)
				waitForNoSandbox(t, call)
				return
			}
			tool, release := blocked(t)
			startAttempt(t, call, 2, tool)
			waitForAttempts(t, call, 2)
			// The sandbox of the first goes while the second one works.
			eventually(t, "the first sandbox removed", func() (bool, any) {
				return !get(t, jobKey(tools, call), &batchv1.Job{}) && !get(t, keyOf(first), &corev1.Pod{}), first.Name
			})
			release()
			call = waitForEnd(t, call)
			want{}.check(t, call)
			if data := string(call.Status.Result.Data.Raw); data != `"late"` {
				t.Errorf("data is %s, want that of the second attempt", data)
			}
			if len(call.Status.Attempts) != 2 {
				t.Fatalf("attempts are %s, want 2", show(call.Status.Attempts))
			}
			b := call.Status.Attempts[1]
			if b.Number != 2 || b.Sandbox != sandbox.JobName(call.UID, 2) || b.Outcome != v1alpha1.OutcomeReported || b.ErrorCode != "" || b.Message != "" {
				t.Errorf("the second attempt is %s", show(b))
			}
			if pause := b.SendTime.Sub(a.EndTime.Time); pause < time.Second {
				t.Errorf("the second attempt came %s after the first, want a pause of a second", pause)
			}
			wasEver(t, call, "a state Retrying", func(s *v1alpha1.ToolCall) bool {
				return reasonOf(s) == v1alpha1.ReasonRetrying && len(s.Status.Attempts) == 1
			})
			if n := attachedTo(call); n != 1 {
				t.Errorf("%d attaches to the second sandbox, want 1", n)
			}
			waitForNoSandbox(t, call)
		})
	}
}

// Tools hand the key on, so that others can tell a second attempt from a second
// call: it is the same in all attempts.
func TestIdempotencyKeyIsTheSameInAllAttempts(t *testing.T) {
	t.Parallel()
	tools := openNamespace(t)
	allow(t, tools)
	newTool(t, tools, "tool", withRetries(2, v1alpha1.SideEffectsNonIdempotent))
	call := newCall(t, tools, "tool")
	var mu sync.Mutex
	var keys []string
	keep := func(tool toolFunc) toolFunc {
		return func(c toolCall) toolResult {
			mu.Lock()
			defer mu.Unlock()
			for _, e := range c.Env {
				if e.Name == "CALLGATE_IDEMPOTENCY_KEY" {
					keys = append(keys, e.Value)
				}
			}
			return tool(c)
		}
	}
	startAttempt(t, call, 1, keep(prints("", 75)))
	startAttempt(t, call, 2, keep(prints("", 75)))
	startAttempt(t, call, 3, keep(prints("1", 0)))
	call = waitForEnd(t, call)
	want{}.check(t, call)
	mu.Lock()
	defer mu.Unlock()
	if uid := string(call.UID); !slices.Equal(keys, []string{uid, uid, uid}) {
		t.Errorf("the keys are %v, want the call's UID in each of three attempts", keys)
	}
}

// The last of the attempts that maxRetries allows is the answer.
func TestRetriesAreUsedUp(t *testing.T) {
	t.Parallel()
	tools := openNamespace(t)
	allow(t, tools)
	newTool(t, tools, "tool") // the default is one retry
	call := newCall(t, tools, "tool")
	tempFail(t, call, 1)
	tempFail(t, call, 2)
	call = waitForEnd(t, call)
	want{code: v1alpha1.ErrorToolFailed, retryable: true, message: []string{"75"}}.check(t, call)
	if n := len(call.Status.Attempts); n != 2 {
		t.Errorf("%d attempts, want 2", n)
	}
	noSandboxOf(t, call, 3)
	waitForNoSandbox(t, call)
}

// Attempts that never started are bounded by the time to start over all of them,
// and end as such.
func TestNeverStartedAttemptsAreBounded(t *testing.T) {
	t.Parallel()
	tools := openNamespace(t)
	allow(t, tools)
	newTool(t, tools, "tool", withRetries(0, v1alpha1.SideEffectsNonIdempotent), func(s *v1alpha1.ToolSpec) { s.StartDeadlineSeconds = 12 })
	call := newCall(t, tools, "tool")
	now := call
	until := func(done func() bool) bool { // false if the call ends before
		eventually(t, "an attempt or the end of the call", func() (bool, any) {
			now = &v1alpha1.ToolCall{}
			return get(t, keyOf(call), now) && (complete(now) || done()), now.Status
		})
		return !complete(now)
	}
	for number := 1; until(func() bool { return len(podsOfAttempt(t, call, number)) == 1 }); number++ {
		pod := startAttempt(t, call, number, nil)
		if until(func() bool { return len(now.Status.Attempts) == number }) {
			setPod(t, pod, terminated(64, "Error"))
		}
	}
	want{code: v1alpha1.ErrorToolUnavailable, retryable: true}.check(t, now)
	for _, a := range now.Status.Attempts {
		if a.Outcome != v1alpha1.OutcomeNeverStarted {
			t.Errorf("attempt %d has outcome %s", a.Number, a.Outcome)
		}
	}
	if n := len(now.Status.Attempts); n < 2 || n > 4 {
		t.Errorf("%d attempts in 12 seconds with pauses of 1, 2, 4 and 8", n)
	}
	if took := now.Status.CompletionTime.Sub(now.CreationTimestamp.Time); took > 20*time.Second {
		t.Errorf("it took %s, startDeadlineSeconds is 12", took)
	}
	waitForNoSandbox(t, call)
}

// A sandbox that ends before it got the call costs nothing: another one takes
// its place under the same number.
func TestSandboxThatGotNoCallIsReplaced(t *testing.T) {
	t.Parallel()
	for reason, end := range map[string]func(*testing.T, *v1alpha1.ToolCall){
		"its pod is evicted": func(t *testing.T, call *v1alpha1.ToolCall) {
			pod := podOf(t, call)
			bind(t, pod)
			setPod(t, pod, corev1.PodStatus{Phase: corev1.PodFailed, Reason: "Evicted", Message: "The node was low on resource: memory."})
		},
		"its pod is deleted": func(t *testing.T, call *v1alpha1.ToolCall) {
			pod := podOf(t, call)
			bind(t, pod)
			remove(t, pod)
		},
		"its pod is deleted before it has a node": func(t *testing.T, call *v1alpha1.ToolCall) { remove(t, podOf(t, call)) },
		"its runner ends without a call": func(t *testing.T, call *v1alpha1.ToolCall) {
			setPod(t, podOf(t, call), terminated(64, "Error"))
		},
		"its Job is deleted": func(t *testing.T, call *v1alpha1.ToolCall) {
			podOf(t, call)
			if err := admin.Delete(t.Context(), jobOf(t, call), client.PropagationPolicy(metav1.DeletePropagationBackground)); err != nil {
				t.Fatal(err)
			}
		},
	} {
		t.Run(reason, func(t *testing.T) {
			t.Parallel()
			tools := openNamespace(t)
			allow(t, tools)
			newTool(t, tools, "tool", withRetries(0, v1alpha1.SideEffectsNonIdempotent))
			call := newCall(t, tools, "tool")
			job := jobOf(t, call)
			end(t, call)
			again := &batchv1.Job{}
			eventually(t, "another Job of that name", func() (bool, any) {
				return get(t, keyOf(job), again) && again.UID != job.UID, again
			})
			var pod *corev1.Pod
			eventually(t, "its pod", func() (bool, any) {
				pods := podsOf(t, call)
				i := slices.IndexFunc(pods, func(p corev1.Pod) bool { return metav1.IsControlledBy(&p, again) })
				if i >= 0 {
					pod = &pods[i]
				}
				return i >= 0, pods
			})
			runPod(t, pod, prints("1", 0))
			call = waitForEnd(t, call)
			want{}.check(t, call)
			if a := call.Status.Attempts; len(a) != 1 || a[0].Number != 1 || a[0].PodUID != pod.UID {
				t.Errorf("attempts are %s, want one, with the second pod", show(a))
			}
			waitForNoSandbox(t, call)
		})
	}
}

// A cause that lasts makes a few sandboxes, not hundreds, and ends with its words.
func TestSandboxesThatGetNoCallAreBounded(t *testing.T) {
	t.Parallel()
	tools := openNamespace(t)
	allow(t, tools)
	newTool(t, tools, "tool", func(s *v1alpha1.ToolSpec) { s.StartDeadlineSeconds = 6 })
	call := newCall(t, tools, "tool")
	pods := map[string]bool{}
	eventually(t, "the end of the call", func() (bool, any) {
		for _, pod := range podsOf(t, call) {
			if !pods[pod.Name] {
				pods[pod.Name] = true
				pod.Status = terminated(64, "Error")
				_ = admin.Status().Update(t.Context(), &pod) // it may be gone
			}
		}
		now := &v1alpha1.ToolCall{}
		return get(t, keyOf(call), now) && complete(now), now.Status
	})
	call = waitForEnd(t, call)
	want{code: v1alpha1.ErrorToolUnavailable, retryable: true}.check(t, call)
	// The time may be over while one more is being made.
	if m := call.Status.Result.Message; !contains(m, "before it got the call") && !contains(m, "startDeadlineSeconds (6)") {
		t.Errorf("the message is %q", m)
	}
	if len(pods) < 2 || len(pods) > 6 {
		t.Errorf("%d sandboxes in 6 seconds", len(pods))
	}
	if len(call.Status.Attempts) > 0 {
		t.Errorf("never sent, and has an attempt: %s", show(call.Status.Attempts))
	}
}

// The call's own deadline is over all attempts and pauses.
func TestNoAttemptPastTheDeadline(t *testing.T) {
	t.Parallel()
	tools := openNamespace(t)
	allow(t, tools)
	newTool(t, tools, "tool", withRetries(5, v1alpha1.SideEffectsNone))
	const seconds = 8
	withDeadline := func(s *v1alpha1.ToolCallSpec) { s.DeadlineSeconds = seconds }
	t.Run("the pause would be over too late", func(t *testing.T) {
		t.Parallel()
		call := newCall(t, tools, "tool", withDeadline)
		startAttempt(t, call, 1, func(c toolCall) toolResult {
			time.Sleep(time.Until(call.CreationTimestamp.Add(seconds*time.Second - 500*time.Millisecond)))
			return prints("", 75)(c)
		})
		call = waitForEnd(t, call)
		want{code: v1alpha1.ErrorToolFailed, retryable: true, message: []string{"75"}}.check(t, call)
		if n := len(call.Status.Attempts); n != 1 {
			t.Errorf("%d attempts, want 1", n)
		}
		noSandboxOf(t, call, 2)
	})
	t.Run("the second sandbox does not start in time", func(t *testing.T) {
		t.Parallel()
		call := newCall(t, tools, "tool", withDeadline)
		tempFail(t, call, 1)
		podOfAttempt(t, call, 2)
		call = waitForEnd(t, call)
		want{code: v1alpha1.ErrorToolFailed, retryable: true, message: []string{"attempt 1 ended with tool_failed", "75", "deadlineSeconds (8)"}}.check(t, call)
		if n := len(call.Status.Attempts); n != 1 {
			t.Errorf("%d attempts, want 1", n)
		}
		if took := call.Status.CompletionTime.Sub(call.CreationTimestamp.Time); took < seconds*time.Second || took > (seconds+5)*time.Second {
			t.Errorf("it took %s, deadlineSeconds is %d", took, seconds)
		}
		waitForNoSandbox(t, call)
	})
	t.Run("the second attempt has what is left of it", func(t *testing.T) {
		t.Parallel()
		call := newCall(t, tools, "tool", withDeadline)
		tempFail(t, call, 1)
		startAttempt(t, call, 2, prints("1", 0))
		call = waitForEnd(t, call)
		want{}.check(t, call)
		a := call.Status.Attempts[1]
		end := call.CreationTimestamp.Add(seconds * time.Second)
		if limit := a.SendTime.Add(time.Duration(a.TimeoutSeconds) * time.Second); limit.After(end.Add(time.Second)) {
			t.Errorf("the second attempt may run until %s, the deadline is %s", limit, end)
		}
	})
}

// A cancelled call ends in the pause before an attempt, not after it.
func TestCancelBetweenAttempts(t *testing.T) {
	t.Parallel()
	tools := openNamespace(t)
	allow(t, tools)
	newTool(t, tools, "tool", withRetries(5, v1alpha1.SideEffectsNonIdempotent))
	call := newCall(t, tools, "tool")
	for n := range 3 {
		tempFail(t, call, n+1)
	}
	ended := waitForOutcome(t, call, 3).Status.Attempts[2].EndTime // a pause of 4 s begins
	cancel(t, call)
	call = waitForEnd(t, call)
	want{code: v1alpha1.ErrorCancelled, message: []string{"attempt 3 ended with tool_failed", "75", "cancelled by spec.cancel"}}.check(t, call)
	if n := len(call.Status.Attempts); n != 3 {
		t.Errorf("%d attempts, want 3", n)
	}
	if took := call.Status.CompletionTime.Sub(ended.Time); took >= 4*time.Second {
		t.Errorf("it ended %s after the last attempt, when the pause was over", took)
	}
	noSandboxOf(t, call, 4)
	waitForNoSandbox(t, call)
}

// What changes between two attempts counts for the second; the answer then is
// that of the first, and says why there was no other.
func TestChangesBetweenAttempts(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		reason string
		change func(*testing.T, *v1alpha1.Tool, *v1alpha1.ToolPolicy)
		first  ends
		code   v1alpha1.ErrorCode
		why    []string
	}{
		{"the policy is taken away", func(t *testing.T, _ *v1alpha1.Tool, p *v1alpha1.ToolPolicy) { remove(t, p) },
			tempFail, v1alpha1.ErrorToolFailed, []string{"75", "tool_not_allowed", "no policy allows"}},
		{"the Tool is deleted", func(t *testing.T, tool *v1alpha1.Tool, _ *v1alpha1.ToolPolicy) { remove(t, tool) },
			tempFail, v1alpha1.ErrorToolFailed, []string{"75", "tool_not_found"}},
		{"the Tool takes other arguments", func(t *testing.T, tool *v1alpha1.Tool, _ *v1alpha1.ToolPolicy) {
			setSpec(t, tool, func(s *v1alpha1.ToolSpec) {
				s.InputSchema = rawJSON(`{"type":"object","properties":{"text":{"type":"integer"}}}`)
			})
		}, tempFail, v1alpha1.ErrorToolFailed, []string{"75", "invalid_arguments", "/text"}},
		{"a second run of the Tool is not safe any more", func(t *testing.T, tool *v1alpha1.Tool, _ *v1alpha1.ToolPolicy) {
			setSpec(t, tool, func(s *v1alpha1.ToolSpec) { s.SideEffects = v1alpha1.SideEffectsNonIdempotent })
		}, podDeleted, v1alpha1.ErrorOutcomeUnknown, []string{"may have taken effect", "sideEffects: NonIdempotent"}},
	} {
		t.Run(test.reason, func(t *testing.T) {
			t.Parallel()
			tools := openNamespace(t)
			policy := allow(t, tools)
			tool := newTool(t, tools, "tool", withRetries(3, v1alpha1.SideEffectsIdempotent))
			call := newCall(t, tools, "tool")
			test.first(t, call, 1)
			waitForOutcome(t, call, 1)
			test.change(t, tool, policy)
			// Its pod does not run before the change is there; so it gets no call.
			call = waitForEnd(t, call)
			want{code: test.code, message: append(test.why, "attempt 1 ended with "+string(test.code), "not tried again")}.check(t, call)
			if n := len(call.Status.Attempts); n != 1 {
				t.Errorf("%d attempts, want 1", n)
			}
			waitForNoSandbox(t, call)
		})
	}
}

// An approval is for a Tool as it was: after a change, a second attempt needs
// another one.
func TestRetryAfterToolChangedAsksAgain(t *testing.T) {
	t.Parallel()
	tools := openNamespace(t)
	allow(t, tools)
	ask := policyObject(tools, "ask", v1alpha1.EffectRequireApproval, "*")
	ask.Spec.Rules[0].Approval = &v1alpha1.RuleApproval{Approvers: []v1alpha1.Subject{{Kind: v1alpha1.SubjectGroup, Name: "system:masters"}}}
	create(t, ask)
	tool := newTool(t, tools, "tool", withRetries(1, v1alpha1.SideEffectsNonIdempotent))
	call := newCall(t, tools, "tool")
	awaits := func(digest string) string {
		return waitForCall(t, call, "AwaitingApproval", func(now *v1alpha1.ToolCall) bool {
			return reasonOf(now) == v1alpha1.ReasonAwaitingApproval && now.Status.ApprovalDigest != digest
		}).Status.ApprovalDigest
	}
	agrees := func(digest string) {
		create(t, &v1alpha1.ToolCallApproval{
			ObjectMeta: metav1.ObjectMeta{Namespace: call.Namespace, GenerateName: "yes-"},
			Spec: v1alpha1.ToolCallApprovalSpec{Decision: v1alpha1.DecisionApprove, ToolCallRef: v1alpha1.ApprovedCallReference{
				Name: call.Name, UID: call.UID, ApprovalDigest: digest}},
		})
	}
	first := awaits("")
	agrees(first)
	tempFail(t, call, 1)
	waitForOutcome(t, call, 1)
	setSpec(t, tool, func(s *v1alpha1.ToolSpec) { s.Container.Image = "registry.example/tool:2" })
	second := awaits(first)
	eventually(t, "no sandbox while it waits", func() (bool, any) {
		pods := podsOf(t, call)
		return len(pods) == 0, pods
	})
	agrees(second)
	if pod := startAttempt(t, call, 2, prints("1", 0)); pod.Spec.Containers[0].Image != "registry.example/tool:2" {
		t.Errorf("the second sandbox has image %s", pod.Spec.Containers[0].Image)
	}
	call = waitForEnd(t, call)
	want{}.check(t, call)
	if n := len(call.Status.Attempts); n != 2 {
		t.Errorf("%d attempts, want 2", n)
	}
}
