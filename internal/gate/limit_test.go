package gate

import (
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"callgate.dev/callgate/api/v1alpha1"
	"callgate.dev/callgate/internal/limit"
	"callgate.dev/callgate/internal/policy"
)

var (
	throttle = v1alpha1.RuleReference{Policy: "tools/agents", Rule: "throttle", Effect: v1alpha1.EffectLimit}
	budget   = v1alpha1.RuleReference{Policy: "company", Rule: "budget", Effect: v1alpha1.EffectLimit}
)

func TestRate(t *testing.T) {
	now := created.Add(time.Minute)
	rule := policy.Limit{Rule: throttle, MaxCalls: 2, Window: 10 * time.Second, PerCaller: true}
	counted := func(ages map[string]time.Duration) (w limit.Window) {
		// Oldest first, as they were counted.
		for _, uid := range slices.SortedFunc(maps.Keys(ages), func(a, b string) int { return int(ages[b] - ages[a]) }) {
			var ok bool
			if w, ok, _ = w.Take(types.UID(uid), now.Add(-ages[uid]), 1000, time.Hour); !ok {
				t.Fatal("not counted")
			}
		}
		return w
	}
	for _, tc := range []struct {
		reason string
		rule   func(*policy.Limit)
		limits []v1alpha1.LimitCount
		window limit.Window

		act     Act
		passes  bool
		retry   time.Time
		message string
	}{
		{reason: "nothing was counted yet", act: ActCount},
		{reason: "one more fits", window: counted(map[string]time.Duration{"a": time.Second}), act: ActCount},
		{reason: "as many as the rule allows are in the window: when the oldest leaves it, one fits",
			window: counted(map[string]time.Duration{"a": 6 * time.Second, "b": time.Second}), retry: now.Add(4 * time.Second),
			message: `rule "throttle" of policy tools/agents allows 2 calls in 10s by the same caller: propose the call again after status.retryTime`},
		{reason: "the words say whose calls are counted", rule: func(l *policy.Limit) { l.PerCaller = false },
			window: counted(map[string]time.Duration{"a": 6 * time.Second, "b": time.Second}), retry: now.Add(4 * time.Second), message: "by all callers together"},
		{reason: "the oldest has left the window", window: counted(map[string]time.Duration{"a": 10 * time.Second, "b": time.Second}), act: ActCount},
		{reason: "a rule that was lowered waits until enough have left", rule: func(l *policy.Limit) { l.MaxCalls = 1 },
			window: counted(map[string]time.Duration{"a": 6 * time.Second, "b": time.Second}), retry: now.Add(9 * time.Second), message: "allows 1 calls"},
		{reason: "the call's status says that it was counted, however full the window is since", limits: []v1alpha1.LimitCount{{Policy: "tools/agents", Rule: "throttle"}},
			window: counted(map[string]time.Duration{"a": 6 * time.Second, "b": time.Second}), passes: true},
		{reason: "counted by another rule of the policy is not counted by this one", limits: []v1alpha1.LimitCount{{Policy: "tools/agents", Rule: "other"}, {Policy: "company", Rule: "throttle"}}, act: ActCount},
		{reason: "the record has the call, its status does not yet: it is not counted twice",
			window: counted(map[string]time.Duration{"a": 6 * time.Second, "call-uid": time.Second}), passes: true},
	} {
		t.Run(tc.reason, func(t *testing.T) {
			call := testCall(`{}`)
			call.Status.Limits = tc.limits
			r := Rated{Now: now, Call: call, Limit: rule, Window: tc.window}
			if tc.rule != nil {
				tc.rule(&r.Limit)
			}
			v := Rate(r)
			if v.Act != tc.act || v.Passed() != tc.passes || v.Ended() == v.RetryTime.IsZero() || v.Ended() != !tc.retry.IsZero() {
				t.Fatalf("verdict %+v", v)
			}
			if !v.Ended() {
				return
			}
			if !v.RetryTime.Equal(tc.retry) {
				t.Errorf("retryTime %s, want %s", v.RetryTime, tc.retry)
			}
			if v.Result.ErrorCode != v1alpha1.ErrorRateLimited || !*v.Result.Retryable || !strings.Contains(v.Result.Message, tc.message) {
				t.Errorf("result %+v", v.Result)
			}
		})
	}
}

func TestPlaces(t *testing.T) {
	type place struct {
		key   string
		limit int
		wait  time.Duration
	}
	perCaller := policy.Limit{Rule: throttle, MaxConcurrent: 2, PerCaller: true, MaxWait: 30 * time.Second}
	perAll := policy.Limit{Rule: budget, MaxConcurrent: 5, MaxWait: 0}
	for _, tc := range []struct {
		reason string
		tool   func(*v1alpha1.Tool)
		caller string
		limits []policy.Limit
		want   []place
	}{
		{reason: "a Tool from before the field has ten places, and its start deadline bounds the wait",
			want: []place{{"tool/tool-uid", 10, 120 * time.Second}}},
		{reason: "the Tool's own words", tool: func(t *v1alpha1.Tool) { t.Spec.MaxConcurrentCalls, t.Spec.StartDeadlineSeconds = 3, 7 },
			want: []place{{"tool/tool-uid", 3, 7 * time.Second}}},
		{reason: "a Tool that was created again has places of its own", tool: func(t *v1alpha1.Tool) { t.UID = "another" },
			want: []place{{"tool/another", 10, 120 * time.Second}}},
		{reason: "each rule adds one; per caller it is the caller's", caller: "bob", limits: []policy.Limit{perCaller, perAll},
			want: []place{{"tool/tool-uid", 10, 120 * time.Second}, {"rule/tools/agents/throttle/caller/bob", 2, 30 * time.Second}, {"rule/company/budget", 5, 0}}},
		{reason: "a rule that counts calls in time only gives no place", limits: []policy.Limit{{Rule: throttle, MaxCalls: 5, Window: time.Minute}},
			want: []place{{"tool/tool-uid", 10, 120 * time.Second}}},
	} {
		t.Run(tc.reason, func(t *testing.T) {
			call, tool := testCall(`{}`), testTool("echo")
			tool.UID = "tool-uid"
			if tc.tool != nil {
				tc.tool(&tool)
			}
			if tc.caller != "" {
				call.Spec.Requester.Username = tc.caller
			}
			var got []place
			for _, p := range Places(call, &tool, tc.limits) {
				got = append(got, place{p.Key, p.Limit, p.MaxWait})
			}
			if !slices.Equal(got, tc.want) {
				t.Errorf("places %v, want %v", got, tc.want)
			}
		})
	}
}

// What a call holds is known from its status alone, when its Tool and policies
// are other ones since: each place that Places gave must be among them.
func TestPlacesHeldCoverPlaces(t *testing.T) {
	limits := []policy.Limit{{Rule: throttle, MaxConcurrent: 2, PerCaller: true}, {Rule: budget, MaxConcurrent: 5}}
	call, tool := testCall(`{}`), testTool("echo")
	call.Status.ToolUID = tool.UID
	call.Status.Decision = &v1alpha1.PolicyDecision{MatchedRules: []v1alpha1.RuleReference{
		{Policy: "tools/agents", Rule: "allow", Effect: v1alpha1.EffectAllow}, throttle, budget}}
	held := map[string]bool{}
	for _, p := range PlacesHeld(call) {
		held[p.Key] = true
		if p.Limit != 0 {
			t.Errorf("place %s has limit %d, which the status does not know", p.Key, p.Limit)
		}
	}
	for _, p := range Places(call, &tool, limits) {
		if !held[p.Key] {
			t.Errorf("place %s is not among those of the status: %v", p.Key, held)
		}
	}
	if n := len(held); n != 5 { // the Tool's, and two ways of each Limit rule; an Allow has none
		t.Errorf("%d places: %v", n, held)
	}
	call.Status.Decision = nil
	if places := PlacesHeld(call); len(places) != 1 || places[0].Key != toolPlace(string(tool.UID)) {
		t.Errorf("without a decision: %v", places)
	}
}

func TestQueue(t *testing.T) {
	call, tool := testCall(`{}`), testTool("echo")
	tool.Spec.MaxConcurrentCalls, tool.Spec.StartDeadlineSeconds = 3, 60
	places := Places(call, &tool, []policy.Limit{
		{Rule: throttle, MaxConcurrent: 2, PerCaller: true, MaxWait: 30 * time.Second}, {Rule: budget, MaxConcurrent: 5}})
	atTool, atRule, atOnce := places[0], places[1], places[2]
	since := created.Add(10 * time.Second)
	for _, tc := range []struct {
		reason   string
		at       Place
		age      time.Duration // since it began to wait
		deadline int32

		code    v1alpha1.ErrorCode
		after   time.Duration
		message string
	}{
		{reason: "it waits for the Tool, at most its start deadline", at: atTool, age: 20 * time.Second, after: 40 * time.Second,
			message: "Tool tools/echo runs at most 3 calls at once (spec.maxConcurrentCalls); the call waits for its turn, at most its startDeadlineSeconds (60)"},
		{reason: "it waits for a rule, at most its maxWaitSeconds", at: atRule, age: 10 * time.Second, after: 20 * time.Second,
			message: `rule "throttle" of policy tools/agents allows 2 calls at once by the same caller; the call waits for its turn, at most its maxWaitSeconds (30)`},
		{reason: "the wait is over at its bound", at: atRule, age: 30 * time.Second, code: v1alpha1.ErrorRateLimited,
			message: `allows 2 calls at once by the same caller, and no place became free within its maxWaitSeconds (30)`},
		{reason: "the Tool's, too", at: atTool, age: 61 * time.Second, code: v1alpha1.ErrorRateLimited, message: "startDeadlineSeconds (60)"},
		{reason: "maxWaitSeconds 0 does not wait", at: atOnce, code: v1alpha1.ErrorRateLimited,
			message: `rule "budget" of policy company allows 5 calls at once by all callers together, and by its maxWaitSeconds (0) the call does not wait`},
		{reason: "the call's own deadline bounds the wait", at: atRule, age: 10 * time.Second, deadline: 25, after: 5 * time.Second, message: "waits for its turn"},
		{reason: "and ends it with the code of the wait", at: atRule, age: 15 * time.Second, deadline: 25, code: v1alpha1.ErrorRateLimited,
			message: "no place became free within the call's deadlineSeconds (25)"},
	} {
		t.Run(tc.reason, func(t *testing.T) {
			call := testCall(`{}`)
			call.Spec.DeadlineSeconds = tc.deadline
			now := since.Add(tc.age)
			v := Queue(Queued{Now: now, Call: call, Since: since, At: tc.at})
			text := v.Message
			if v.Ended() {
				text = v.Result.Message
				if v.Result.ErrorCode != tc.code || !*v.Result.Retryable || !v.RetryTime.After(now) {
					t.Errorf("ends with %+v, retryTime %s", v.Result, v.RetryTime)
				}
			} else if tc.code != "" || v.Reason != v1alpha1.ReasonQueued || v.After != tc.after {
				t.Errorf("waits as %s for %s", v.Reason, v.After)
			}
			if !strings.Contains(text, tc.message) {
				t.Errorf("the message is %q", text)
			}
		})
	}
	// A message that changed while the call waits would be a write of each
	// waiting call at every end of another.
	first := Queue(Queued{Now: since, Call: call, Since: since, At: atRule})
	if later := Queue(Queued{Now: since.Add(5 * time.Second), Call: call, Since: since, At: atRule}); later.Message != first.Message {
		t.Errorf("the message changed from %q to %q", first.Message, later.Message)
	}
}
