package controllers_test

import (
	"fmt"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"callgate.dev/callgate/api/v1alpha1"
)

// A rule that cannot be read is named with its place, and counts against calls.
func TestBrokenRules(t *testing.T) {
	t.Parallel()
	tools := openNamespace(t)
	newTool(t, tools, "denied")
	newTool(t, tools, "granted")
	create(t, policyObject(tools, "allow", v1alpha1.EffectAllow, "denied"))
	for _, test := range []struct {
		tool    string
		effect  v1alpha1.RuleEffect
		refusal string
	}{
		{"denied", v1alpha1.EffectDeny, "refuses"},
		{"granted", v1alpha1.EffectAllow, "no policy allows"},
	} {
		t.Run(string(test.effect), func(t *testing.T) {
			t.Parallel()
			p := withWhen(policyObject(tools, "broken-"+test.tool, test.effect, test.tool), "has(args.n) &&\n  arg.n > 10")
			create(t, p)
			message := waitForPolicy(t, p, v1alpha1.ConditionReady, metav1.ConditionFalse, v1alpha1.ReasonInvalidRule)
			for _, part := range []string{`spec.rules[0].when (rule "rule")`, "2:3", "'arg'", "counts against every call"} {
				if !strings.Contains(message, part) {
					t.Errorf("Ready does not say %q: %s", part, message)
				}
			}
			refused(t, newCall(t, tools, test.tool, withArgs(`{"n":1}`)), test.refusal, "could not be evaluated", "2:3")

			merge := fmt.Sprintf(`{"spec":{"rules":[{"name":"rule","effect":%q,"tools":{"names":[%q]},"when":"has(args.n) &&\n  args.n > 10"}]}}`, test.effect, test.tool)
			patch(t, admin, p, merge)
			waitForPolicy(t, p, v1alpha1.ConditionReady, metav1.ConditionTrue, v1alpha1.ReasonReady)
			n := map[v1alpha1.RuleEffect]string{v1alpha1.EffectDeny: `{"n":1}`, v1alpha1.EffectAllow: `{"n":11}`}[test.effect]
			runs(t, newCall(t, tools, test.tool, withArgs(n)))
		})
	}
}

// A policy may have 64 rules with conditions of 4 KiB: what its status says of
// them stays storable.
func TestBrokenRulesAreReportedWithinBounds(t *testing.T) {
	t.Parallel()
	tools := openNamespace(t)
	newTool(t, tools, "tool")
	broken, unknown := policyObject(tools, "broken", v1alpha1.EffectDeny, "tool"), policyObject(tools, "unknown", v1alpha1.EffectDeny, "tool")
	broken.Spec.Rules, unknown.Spec.Rules = nil, nil
	for i := range 64 {
		long := strings.Repeat("x", 4000) + fmt.Sprint(i)
		rule := v1alpha1.PolicyRule{Name: fmt.Sprintf("r%d", i), Effect: v1alpha1.EffectDeny, Tools: v1alpha1.ToolSelector{Names: []string{"tool"}}}
		rule.When = long + " > 1"
		broken.Spec.Rules = append(broken.Spec.Rules, rule)
		rule.When = "args." + long + " > 1"
		unknown.Spec.Rules = append(unknown.Spec.Rules, rule)
	}
	create(t, broken)
	create(t, unknown)
	waitForPolicy(t, broken, v1alpha1.ConditionReady, metav1.ConditionFalse, v1alpha1.ReasonInvalidRule)
	waitForPolicy(t, unknown, v1alpha1.ConditionArgumentsKnown, metav1.ConditionFalse, v1alpha1.ReasonUnknownArgument)
}

func TestArgumentsKnown(t *testing.T) {
	t.Parallel()
	tools := openNamespace(t)
	tool := newTool(t, tools, "tool")
	schema := func(text string) {
		setSpec(t, tool, func(s *v1alpha1.ToolSpec) { s.InputSchema = rawJSON(text) })
	}
	own := withWhen(policyObject(tools, "own", v1alpha1.EffectAllow, "tool"), "args.amount < 100")
	cluster := clusterPolicyObject(tools, v1alpha1.EffectAllow)
	cluster.Spec.Rules[0].When = "args.amount < 100"
	create(t, own)
	createCluster(t, cluster)
	nobody := withWhen(policyObject(tools, "nobody", v1alpha1.EffectAllow, "later"), "args.anything == 1")
	create(t, nobody)

	both := func(status metav1.ConditionStatus, reason string, parts ...string) {
		t.Helper()
		for _, message := range []string{
			waitForPolicy(t, own, v1alpha1.ConditionArgumentsKnown, status, reason),
			waitForPolicy(t, cluster, v1alpha1.ConditionArgumentsKnown, status, reason),
		} {
			for _, part := range parts {
				if !strings.Contains(message, part) {
					t.Errorf("%s: the message does not say %q: %s", reason, part, message)
				}
			}
		}
	}
	both(metav1.ConditionFalse, v1alpha1.ReasonUnknownArgument, `spec.rules[0].when (rule "rule"): args.amount`)
	waitForPolicy(t, own, v1alpha1.ConditionReady, metav1.ConditionTrue, v1alpha1.ReasonReady) // it is in force all the same
	// The Tool declares it now, and does not require it.
	schema(`{"type":"object","properties":{"amount":{"type":"integer"}}}`)
	both(metav1.ConditionFalse, v1alpha1.ReasonUnguardedArgument, "args.amount", tools+"/tool does not require", "has()")
	schema(`{"type":"object","properties":{"amount":{"type":"integer"}},"required":["amount"]}`)
	both(metav1.ConditionTrue, v1alpha1.ReasonArgumentsDeclared)
	// Guarded, it need not be required.
	schema(`{"type":"object","properties":{"amount":{"type":"integer"}}}`)
	both(metav1.ConditionFalse, v1alpha1.ReasonUnguardedArgument)
	patch(t, admin, own, `{"spec":{"rules":[{"name":"rule","effect":"Allow","tools":{"names":["tool"]},"when":"has(args.amount) && args.amount < 100"}]}}`)
	waitForPolicy(t, own, v1alpha1.ConditionArgumentsKnown, metav1.ConditionTrue, v1alpha1.ReasonArgumentsDeclared)
	// A policy for Tools that do not exist yet has nothing to compare with.
	waitForPolicy(t, nobody, v1alpha1.ConditionArgumentsKnown, metav1.ConditionTrue, v1alpha1.ReasonArgumentsDeclared)
}
