package controllers_test

import (
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"callgate.dev/callgate/api/v1alpha1"
)

// limited lets agent and worker call every Tool of a namespace, under a limit.
func limited(t *testing.T, tools string, limit v1alpha1.RuleLimit, changes ...func(*v1alpha1.PolicyRule)) {
	t.Helper()
	p := policyObject(tools, "limits", v1alpha1.EffectAllow, "*")
	p.Spec.Subjects = append(p.Spec.Subjects, v1alpha1.Subject{Kind: v1alpha1.SubjectServiceAccount, Namespace: agentsNamespace, Name: "worker"})
	rule := v1alpha1.PolicyRule{Name: "throttle", Effect: v1alpha1.EffectLimit, Tools: v1alpha1.ToolSelector{Names: []string{"*"}}, Limit: &limit}
	for _, change := range changes {
		change(&rule)
	}
	p.Spec.Rules = append(p.Spec.Rules, rule)
	create(t, p)
}

func limitedTool(t *testing.T, limit v1alpha1.RuleLimit, changes ...func(*v1alpha1.PolicyRule)) (tools string) {
	t.Helper()
	tools = openNamespace(t)
	limited(t, tools, limit, changes...)
	newTool(t, tools, "tool")
	return tools
}

func oneAtOnce(s *v1alpha1.ToolSpec) { s.MaxConcurrentCalls = 1 }

// occupied has a call that runs until release.
func occupied(t *testing.T, tools string) (call *v1alpha1.ToolCall, release func()) {
	t.Helper()
	tool, release := blocked(t)
	call = newCall(t, tools, "tool")
	startPod(t, call, tool)
	return waitForSend(t, call), release
}

// queued waits until a call is Queued, and returns the message.
func queued(t *testing.T, call *v1alpha1.ToolCall) string {
	t.Helper()
	message := waitForReason(t, call, v1alpha1.ReasonQueued)
	now := waitForCall(t, call, "the status", func(*v1alpha1.ToolCall) bool { return true })
	if now.Status.QueueTime == nil || now.Status.QueueTime.Before(ptr.To(metav1.NewMicroTime(call.CreationTimestamp.Time))) {
		t.Errorf("queueTime is %v", now.Status.QueueTime)
	}
	if get(t, jobKey(toolNamespace(call), call), &jobType{}) {
		t.Error("a call that is Queued has a sandbox")
	}
	return message
}

// nextSecond waits until calls are younger than all that were created before:
// the API server knows whole seconds.
func nextSecond(t *testing.T, call *v1alpha1.ToolCall) {
	t.Helper()
	eventually(t, "another second", func() (bool, any) { return time.Since(call.CreationTimestamp.Time) > 1100*time.Millisecond, nil })
}

func TestQueue(t *testing.T) {
	t.Parallel()
	tools, tool := toolWith(t, oneAtOnce)
	first, release := occupied(t, tools)
	var waiting []*v1alpha1.ToolCall
	for range 3 {
		call := newCall(t, tools, "tool")
		waiting = append(waiting, call)
		nextSecond(t, call)
	}
	for _, call := range waiting {
		if message := queued(t, call); !contains(message, tools+"/tool runs at most 1 calls at once") || !contains(message, "startDeadlineSeconds (120)") {
			t.Errorf("the message is %s", message)
		}
	}
	release()
	want{}.check(t, waitForEnd(t, first))
	for i, call := range waiting {
		podOf(t, call) // it has its turn
		for _, later := range waiting[i+1:] {
			queued(t, later)
		}
		call = runs(t, call)
		if call.Status.QueueTime == nil {
			t.Error("queueTime is not kept")
		}
	}
	// More places let in at once who waits.
	first, release = occupied(t, tools)
	second, third := newCall(t, tools, "tool"), newCall(t, tools, "tool")
	queued(t, second)
	queued(t, third)
	setSpec(t, tool, func(s *v1alpha1.ToolSpec) { s.MaxConcurrentCalls = 3 })
	runs(t, second)
	runs(t, third)
	release()
	waitForEnd(t, first)
}

// Nobody waits for ever.
func TestQueueEnds(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		reason string
		tool   func(*v1alpha1.ToolSpec)
		limit  *v1alpha1.RuleLimit
		call   func(*v1alpha1.ToolCallSpec)
		says   []string
		atOnce bool
	}{
		{reason: "a Tool's limit, within its start deadline", tool: func(s *v1alpha1.ToolSpec) { s.MaxConcurrentCalls, s.StartDeadlineSeconds = 1, 3 },
			says: []string{"runs at most 1 calls at once", "no place became free within its startDeadlineSeconds (3)"}},
		{reason: "a rule's limit, within its maxWaitSeconds", limit: &v1alpha1.RuleLimit{MaxConcurrent: 1, MaxWaitSeconds: ptr.To[int32](2)},
			says: []string{`rule "throttle" of policy tools-`, "allows 1 calls at once by the same caller", "maxWaitSeconds (2)"}},
		{reason: "maxWaitSeconds 0: it does not wait", limit: &v1alpha1.RuleLimit{MaxConcurrent: 1, MaxWaitSeconds: ptr.To[int32](0), Per: v1alpha1.LimitAll},
			says: []string{"by all callers together", "maxWaitSeconds (0) the call does not wait"}, atOnce: true},
		{reason: "the call's own deadline", tool: oneAtOnce, call: func(s *v1alpha1.ToolCallSpec) { s.DeadlineSeconds = 2 },
			says: []string{"deadlineSeconds (2)"}},
	} {
		t.Run(test.reason, func(t *testing.T) {
			t.Parallel()
			tools := openNamespace(t)
			if test.limit != nil {
				limited(t, tools, *test.limit)
			} else {
				allow(t, tools)
			}
			if test.tool == nil {
				test.tool = func(*v1alpha1.ToolSpec) {}
			}
			if test.call == nil {
				test.call = func(*v1alpha1.ToolCallSpec) {}
			}
			tool := newTool(t, tools, "tool", test.tool)
			first, release := occupied(t, tools)
			call := newCall(t, tools, "tool", test.call)
			if !test.atOnce {
				queued(t, call)
			}
			call = waitForEnd(t, call)
			want{code: v1alpha1.ErrorRateLimited, retryable: true, message: test.says}.check(t, call)
			if r := call.Status.RetryTime; r == nil || r.Time.Before(call.Status.CompletionTime.Time) {
				t.Errorf("retryTime is %v, completionTime %v", r, call.Status.CompletionTime)
			}
			if len(call.Status.Attempts) > 0 || get(t, jobKey(tools, call), &jobType{}) {
				t.Errorf("a call that was refused has a sandbox: %s", show(call.Status))
			}
			release()
			waitForEnd(t, first)
			// What is shown next is no race with a start deadline of seconds.
			setSpec(t, tool, func(s *v1alpha1.ToolSpec) { s.StartDeadlineSeconds = 120 })
			runs(t, newCall(t, tools, "tool"))
		})
	}
}

func TestConcurrencyRules(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		per   v1alpha1.LimitScope
		other bool // the other caller runs
	}{{v1alpha1.LimitPerCaller, true}, {v1alpha1.LimitAll, false}} {
		t.Run("per "+string(test.per), func(t *testing.T) {
			t.Parallel()
			tools := limitedTool(t, v1alpha1.RuleLimit{MaxConcurrent: 1, Per: test.per})
			// The rule counts the calls of all the Tools that it selects together.
			newTool(t, tools, "second")
			_, release := occupied(t, tools)
			var own []*v1alpha1.ToolCall
			for range 3 {
				own = append(own, newCall(t, tools, "second"))
			}
			for _, call := range own {
				queued(t, call)
			}
			other := propose(t, worker, callObject(tools, "tool"))
			if test.other {
				runs(t, other) // in front of all who are held up by a limit of their own
				queued(t, own[0])
			} else {
				queued(t, other)
			}
			release()
			work := runAll(t, tools, counter())
			for _, call := range append(own, other) {
				want{}.check(t, waitForEnd(t, call))
			}
			if n := work.atOnce(); n != 1 {
				t.Errorf("%d calls ran at once", n)
			}
		})
	}
}

// A place that nobody uses is given on.
func TestPlaceIsGivenOn(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		reason string
		then   func(t *testing.T, first, second *v1alpha1.ToolCall, release func())
		first  want
		second *want // nil: it is deleted
		starts bool  // first does not run yet
	}{
		{reason: "who waited in front is cancelled", second: &want{code: v1alpha1.ErrorCancelled}, then: func(t *testing.T, _, second *v1alpha1.ToolCall, release func()) {
			cancel(t, second)
			want{code: v1alpha1.ErrorCancelled, message: []string{"before the tool was started"}}.check(t, waitForEnd(t, second))
			release()
		}},
		{reason: "who waited in front is deleted", then: func(t *testing.T, _, second *v1alpha1.ToolCall, release func()) {
			remove(t, second.DeepCopy())
			release()
		}},
		{reason: "who holds it cannot start", starts: true, first: want{code: v1alpha1.ErrorToolUnavailable}, then: func(t *testing.T, first, second *v1alpha1.ToolCall, _ func()) {
			setPod(t, podOf(t, first), waiting("InvalidImageName", "couldn't parse image name"))
			remove(t, second.DeepCopy())
		}},
		{reason: "who holds it is cancelled while it starts", starts: true, first: want{code: v1alpha1.ErrorCancelled}, then: func(t *testing.T, first, second *v1alpha1.ToolCall, _ func()) {
			cancel(t, first)
			remove(t, second.DeepCopy())
		}},
	} {
		t.Run(test.reason, func(t *testing.T) {
			t.Parallel()
			tools, _ := toolWith(t, oneAtOnce)
			release := func() {}
			var first *v1alpha1.ToolCall
			if test.starts {
				first = newCall(t, tools, "tool")
				podOf(t, first)
			} else {
				first, release = occupied(t, tools)
			}
			nextSecond(t, first)
			second := newCall(t, tools, "tool")
			nextSecond(t, second)
			third := newCall(t, tools, "tool")
			queued(t, second)
			queued(t, third)
			test.then(t, first, second, release)
			test.first.check(t, waitForEnd(t, first))
			runs(t, third)
		})
	}
	t.Run("who holds it is deleted", func(t *testing.T) {
		t.Parallel()
		tools, _ := toolWith(t, oneAtOnce)
		for _, when := range []string{"starting", "running"} {
			first := newCall(t, tools, "tool")
			podOf(t, first)
			if when == "running" {
				tool, _ := blocked(t)
				startPod(t, first, tool)
				waitForSend(t, first)
			}
			second := newCall(t, tools, "tool")
			queued(t, second)
			remove(t, first.DeepCopy())
			runs(t, second)
		}
	})
}

// A caller that deletes its running call has no second one beside it: the tool of
// the first runs until its pod has ended.
func TestPlaceOfDeletedCall(t *testing.T) {
	t.Parallel()
	for reason, name := range map[string]string{"another call": "", "a call of the same name": "the-same"} {
		t.Run(reason, func(t *testing.T) {
			t.Parallel()
			tools, _ := toolWith(t, oneAtOnce)
			first := callObject(tools, "tool")
			if name != "" {
				first.GenerateName, first.Name = "", name+strings.TrimPrefix(tools, "tools")
			}
			again := first.DeepCopy()
			propose(t, agent, first)
			tool, _ := blocked(t)
			pod := startPod(t, first, tool)
			lingers := make(chan struct{})
			theNode.mu.Lock()
			theNode.pods[keyOf(pod).String()].lingers = lingers
			theNode.mu.Unlock()
			waitForSend(t, first)
			remove(t, first.DeepCopy())
			second := propose(t, agent, again)
			queued(t, second)
			eventually(t, "the pod deleted", func() (bool, any) { return get(t, keyOf(pod), pod) && pod.DeletionTimestamp != nil, pod })
			nextSecond(t, second)
			queued(t, second)
			close(lingers)
			runs(t, second)
		})
	}
}

// waitUntil waits for a moment of the API server's clock, which is ours.
func waitUntil(t *testing.T, moment time.Time) {
	t.Helper()
	eventually(t, "the time "+moment.String(), func() (bool, any) { return time.Now().After(moment), moment })
}

func rateLimited(t *testing.T, call *v1alpha1.ToolCall, message ...string) (retry time.Time) {
	t.Helper()
	call = waitForEnd(t, call)
	want{code: v1alpha1.ErrorRateLimited, retryable: true, message: message}.check(t, call)
	if call.Status.RetryTime == nil {
		t.Fatal("no retryTime")
	}
	if len(call.Status.Limits) > 0 {
		t.Errorf("a call that is refused is not counted: %s", show(call.Status.Limits))
	}
	return call.Status.RetryTime.Time
}

func TestRate(t *testing.T) {
	t.Parallel()
	const window = 15
	tools := limitedTool(t, v1alpha1.RuleLimit{MaxCalls: 2, WindowSeconds: window})
	first := runs(t, newCall(t, tools, "tool"))
	if l := first.Status.Limits; len(l) != 1 || l[0].Policy != tools+"/limits" || l[0].Rule != "throttle" ||
		l[0].CountTime.Time.Before(first.CreationTimestamp.Time) {
		t.Errorf("status.limits are %s", show(l))
	}
	// What never comes to the limit is not counted.
	want{code: v1alpha1.ErrorInvalidArguments}.check(t, waitForEnd(t, newCall(t, tools, "tool", withArgs(`{"n":"one"}`))))
	second := runs(t, newCall(t, tools, "tool", withKey("k")))
	duplicateOf(t, second, newCall(t, tools, "tool", withKey("k")))

	refused := newCall(t, tools, "tool")
	retry := rateLimited(t, refused, `rule "throttle" of policy `+tools+"/limits", "allows 2 calls in 15s by the same caller", "status.retryTime")
	counted := first.Status.Limits[0].CountTime.Time
	if early, late := first.CreationTimestamp.Add(window*time.Second), counted.Add((window+2)*time.Second); retry.Before(early) || retry.After(late) {
		t.Errorf("retryTime is %s, want it from %s to %s", retry, early, late)
	}
	// Who deletes what was counted has no room by that, nor under the same name.
	for _, call := range []*v1alpha1.ToolCall{first, second, refused} {
		remove(t, call.DeepCopy())
	}
	again := callObject(tools, "tool")
	again.GenerateName, again.Name = "", first.Name
	rateLimited(t, propose(t, agent, again))
	runs(t, propose(t, worker, callObject(tools, "tool"))) // another caller has its own

	waitUntil(t, retry)
	runs(t, newCall(t, tools, "tool"))
}

func TestRateOfAll(t *testing.T) {
	t.Parallel()
	tools := limitedTool(t, v1alpha1.RuleLimit{MaxCalls: 1, WindowSeconds: 600, Per: v1alpha1.LimitAll})
	runs(t, newCall(t, tools, "tool"))
	retry := rateLimited(t, propose(t, worker, callObject(tools, "tool")), "by all callers together")
	if left := time.Until(retry); left < 500*time.Second || left > 610*time.Second {
		t.Errorf("retryTime is in %s", left)
	}
}

// What was counted goes with its window; and who is refused by one limit is
// not counted by another.
func TestRatesTogether(t *testing.T) {
	t.Parallel()
	tools := limitedTool(t, v1alpha1.RuleLimit{MaxCalls: 1, WindowSeconds: 4})
	second := policyObject(tools, "a-budget", v1alpha1.EffectLimit, "*")
	second.Spec.Rules[0].Limit = &v1alpha1.RuleLimit{MaxCalls: 2, WindowSeconds: 600}
	create(t, second)
	waitForPolicy(t, second, v1alpha1.ConditionReady, metav1.ConditionTrue, v1alpha1.ReasonReady)
	first := runs(t, newCall(t, tools, "tool"))
	if len(first.Status.Limits) != 2 {
		t.Errorf("status.limits are %s", show(first.Status.Limits))
	}
	var retry time.Time
	for range 3 {
		retry = rateLimited(t, newCall(t, tools, "tool"), "/limits allows 1 calls in 4s")
	}
	waitUntil(t, retry)
	runs(t, newCall(t, tools, "tool"))
	rateLimited(t, newCall(t, tools, "tool"), "/a-budget allows 2 calls in 10m0s")
}

// The API server has the count of callers whom it does not let near it.
func TestRateLeases(t *testing.T) {
	t.Parallel()
	tools := limitedTool(t, v1alpha1.RuleLimit{MaxCalls: 1, WindowSeconds: 3})
	call := runs(t, newCall(t, tools, "tool"))
	var leases coordinationv1.LeaseList
	var lease *coordinationv1.Lease
	eventually(t, "a Lease of the rate limit removed after its window", func() (bool, any) {
		if err := admin.List(t.Context(), &leases, client.InNamespace(install)); err != nil {
			return false, err
		}
		for i := range leases.Items {
			l := &leases.Items[i]
			if contains(l.Name, agentName) || contains(show(l), string(call.UID)) || contains(show(l), marker) {
				t.Errorf("the Lease %s names a caller or its arguments", l.Name)
			}
			if r := l.Spec.RenewTime; ptr.Deref(l.Spec.LeaseDurationSeconds, 0) == 3 && r != nil && r.Sub(call.CreationTimestamp.Time).Abs() < 3*time.Second {
				lease = l
			}
		}
		return lease != nil && !get(t, keyOf(lease), lease.DeepCopy()), lease
	})
}

// A Limit rule that cannot be read, or whose condition fails, limits.
func TestBrokenLimit(t *testing.T) {
	t.Parallel()
	for reason, when := range map[string]string{
		"it cannot be read":         "args.n >",
		"it fails on the arguments": "args.n > 5",
	} {
		t.Run(reason, func(t *testing.T) {
			t.Parallel()
			tools := limitedTool(t, v1alpha1.RuleLimit{MaxCalls: 1, WindowSeconds: 600, MaxConcurrent: 5}, func(r *v1alpha1.PolicyRule) { r.When = when })
			runs(t, newCall(t, tools, "tool"))
			rateLimited(t, newCall(t, tools, "tool"), "allows 1 calls")
		})
	}
	t.Run("one that does not match does not", func(t *testing.T) {
		t.Parallel()
		tools := limitedTool(t, v1alpha1.RuleLimit{MaxCalls: 1, WindowSeconds: 600}, func(r *v1alpha1.PolicyRule) { r.When = "has(args.n) && args.n > 5" })
		for range 3 {
			if call := runs(t, newCall(t, tools, "tool", withArgs(`{"n":5}`))); len(call.Status.Limits) > 0 {
				t.Errorf("counted: %s", show(call.Status.Limits))
			}
		}
		runs(t, newCall(t, tools, "tool", withArgs(`{"n":6}`)))
		rateLimited(t, newCall(t, tools, "tool", withArgs(`{"n":7}`)))
	})
}

// Of two hundred calls at once never more run than the default of a Tool
// allows, also across a restart, and what was counted in time is not forgotten
// by it. It is not parallel, since it stops the controller of all.
func TestManyCallsUnderLimits(t *testing.T) {
	const all, most, rate = 200, 10, 205
	tools := limitedTool(t, v1alpha1.RuleLimit{MaxCalls: rate, WindowSeconds: 600})
	tool := &v1alpha1.Tool{}
	if get(t, client.ObjectKey{Namespace: tools, Name: "tool"}, tool); tool.Spec.MaxConcurrentCalls != most {
		t.Fatalf("the default of maxConcurrentCalls is %d", tool.Spec.MaxConcurrentCalls)
	}
	var hold sync.RWMutex
	work := runAll(t, tools, func(c toolCall) toolResult {
		time.Sleep(300 * time.Millisecond) // a tool's work
		hold.RLock()
		defer hold.RUnlock()
		return prints("1", 0)(c)
	})
	calls := make([]*v1alpha1.ToolCall, all)
	for i := range calls {
		calls[i] = callObject(tools, "tool", withArgs(fmt.Sprintf(`{"n":%d}`, i)))
	}
	together(t, calls)
	eventually(t, "half of them", func() (bool, any) { return work.ran() >= all/2, work.ran() })
	// Those that run go on until the next controller has looked at all of them
	// and could have started others.
	hold.Lock()
	release := sync.OnceFunc(hold.Unlock)
	t.Cleanup(release)
	before := reconciles(t, "toolcall")
	restartController(t, func() {})
	eventually(t, "every call looked at", func() (bool, any) {
		n := reconciles(t, "toolcall") - before
		return n >= all+1, n
	})
	extra := newCall(t, tools, "tool")
	queued(t, extra)
	nextSecond(t, extra)
	release()
	calls = append(calls, extra)
	for i, call := range calls {
		calls[i] = waitForEnd(t, call)
		want{}.check(t, calls[i])
	}
	if n := work.ran(); n != len(calls) {
		t.Errorf("%d of %d calls ran", n, len(calls))
	}
	// The machine is busy, so that not all places must have been used.
	if n := work.atOnce(); n > most || n < most/2 {
		t.Errorf("%d ran at once, the limit is %d", n, most)
	}
	for range rate - len(calls) {
		waitForEnd(t, newCall(t, tools, "tool"))
	}
	rateLimited(t, newCall(t, tools, "tool"), fmt.Sprintf("allows %d calls", rate))
}

// A call that has its place, and is not sent yet, keeps it across a restart,
// whoever is looked at first. It is not parallel, since it stops the controller
// of all.
func TestPlaceOfStartingCallAcrossRestarts(t *testing.T) {
	tools, _ := toolWith(t, oneAtOnce, withRetries(3, v1alpha1.SideEffectsNonIdempotent))
	call := newCall(t, tools, "tool")
	podOf(t, call)
	waitForReason(t, call, v1alpha1.ReasonStarting)
	others := make([]*v1alpha1.ToolCall, 10)
	for i := range others {
		others[i] = newCall(t, tools, "tool")
	}
	for _, other := range others {
		queued(t, other)
	}
	restartController(t, func() {})
	waitForReason(t, newCall(t, tools, "tool"), v1alpha1.ReasonQueued)
	tempFail(t, call, 1)
	tempFail(t, call, 2)
	waitForReason(t, waitForOutcome(t, call, 2), v1alpha1.ReasonRetrying)
	restartController(t, func() {})
	startAttempt(t, call, 3, prints("1", 0))
	want{}.check(t, waitForEnd(t, call))
	wasNever(t, call, v1alpha1.ReasonQueued)
}

func wasNever(t *testing.T, call *v1alpha1.ToolCall, reason string) {
	t.Helper()
	for _, state := range statesOf(t, call) {
		if reasonOf(state) == reason {
			t.Fatalf("the call was %s: %s", reason, show(state.Status))
		}
	}
}
