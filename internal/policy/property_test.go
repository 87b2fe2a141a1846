package policy

import (
	"fmt"
	"math/rand/v2"
	"reflect"
	"slices"
	"testing"

	"callgate.dev/callgate/api/v1alpha1"
)

// Conditions that hold, do not hold, fail, do not compile, with and without args.
var someConditions = []string{
	"", "", "", `args.amount > 100`, `args.amount <= 100`, `args.missing == 1`, `args.amount >`, `has(args.note)`,
	`call.namespace == "agents"`, `call.namespace == "elsewhere"`, `call.context.missing == ""`, `now > timestamp("2030-01-01T00:00:00Z")`,
}

// Without "Later", which refuses nearly every call: it is added by hand.
var someEffects = []v1alpha1.RuleEffect{
	v1alpha1.EffectAllow, v1alpha1.EffectAllow, v1alpha1.EffectDeny,
	v1alpha1.EffectRequireApproval, v1alpha1.EffectRequireApproval, v1alpha1.EffectLimit, v1alpha1.EffectLimit,
}

func pick[T any](r *rand.Rand, of ...T) T { return of[r.IntN(len(of))] }

// anyPolicies are policies of both kinds and modes; allows counts the enforced
// Allow rules.
func anyPolicies(r *rand.Rand) (policies []*Policy, allows int) {
	subjects := [][]v1alpha1.Subject{agentSA, {{Kind: "User", Name: "bob"}}, {{Kind: "Group", Name: "system:serviceaccounts:agents"}}}
	for i := range r.IntN(8) {
		spec := &v1alpha1.ToolPolicySpec{Subjects: pick(r, subjects...), Mode: pick(r, v1alpha1.PolicyModeEnforce, v1alpha1.PolicyModeEnforce, v1alpha1.PolicyModeAudit)}
		for j := range 1 + r.IntN(3) {
			rule := ruleOf(fmt.Sprintf("r%d", j), pick(r, someEffects...), names(pick(r, "*", "refund", "other")))
			rule.When = pick(r, someConditions...)
			if r.IntN(40) == 0 {
				rule.Approval, rule.Limit = nil, nil // which refuses
			}
			if rule.Effect == v1alpha1.EffectAllow && spec.Mode == v1alpha1.PolicyModeEnforce {
				allows++
			}
			spec.Rules = append(spec.Rules, rule)
		}
		policies = append(policies, Compile(pick(r, "tools", "tools", "", "elsewhere"), fmt.Sprintf("p%d", i), spec))
	}
	if r.IntN(2) == 0 { // so that half of them have something to take away
		policies, allows = append(policies, one("Allow", "")...), allows+1
	}
	return policies, allows
}

// Whatever the policies are: never allowed without an Allow, adding a Deny
// never allows more, adding an Allow never refuses more, adding an obligation
// changes nothing but what is listed, a Deny for everybody beats everything, the
// order changes nothing, policies in mode Audit change nothing but the audit, and
// what the first half refuses no arguments make allowed.
func TestDecideProperties(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	seen, obliged := map[bool]int{}, map[bool]int{}
	for range 4000 {
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
		checkListed(t, d, show)
		when := pick(r, someConditions...)
		beside := func(effect v1alpha1.RuleEffect) Decision {
			more := ruleOf("more", effect, names("*"))
			more.When = when
			return Decide(in, append(slices.Clone(shuffled), Compile("", "zz", &v1alpha1.ToolPolicySpec{Subjects: agentSA, Rules: []v1alpha1.PolicyRule{more}})))
		}
		applies := !beside(v1alpha1.EffectDeny).Allowed // to an allowed call
		for _, effect := range []v1alpha1.RuleEffect{v1alpha1.EffectRequireApproval, v1alpha1.EffectLimit} {
			added := beside(effect)
			approvals, limits := listed(added)
			wantApprovals, wantLimits := listed(d)
			if d.Allowed && applies && effect == v1alpha1.EffectRequireApproval {
				wantApprovals = append(wantApprovals, "zz/more")
			} else if d.Allowed && applies {
				wantLimits = append(wantLimits, "zz/more")
			}
			slices.Sort(wantApprovals)
			slices.Sort(wantLimits)
			if added.Allowed != d.Allowed || !reflect.DeepEqual(added.Decisive, d.Decisive) || !slices.Equal(approvals, wantApprovals) || !slices.Equal(limits, wantLimits) {
				show("one more "+string(effect)+" when "+when, added)
			}
		}
		for _, effect := range []v1alpha1.RuleEffect{v1alpha1.EffectAllow, v1alpha1.EffectDeny, "Later"} {
			added := beside(effect)
			if effect != v1alpha1.EffectAllow && added.Allowed && !d.Allowed || effect == v1alpha1.EffectAllow && !added.Allowed && d.Allowed {
				show("one more "+string(effect)+" turned the decision round", added)
			}
		}
		when = ""
		if added := beside(v1alpha1.EffectDeny); added.Allowed {
			show("a Deny without a condition is beaten", added)
		}
		before := in
		before.Args = nil
		if first := Decide(before, policies); !first.Allowed && d.Allowed || first.Approvals != nil || first.Limits != nil {
			show("the first half refuses what the second allows, or obliges", first)
		}
		obliged[d.Approvals != nil && d.Limits != nil]++
	}
	if seen[true] < 500 || seen[false] < 500 || obliged[true] < 100 {
		t.Errorf("allowed and refused: %v, with obligations of both kinds: %v; the test proves little", seen, obliged)
	}
}

// checkListed: an allowed call lists each matched obligation, once and in order;
// a refused one lists none.
func checkListed(t *testing.T, d Decision, show func(string, Decision)) {
	t.Helper()
	want := map[v1alpha1.RuleEffect][]string{}
	for _, m := range d.Matched {
		if d.Allowed {
			want[m.Effect] = append(want[m.Effect], m.Policy+"/"+m.Rule)
		}
	}
	approvals, limits := listed(d)
	if !slices.Equal(approvals, want[v1alpha1.EffectRequireApproval]) || !slices.Equal(limits, want[v1alpha1.EffectLimit]) {
		show("matched and listed differ", d)
	}
}
