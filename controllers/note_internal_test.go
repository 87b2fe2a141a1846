package controllers

import (
	"testing"

	"callgate.dev/callgate/api/v1alpha1"
)

func TestDecisionWords(t *testing.T) {
	rule := func(policy, name string, effect v1alpha1.RuleEffect) v1alpha1.RuleReference {
		return v1alpha1.RuleReference{Policy: policy, Rule: name, Effect: effect}
	}
	deny, allow := rule("tools/interns", "no", "Deny"), rule("everywhere", "read", "Allow")
	many := []v1alpha1.RuleReference{deny}
	for range 8 {
		many = append(many, allow)
	}
	for _, tc := range []struct {
		reason   string
		decision *v1alpha1.PolicyDecision
		want     string
	}{
		{"not asked", nil, ""},
		{"nothing matched", &v1alpha1.PolicyDecision{}, "; no rule allows it"},
		{"one rule", &v1alpha1.PolicyDecision{DecisiveRule: &allow, MatchedRules: []v1alpha1.RuleReference{allow}}, "; decided by rule read of policy everywhere (Allow)"},
		{"a Deny over an Allow", &v1alpha1.PolicyDecision{DecisiveRule: &deny, MatchedRules: []v1alpha1.RuleReference{allow, deny}},
			"; decided by rule no of policy tools/interns (Deny); matched, too: rule read of policy everywhere (Allow)"},
		{"more than an event can name", &v1alpha1.PolicyDecision{DecisiveRule: &deny, MatchedRules: many[:8]},
			"; decided by rule no of policy tools/interns (Deny); matched, too: rule read of policy everywhere (Allow), rule read of policy everywhere (Allow), " +
				"rule read of policy everywhere (Allow), rule read of policy everywhere (Allow), rule read of policy everywhere (Allow), and 2 more"},
	} {
		if got := decisionWords(tc.decision); got != tc.want {
			t.Errorf("%s: got %q\nwant %q", tc.reason, got, tc.want)
		}
	}
}
