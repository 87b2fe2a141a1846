package controllers_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	apimeta "k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"callgate.dev/callgate/api/v1alpha1"
)

// withWhen gives the only rule of a policy a condition.
func withWhen(p *v1alpha1.ToolPolicy, when string) *v1alpha1.ToolPolicy {
	p.Spec.Rules[0].When = when
	return p
}

// clusterPolicyObject speaks of the Tools of one namespace, so that it does not
// disturb other tests.
func clusterPolicyObject(namespace string, effect v1alpha1.RuleEffect) *v1alpha1.ClusterToolPolicy {
	p := &v1alpha1.ClusterToolPolicy{ObjectMeta: metav1.ObjectMeta{Name: namespace}}
	p.Spec = policyObject("", "", effect, "*").Spec
	p.Spec.Rules[0].Tools.Namespaces = []string{namespace}
	return p
}

func createCluster(t *testing.T, p *v1alpha1.ClusterToolPolicy) {
	t.Helper()
	create(t, p)
	// The context of the test is over by then.
	t.Cleanup(func() { _ = admin.Delete(context.Background(), p) })
}

// waitForPolicy waits for a condition of a policy's present generation, and
// returns its message.
func waitForPolicy(t *testing.T, p client.Object, kind string, status metav1.ConditionStatus, reason string) string {
	t.Helper()
	var message string
	eventually(t, fmt.Sprintf("policy %s %s=%s (%s)", p.GetName(), kind, status, reason), func() (bool, any) {
		if err := admin.Get(t.Context(), keyOf(p), p); err != nil {
			return false, err
		}
		now := &v1alpha1.ToolPolicyStatus{}
		switch p := p.(type) {
		case *v1alpha1.ToolPolicy:
			now = &p.Status
		case *v1alpha1.ClusterToolPolicy:
			now = &p.Status
		}
		c := apimeta.FindStatusCondition(now.Conditions, kind)
		if c == nil || c.ObservedGeneration != p.GetGeneration() || now.ObservedGeneration != p.GetGeneration() || c.Status != status || c.Reason != reason {
			return false, now
		}
		message = c.Message
		return true, nil
	})
	return message
}

// refused waits until a call is refused by its policies.
func refused(t *testing.T, call *v1alpha1.ToolCall, message ...string) *v1alpha1.ToolCall {
	t.Helper()
	call = waitForEnd(t, call)
	want{code: v1alpha1.ErrorToolNotAllowed, message: message}.check(t, call)
	if len(call.Status.Attempts) > 0 {
		t.Errorf("refused, and sent: %s", show(call.Status.Attempts))
	}
	if d := call.Status.Decision; d == nil || *d.Allowed {
		t.Errorf("refused, and status.decision is %s", show(d))
	}
	return call
}

// starting waits until a call is Starting and has a pod.
func starting(t *testing.T, call *v1alpha1.ToolCall) {
	t.Helper()
	podOf(t, call)
	waitForReason(t, call, v1alpha1.ReasonStarting)
}

func runs(t *testing.T, call *v1alpha1.ToolCall) *v1alpha1.ToolCall {
	t.Helper()
	startPod(t, call, prints("1", 0))
	call = waitForEnd(t, call)
	want{}.check(t, call)
	return call
}

func TestConditions(t *testing.T) {
	t.Parallel()
	tools := openNamespace(t)
	newTool(t, tools, "tool")
	newTool(t, tools, "guarded")
	create(t, withWhen(policyObject(tools, "a-small", v1alpha1.EffectAllow, "tool"), "args.n < 10"))
	create(t, policyObject(tools, "b-all", v1alpha1.EffectAllow, "guarded"))
	create(t, withWhen(policyObject(tools, "c-no-text", v1alpha1.EffectDeny, "guarded"), `has(args.text) && args.text.contains("secret")`))
	for _, test := range []struct {
		reason, tool, args string
		allowed            bool
		code               v1alpha1.ErrorCode
		message            []string
		decisive           string
	}{
		{reason: "an Allow whose condition holds", tool: "tool", args: `{"n":9}`, allowed: true, decisive: "a-small"},
		{reason: "an Allow whose condition does not hold", tool: "tool", args: `{"n":10}`, code: v1alpha1.ErrorToolNotAllowed,
			message: []string{"no policy allows", tools + "/a-small", "is not met"}},
		{reason: "an Allow that reads an argument which is not there", tool: "tool", args: `{}`, code: v1alpha1.ErrorToolNotAllowed,
			message: []string{"could not be evaluated", "no such key: n"}},
		{reason: "a wrong type is invalid before any condition reads it", tool: "tool", args: `{"n":"9"}`, code: v1alpha1.ErrorInvalidArguments, message: []string{"/n"}},
		{reason: "a Deny whose condition holds", tool: "guarded", args: `{"text":"a secret"}`, code: v1alpha1.ErrorToolNotAllowed,
			message: []string{tools + "/c-no-text", "refuses"}, decisive: "c-no-text"},
		{reason: "a Deny whose condition does not hold", tool: "guarded", args: `{"text":"hello"}`, allowed: true, decisive: "b-all"},
		{reason: "a Deny that guards its argument", tool: "guarded", args: `{}`, allowed: true, decisive: "b-all"},
	} {
		t.Run(test.reason, func(t *testing.T) {
			t.Parallel()
			call := newCall(t, tools, test.tool, withArgs(test.args))
			if test.allowed {
				call = runs(t, call)
			} else {
				call = waitForEnd(t, call)
				want{code: test.code, message: test.message}.check(t, call)
			}
			decisive := ""
			if d := call.Status.Decision; d != nil && d.DecisiveRule != nil {
				decisive = d.DecisiveRule.Policy
			}
			if test.decisive != "" && decisive != tools+"/"+test.decisive || test.decisive == "" && decisive != "" {
				t.Errorf("status.decision is %s", show(call.Status.Decision))
			}
		})
	}
}

// A change of the policies applies to every call that was not sent yet.
func TestPolicyChangedWhileStarting(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		reason string
		change func(t *testing.T, tools string, allow *v1alpha1.ToolPolicy)
		says   []string // empty: the call still runs
		rule   string
	}{
		{reason: "a Deny is added", rule: "rule", says: []string{"late", "refuses"}, change: func(t *testing.T, tools string, _ *v1alpha1.ToolPolicy) {
			create(t, policyObject(tools, "late", v1alpha1.EffectDeny, "tool"))
		}},
		{reason: "a Deny that reads the arguments is added", rule: "rule", says: []string{"late", "refuses"}, change: func(t *testing.T, tools string, _ *v1alpha1.ToolPolicy) {
			create(t, withWhen(policyObject(tools, "late", v1alpha1.EffectDeny, "tool"), `args.text == "`+marker+`"`))
		}},
		{reason: "a Deny for all namespaces is added", rule: "rule", says: []string{"ClusterToolPolicy", "refuses"}, change: func(t *testing.T, tools string, _ *v1alpha1.ToolPolicy) {
			createCluster(t, clusterPolicyObject(tools, v1alpha1.EffectDeny))
		}},
		{reason: "the Allow gets a condition that does not hold", says: []string{"is not met"}, change: func(t *testing.T, _ string, allow *v1alpha1.ToolPolicy) {
			patch(t, admin, allow, `{"spec":{"rules":[{"name":"rule","effect":"Allow","tools":{"names":["tool"]},"when":"has(args.n)"}]}}`)
		}},
		{reason: "the Allow is for somebody else now", says: []string{"no policy allows", agentName}, change: func(t *testing.T, _ string, allow *v1alpha1.ToolPolicy) {
			patch(t, admin, allow, `{"spec":{"subjects":[{"kind":"User","name":"somebody"}]}}`)
		}},
		{reason: "the Allow has another name now", rule: "renamed", change: func(t *testing.T, _ string, allow *v1alpha1.ToolPolicy) {
			patch(t, admin, allow, `{"spec":{"rules":[{"name":"renamed","effect":"Allow","tools":{"names":["tool"]}}]}}`)
		}},
	} {
		t.Run(test.reason, func(t *testing.T) {
			t.Parallel()
			tools := openNamespace(t)
			policy := allow(t, tools)
			newTool(t, tools, "tool")
			call := newCall(t, tools, "tool")
			starting(t, call)
			test.change(t, tools, policy)
			if len(test.says) > 0 {
				call = refused(t, call, test.says...)
				waitForNoSandbox(t, call)
			} else {
				waitForCall(t, call, "the new decision", func(call *v1alpha1.ToolCall) bool {
					return call.Status.Decision.DecisiveRule.Rule == test.rule
				})
				call = runs(t, call)
			}
			if d := call.Status.Decision.DecisiveRule; test.rule != "" && d.Rule != test.rule || test.rule == "" && d != nil {
				t.Errorf("the decision is by %s, want %q", show(d), test.rule)
			}
		})
	}
}

// A freeze that begins while a call waits for its sandbox holds: nothing
// changes at that moment but the time.
func TestFreezeBeginsWhileStarting(t *testing.T) {
	t.Parallel()
	tools := openNamespace(t)
	allow(t, tools)
	newTool(t, tools, "tool")
	call := newCall(t, tools, "tool")
	starting(t, call)
	pod := podOf(t, call)
	bind(t, pod)
	begin := time.Now().Add(4 * time.Second).UTC()
	freeze := withWhen(policyObject(tools, "freeze", v1alpha1.EffectDeny, "*"), fmt.Sprintf("now >= timestamp(%q)", begin.Format(time.RFC3339Nano)))
	create(t, freeze)
	waitForPolicy(t, freeze, v1alpha1.ConditionReady, metav1.ConditionTrue, v1alpha1.ReasonReady)
	eventually(t, "the freeze begun", func() (bool, any) { return time.Now().After(begin), begin })
	if now := waitForCall(t, call, "the call", func(*v1alpha1.ToolCall) bool { return true }); complete(now) && now.Status.CompletionTime.Time.Before(begin.Add(-time.Second)) {
		t.Errorf("the call ended before the freeze: %s", show(now.Status.Result))
	}
	setPod(t, pod, running())
	refused(t, call, tools+"/freeze")
}

func TestClusterToolPolicies(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		reason     string
		namespaced v1alpha1.RuleEffect // none if empty
		cluster    v1alpha1.RuleEffect
		says       []string
	}{
		{reason: "its Allow needs no ToolPolicy", cluster: v1alpha1.EffectAllow},
		{reason: "its Deny beats the namespace's Allow", namespaced: v1alpha1.EffectAllow, cluster: v1alpha1.EffectDeny, says: []string{"ClusterToolPolicy", `rule "rule" (Deny)`}},
		{reason: "the namespace's Deny beats its Allow", namespaced: v1alpha1.EffectDeny, cluster: v1alpha1.EffectAllow, says: []string{"ToolPolicy tools-", "/own, rule"}},
		{reason: "its Deny alone: nothing would be allowed without it, either", cluster: v1alpha1.EffectDeny, says: []string{"ClusterToolPolicy", "and no policy allows it, either"}},
	} {
		t.Run(test.reason, func(t *testing.T) {
			t.Parallel()
			tools := openNamespace(t)
			newTool(t, tools, "tool")
			if test.namespaced != "" {
				create(t, policyObject(tools, "own", test.namespaced, "*"))
			}
			p := clusterPolicyObject(tools, test.cluster)
			createCluster(t, p)
			waitForPolicy(t, p, v1alpha1.ConditionReady, metav1.ConditionTrue, v1alpha1.ReasonReady)
			call := newCall(t, tools, "tool")
			if test.says == nil {
				call = runs(t, call)
				if d := call.Status.Decision.DecisiveRule; d == nil || d.Policy != p.Name {
					t.Errorf("the decision is %s", show(call.Status.Decision))
				}
				return
			}
			refused(t, call, test.says...)
		})
	}
}

// The same as TestAppliedTogether, with a policy for all namespaces: the read
// past the cache has those, too.
func TestClusterToolPolicyAppliedTogether(t *testing.T) {
	t.Parallel()
	for range 20 {
		tools := openNamespace(t)
		create(t, toolObject(tools, "tool"))
		createCluster(t, clusterPolicyObject(tools, v1alpha1.EffectAllow))
		call := newCall(t, tools, "tool")
		eventually(t, "the sandbox", func() (bool, any) {
			now := &v1alpha1.ToolCall{}
			if err := admin.Get(t.Context(), keyOf(call), now); err != nil {
				return false, err
			}
			if complete(now) {
				t.Fatalf("ended: %s", show(now.Status.Result))
			}
			return get(t, jobKey(tools, call), &jobType{}), now.Status
		})
		remove(t, call.DeepCopy())
	}
}

// Rules that only refuse allow nothing; the caller is told so, and not that
// there is no such Tool.
func TestOnlyDenies(t *testing.T) {
	t.Parallel()
	tools := openNamespace(t)
	newTool(t, tools, "tool")
	create(t, withWhen(policyObject(tools, "no-text", v1alpha1.EffectDeny, "*"), "has(args.text)"))
	call := refused(t, newCall(t, tools, "tool", withArgs(`{"n":1}`)), "no policy allows "+agentName, "without an Allow rule", "Deny rules alone grant nothing")
	if d := call.Status.Decision; d.DecisiveRule != nil || len(d.MatchedRules) > 0 {
		t.Errorf("nothing matched, and the decision is %s", show(d))
	}
	if c := apimeta.FindStatusCondition(call.Status.Conditions, v1alpha1.ConditionSucceeded); c.Reason != "ToolNotAllowed" || strings.Contains(c.Message, "found") {
		t.Errorf("the condition is %s", show(c))
	}
}

func TestAuditMode(t *testing.T) {
	t.Parallel()
	tools := openNamespace(t)
	newTool(t, tools, "tool")
	newTool(t, tools, "closed")
	create(t, policyObject(tools, "a-allow", v1alpha1.EffectAllow, "tool"))
	trial := policyObject(tools, "b-trial", v1alpha1.EffectDeny, "tool")
	trial.Spec.Rules[0].When = "has(args.n) && args.n > 10"
	trial.Spec.Mode = v1alpha1.PolicyModeAudit
	create(t, trial)
	grant := policyObject(tools, "c-trial", v1alpha1.EffectAllow, "closed")
	grant.Spec.Mode = v1alpha1.PolicyModeAudit
	create(t, grant)
	for _, p := range []client.Object{trial, grant} {
		waitForPolicy(t, p, v1alpha1.ConditionReady, metav1.ConditionTrue, v1alpha1.ReasonReady)
	}

	call := runs(t, newCall(t, tools, "tool", withArgs(`{"n":11}`)))
	d := call.Status.Decision
	would := v1alpha1.RuleReference{Policy: tools + "/b-trial", Rule: "rule", Effect: v1alpha1.EffectDeny}
	if !*d.Allowed || d.DecisiveRule.Policy != tools+"/a-allow" || len(d.MatchedRules) != 1 {
		t.Errorf("a policy in mode Audit changed the decision: %s", show(d))
	}
	if d.Audit == nil || *d.Audit.Allowed || !ptr.Equal(d.Audit.DecisiveRule, &would) || len(d.Audit.MatchedRules) != 1 || d.Audit.MatchedRules[0] != would {
		t.Errorf("what it would have done is not there: %s", show(d))
	}
	if call = runs(t, newCall(t, tools, "tool", withArgs(`{"n":10}`))); call.Status.Decision.Audit != nil {
		t.Errorf("no audited rule matched: %s", show(call.Status.Decision))
	}
	call = refused(t, newCall(t, tools, "closed"), "no policy allows")
	if d := call.Status.Decision; d.DecisiveRule != nil || d.Audit == nil || !*d.Audit.Allowed || d.Audit.DecisiveRule.Policy != tools+"/c-trial" {
		t.Errorf("what the Allow would have done is not there: %s", show(d))
	}
	patch(t, admin, trial, `{"spec":{"mode":"Enforce"}}`)
	waitForPolicy(t, trial, v1alpha1.ConditionReady, metav1.ConditionTrue, v1alpha1.ReasonReady)
	refused(t, newCall(t, tools, "tool", withArgs(`{"n":11}`)), tools+"/b-trial")
}
