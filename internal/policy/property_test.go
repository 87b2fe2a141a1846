package policy

import (
	"fmt"
	"math/rand/v2"
	"reflect"
	"testing"

	"callgate.dev/callgate/api/v1alpha1"
)

// Conditions that hold, do not hold, fail, do not compile, with and without args.
var someConditions = []string{
	"", "", "", `args.amount > 100`, `args.amount <= 100`, `args.missing == 1`, `args.amount >`, `has(args.note)`,
	`call.namespace == "agents"`, `call.namespace == "elsewhere"`, `call.context.missing == ""`, `now > timestamp("2030-01-01T00:00:00Z")`,
}

func pick[T any](r *rand.Rand, of ...T) T { return of[r.IntN(len(of))] }

// anyPolicies are policies of both kinds and modes; allows counts the enforced
// Allow rules.
func anyPolicies(r *rand.Rand) (policies []*Policy, allows int) {
	subjects := [][]v1alpha1.Subject{agentSA, {{Kind: "User", Name: "bob"}}, {{Kind: "Group", Name: "system:serviceaccounts:agents"}}}
	for i := range r.IntN(6) {
		spec := &v1alpha1.ToolPolicySpec{Subjects: pick(r, subjects...), Mode: pick(r, v1alpha1.PolicyModeEnforce, v1alpha1.PolicyModeEnforce, v1alpha1.PolicyModeAudit)}
		for j := range 1 + r.IntN(3) {
			rule := ruleOf(fmt.Sprintf("r%d", j), pick(r, v1alpha1.EffectAllow, v1alpha1.EffectAllow, v1alpha1.EffectDeny), names(pick(r, "*", "refund", "other")))
			rule.When = pick(r, someConditions...)
			if rule.Effect == v1alpha1.EffectAllow && spec.Mode == v1alpha1.PolicyModeEnforce {
				allows++
			}
			spec.Rules = append(spec.Rules, rule)
		}
		policies = append(policies, Compile(pick(r, "tools", "tools", "", "elsewhere"), fmt.Sprintf("p%d", i), spec))
	}
	return policies, allows
}

// Whatever the policies are: never allowed without an Allow, adding a Deny
// never allows more, adding an Allow never refuses more, the order changes
// nothing, policies in mode Audit change nothing but the audit, and what the
// first half refuses no arguments make allowed.
func TestDecideProperties(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	seen := map[bool]int{}
	for range 5000 {
		policies, allows := anyPolicies(r)
		in := input(t, pick(r, `{"amount":1}`, `{"amount":101}`, `{"amount":"x"}`, `{"note":1}`))
		d := Decide(in, policies)
		seen[d.Allowed]++
		show := func(what string, other Decision) {
			t.Helper()
			t.Errorf("%s: %+v\nand %+v\nargs %v", what, d, other, in.Args)
			for _, p := range policies {
				t.Logf("%+v", *p)
			}
			t.FailNow()
		}
		if d.Allowed && (allows == 0 || d.Decisive == nil || d.Decisive.Effect != v1alpha1.EffectAllow) || !d.Allowed && d.Message == "" {
			show("not explained, or allowed without an Allow", d)
		}
		shuffled := append([]*Policy(nil), policies...)
		r.Shuffle(len(shuffled), func(i, j int) { shuffled[i], shuffled[j] = shuffled[j], shuffled[i] })
		if s := Decide(in, shuffled); !reflect.DeepEqual(s, d) {
			show("the order matters", s)
		}
		var enforced, audited []*Policy
		for _, p := range policies {
			if !p.audit {
				enforced = append(enforced, p)
			}
			all := *p
			all.audit = false
			audited = append(audited, &all)
		}
		without := Decide(in, enforced)
		would := Decide(in, audited)
		if d.Audit != nil && (*d.Audit.Allowed != would.Allowed || !reflect.DeepEqual(d.Audit.DecisiveRule, would.Decisive)) {
			show("the audit is not what enforcing would do", would)
		}
		if d.Audit == nil && would.Allowed != d.Allowed {
			show("enforcing would change the decision, and there is no audit", would)
		}
		if without.Audit = d.Audit; !reflect.DeepEqual(without, d) {
			show("policies in mode Audit change the decision", without)
		}
		more := ruleOf("more", pick(r, v1alpha1.EffectAllow, v1alpha1.EffectDeny), names("*"))
		more.When = pick(r, someConditions...)
		added := Decide(in, append(shuffled, Compile("", "zz", &v1alpha1.ToolPolicySpec{Subjects: agentSA, Rules: []v1alpha1.PolicyRule{more}})))
		if more.Effect == v1alpha1.EffectDeny && added.Allowed && !d.Allowed || more.Effect == v1alpha1.EffectAllow && !added.Allowed && d.Allowed {
			show("one more "+string(more.Effect)+" turned the decision round", added)
		}
		before := in
		before.Args = nil
		if first := Decide(before, policies); !first.Allowed && d.Allowed {
			show("the first half refuses what the second allows", first)
		}
	}
	if seen[true] < 500 || seen[false] < 500 {
		t.Errorf("allowed and refused: %v; the test proves little", seen)
	}
}
