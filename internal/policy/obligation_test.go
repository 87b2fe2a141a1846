package policy

import (
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"callgate.dev/callgate/api/v1alpha1"
)

var (
	finance     = []v1alpha1.Subject{{Kind: v1alpha1.SubjectGroup, Name: "finance"}}
	badSelector = v1alpha1.ToolSelector{Selector: &metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{{Key: "a", Operator: "Near"}}}}
)

// filled gives an obligation the least that the CRD asks for.
func filled(r v1alpha1.PolicyRule) v1alpha1.PolicyRule {
	switch r.Effect {
	case v1alpha1.EffectRequireApproval:
		r.Approval = &v1alpha1.RuleApproval{Approvers: finance}
	case v1alpha1.EffectLimit:
		r.Limit = &v1alpha1.RuleLimit{MaxConcurrent: 5}
	}
	return r
}

// listed are the rules of a decision's obligations, as policy/rule.
func listed(d Decision) (approvals, limits []string) {
	for _, a := range d.Approvals {
		approvals = append(approvals, a.Rule.Policy+"/"+a.Rule.Rule)
	}
	for _, l := range d.Limits {
		limits = append(limits, l.Rule.Policy+"/"+l.Rule.Rule)
	}
	return approvals, limits
}

func isMatched(d Decision, policy, rule string) bool {
	return slices.ContainsFunc(d.Matched, func(r v1alpha1.RuleReference) bool { return r.Policy == policy && r.Rule == rule })
}

// An obligation grants nothing and refuses nothing: it is listed.
func TestObligations(t *testing.T) {
	for _, effect := range []v1alpha1.RuleEffect{v1alpha1.EffectRequireApproval, v1alpha1.EffectLimit} {
		rule := func(when string, sel v1alpha1.ToolSelector) v1alpha1.PolicyRule {
			r := ruleOf("r", effect, sel)
			r.When = when
			return r
		}
		for _, tc := range []struct {
			reason   string
			rule     v1alpha1.PolicyRule
			beside   []v1alpha1.PolicyRule
			allowed  bool
			decisive string
			matched  bool
		}{
			{"it grants nothing", rule("", names("*")), nil, false, "", true},
			{"it refuses nothing", rule("", names("*")), []v1alpha1.PolicyRule{allowAll}, true, "all", true},
			{"Deny beats it", rule("", names("*")), []v1alpha1.PolicyRule{allowAll, ruleOf("no", "Deny", names("*"))}, false, "no", true},
			{"its condition holds", rule("args.amount > 100", names("*")), []v1alpha1.PolicyRule{allowAll}, true, "all", true},
			{"its condition does not hold", rule("args.amount > 101", names("*")), []v1alpha1.PolicyRule{allowAll}, true, "all", false},
			{"it speaks of another Tool", rule("", names("other")), []v1alpha1.PolicyRule{allowAll}, true, "all", false},
			{"its condition does not compile: it applies", rule("args.amount >", names("*")), []v1alpha1.PolicyRule{allowAll}, true, "all", true},
			{"its condition does not compile, of another Tool", rule("args.amount >", names("other")), []v1alpha1.PolicyRule{allowAll}, true, "all", false},
			{"its condition fails on the call: it applies", rule("args.missing > 1", names("*")), []v1alpha1.PolicyRule{allowAll}, true, "all", true},
			{"its selector does not compile: it applies", rule("args.amount > 101", badSelector), []v1alpha1.PolicyRule{allowAll}, true, "all", true},
			{"beside an effect of a later version", rule("", names("*")), []v1alpha1.PolicyRule{allowAll, ruleOf("later", "Later", names("*"))}, false, "later", true},
		} {
			p := pol("p", agentSA, append(tc.beside, tc.rule)...)
			policies := compileAll([]v1alpha1.ToolPolicy{p})
			d := Decide(input(t, `{"amount":101}`), policies)
			decisive := ""
			if d.Decisive != nil {
				decisive = d.Decisive.Rule
			}
			if d.Allowed != tc.allowed || decisive != tc.decisive || isMatched(d, "tools/p", "r") != tc.matched {
				t.Errorf("%s: %s: allowed=%v decisive=%q matched=%v: %s", effect, tc.reason, d.Allowed, decisive, d.Matched, d.Message)
			}
			var want []string
			if tc.allowed && tc.matched {
				want = []string{"tools/p/r"}
			}
			approvals, limits := listed(d)
			if effect == v1alpha1.EffectLimit {
				approvals, limits = limits, approvals
			}
			if !slices.Equal(approvals, want) || len(limits) > 0 {
				t.Errorf("%s: %s: lists %v and of the other kind %v, want %v", effect, tc.reason, approvals, limits, want)
			}
			// Before the arguments are known nothing is asked for.
			first := Decide(input(t, ""), policies)
			if first.Approvals != nil || first.Limits != nil || !first.Allowed && d.Allowed {
				t.Errorf("%s: %s: the first half: %+v", effect, tc.reason, first)
			}
		}
		for reason, policies := range map[string][]*Policy{
			"for somebody else":    compileAll([]v1alpha1.ToolPolicy{pol("a", agentSA, allowAll), pol("p", finance, rule("", names("*")))}),
			"of another namespace": {Compile("tools", "a", &v1alpha1.ToolPolicySpec{Subjects: agentSA, Rules: []v1alpha1.PolicyRule{allowAll}}), Compile("other", "p", &v1alpha1.ToolPolicySpec{Subjects: agentSA, Rules: []v1alpha1.PolicyRule{rule("", names("*"))}})},
		} {
			if d := Decide(input(t, `{}`), policies); !d.Allowed || d.Approvals != nil || d.Limits != nil || len(d.Matched) != 1 {
				t.Errorf("%s %s: %+v", effect, reason, d)
			}
		}
	}
}

// What a decision lists is what the rule says, with the defaults of the API.
func TestObligationsSay(t *testing.T) {
	people := []v1alpha1.Subject{{Kind: "User", Name: "dana"}, {Kind: "Group", Name: "finance"}}
	p := pol("p", agentSA, allowAll,
		v1alpha1.PolicyRule{Name: "b", Effect: "RequireApproval", Tools: names("*"), Approval: &v1alpha1.RuleApproval{Approvers: finance}},
		v1alpha1.PolicyRule{Name: "a", Effect: "RequireApproval", Tools: names("*"), Approval: &v1alpha1.RuleApproval{Approvers: people, RequiredApprovals: 2, ExpireAfterSeconds: 60}},
		v1alpha1.PolicyRule{Name: "d", Effect: "Limit", Tools: names("*"), Limit: &v1alpha1.RuleLimit{MaxConcurrent: 5}},
		v1alpha1.PolicyRule{Name: "c", Effect: "Limit", Tools: names("*"), Limit: &v1alpha1.RuleLimit{MaxConcurrent: 3, MaxCalls: 60, WindowSeconds: 90, Per: "All", MaxWaitSeconds: ptr.To[int32](7)}},
		v1alpha1.PolicyRule{Name: "e", Effect: "Limit", Tools: names("*"), Limit: &v1alpha1.RuleLimit{MaxConcurrent: 1, Per: "Caller", MaxWaitSeconds: ptr.To[int32](0)}},
	)
	cluster := Compile("", "everywhere", &v1alpha1.ToolPolicySpec{Subjects: agentSA, Rules: []v1alpha1.PolicyRule{
		{Name: "z", Effect: "RequireApproval", Tools: names("*"), Approval: &v1alpha1.RuleApproval{Approvers: finance, RequiredApprovals: 16, ExpireAfterSeconds: 604800}},
		{Name: "y", Effect: "Limit", Tools: names("*"), Limit: &v1alpha1.RuleLimit{MaxCalls: 1000, WindowSeconds: 604800}},
	}})
	ref := func(policy, rule string, effect v1alpha1.RuleEffect) v1alpha1.RuleReference {
		return v1alpha1.RuleReference{Policy: policy, Rule: rule, Effect: effect}
	}
	d := Decide(input(t, `{}`), append(compileAll([]v1alpha1.ToolPolicy{p}), cluster))
	const week = 7 * 24 * time.Hour
	if want := []Approval{
		{Rule: ref("everywhere", "z", "RequireApproval"), Approvers: finance, Required: 16, ExpireAfter: week},
		{Rule: ref("tools/p", "a", "RequireApproval"), Approvers: people, Required: 2, ExpireAfter: time.Minute},
		{Rule: ref("tools/p", "b", "RequireApproval"), Approvers: finance, Required: 1, ExpireAfter: time.Hour},
	}; !reflect.DeepEqual(d.Approvals, want) {
		t.Errorf("got  %+v\nwant %+v", d.Approvals, want)
	}
	if want := []Limit{
		{Rule: ref("everywhere", "y", "Limit"), MaxCalls: 1000, Window: week, PerCaller: true, MaxWait: 30 * time.Second},
		{Rule: ref("tools/p", "c", "Limit"), MaxConcurrent: 3, MaxCalls: 60, Window: 90 * time.Second, MaxWait: 7 * time.Second},
		{Rule: ref("tools/p", "d", "Limit"), MaxConcurrent: 5, PerCaller: true, MaxWait: 30 * time.Second},
		{Rule: ref("tools/p", "e", "Limit"), MaxConcurrent: 1, PerCaller: true},
	}; !reflect.DeepEqual(d.Limits, want) {
		t.Errorf("got  %+v\nwant %+v", d.Limits, want)
	}
	if d.Decisive == nil || d.Decisive.Rule != "all" || len(d.Matched) != 8 {
		t.Errorf("decisive %v, matched %v", d.Decisive, d.Matched)
	}
}

// An obligation that cannot be met, or that would oblige to nothing, refuses:
// nobody may take it for one that holds.
func TestObligationsThatSayNothingRefuse(t *testing.T) {
	approval := func(a *v1alpha1.RuleApproval) v1alpha1.PolicyRule {
		return v1alpha1.PolicyRule{Name: "r", Effect: "RequireApproval", Tools: names("refund"), Approval: a}
	}
	limit := func(l *v1alpha1.RuleLimit) v1alpha1.PolicyRule {
		return v1alpha1.PolicyRule{Name: "r", Effect: "Limit", Tools: names("refund"), Limit: l}
	}
	both := approval(nil)
	both.When = "args.amount >"
	for _, tc := range []struct {
		reason string
		rule   v1alpha1.PolicyRule
		err    string
	}{
		{"no approval block", approval(nil), `spec.rules[1].approval (rule "r"): must be set with effect RequireApproval`},
		{"the block of the other effect", v1alpha1.PolicyRule{Name: "r", Effect: "RequireApproval", Tools: names("*"), Limit: &v1alpha1.RuleLimit{MaxConcurrent: 1}}, "spec.rules[1].approval"},
		{"nobody may approve", approval(&v1alpha1.RuleApproval{}), `spec.rules[1].approval.approvers (rule "r"): 0 approvers, must be 1 to 32`},
		{"more approvers than status lists", approval(&v1alpha1.RuleApproval{Approvers: make([]v1alpha1.Subject, 33)}), "33 approvers, must be 1 to 32"},
		{"met by nobody's approval", approval(&v1alpha1.RuleApproval{Approvers: finance, RequiredApprovals: -1}), `spec.rules[1].approval.requiredApprovals (rule "r"): -1`},
		{"over before it begins", approval(&v1alpha1.RuleApproval{Approvers: finance, ExpireAfterSeconds: -1}), "spec.rules[1].approval.expireAfterSeconds"},
		{"no condition helps", both, `spec.rules[1].when (rule "r"): 1:14`},
		{"and both errors are named", both, "spec.rules[1].approval"},
		{"no limit block", limit(nil), `spec.rules[1].limit (rule "r"): must be set with effect Limit`},
		{"a limit of nothing", limit(&v1alpha1.RuleLimit{}), `spec.rules[1].limit (rule "r"): at least one of maxConcurrent and maxCalls must be set`},
		{"a negative limit", limit(&v1alpha1.RuleLimit{MaxConcurrent: -1}), "spec.rules[1].limit.maxConcurrent"},
		{"a negative rate", limit(&v1alpha1.RuleLimit{MaxConcurrent: 1, MaxCalls: -1, WindowSeconds: 1}), "spec.rules[1].limit.maxCalls"},
		{"a rate without its window", limit(&v1alpha1.RuleLimit{MaxConcurrent: 1, MaxCalls: 1}), `spec.rules[1].limit.windowSeconds (rule "r"): maxCalls and windowSeconds go together`},
		{"a window without its rate", limit(&v1alpha1.RuleLimit{MaxConcurrent: 1, WindowSeconds: 1}), "spec.rules[1].limit.windowSeconds"},
		{"a negative window", limit(&v1alpha1.RuleLimit{MaxCalls: 1, WindowSeconds: -1}), "spec.rules[1].limit.windowSeconds"},
		{"a negative wait", limit(&v1alpha1.RuleLimit{MaxConcurrent: 1, MaxWaitSeconds: ptr.To[int32](-1)}), "spec.rules[1].limit.maxWaitSeconds"},
		{"a scope of a later version", limit(&v1alpha1.RuleLimit{MaxConcurrent: 1, Per: "Team"}), `spec.rules[1].limit.per (rule "r"): unknown scope "Team"`},
	} {
		p := pol("p", agentSA, allowAll, tc.rule)
		policies := compileAll([]v1alpha1.ToolPolicy{p})
		if err := policies[0].Err(); err == nil || !strings.Contains(err.Error(), tc.err) {
			t.Errorf("%s: Err is %v, want %q", tc.reason, err, tc.err)
		}
		for _, args := range []string{"", `{"amount":1}`} { // it can be refused at once
			d := Decide(input(t, args), policies)
			if d.Allowed || d.Decisive == nil || d.Decisive.Rule != "r" || d.Approvals != nil || d.Limits != nil || !isMatched(d, "tools/p", "r") {
				t.Errorf("%s: args %q: %+v", tc.reason, args, d)
			}
			if !strings.Contains(d.Message, `rule "r" (`+string(tc.rule.Effect)+") refuses") || !strings.Contains(d.Message, "spec.rules[1].") {
				t.Errorf("%s: %q", tc.reason, d.Message)
			}
		}
		other := input(t, `{}`)
		other.Tool = tool("other")
		if d := Decide(other, policies); tc.rule.Tools.Names[0] == "refund" && !d.Allowed {
			t.Errorf("%s: it refuses calls of another Tool, too: %s", tc.reason, d.Message)
		}
	}
}

// status can list 64 of each: of more none may be dropped.
func TestTooManyObligations(t *testing.T) {
	allowed := Compile("tools", "allow", &v1alpha1.ToolPolicySpec{Subjects: agentSA, Rules: []v1alpha1.PolicyRule{allowAll}})
	// many are n obligations in policies of at most 40 rules.
	many := func(effect v1alpha1.RuleEffect, n int, mode v1alpha1.PolicyMode) (out []*Policy) {
		for i := 0; i < n; i += 40 {
			spec := &v1alpha1.ToolPolicySpec{Subjects: agentSA, Mode: mode}
			for j := i; j < min(n, i+40); j++ {
				spec.Rules = append(spec.Rules, ruleOf(fmt.Sprintf("r%02d", j), effect, names("*")))
			}
			out = append(out, Compile("tools", fmt.Sprintf("%s-%s-%d", strings.ToLower(string(effect)), mode, i), spec))
		}
		return out
	}
	const (
		approval, limit = v1alpha1.EffectRequireApproval, v1alpha1.EffectLimit
		enforce, audit  = v1alpha1.PolicyModeEnforce, v1alpha1.PolicyModeAudit
	)
	for _, tc := range []struct {
		reason   string
		policies []*Policy
		allowed  bool
		message  string
		decisive string
		would    *bool // of the audit
	}{
		{"64 of each", append(many(approval, 64, enforce), many(limit, 64, enforce)...), true, "", "all", nil},
		{"65 approvals", many(approval, 65, enforce), false, `65 RequireApproval rules match calls of Tool tools/refund by system:serviceaccount:agents:support, at most 64 can be met: the first is ToolPolicy tools/requireapproval-Enforce-0, rule "r00" (RequireApproval)`, "", nil},
		{"65 limits", many(limit, 65, enforce), false, "65 Limit rules match", "", nil},
		{"65 approvals and a Deny", append(many(approval, 65, enforce), one("Deny", "")...), false, `rule "r" (Deny) refuses`, "r", nil},
		{"65 in mode Audit", many(approval, 65, audit), true, "", "all", ptr.To(false)},
		{"64 in mode Audit", many(limit, 64, audit), true, "", "all", ptr.To(true)},
		{"40 and 25 more in mode Audit", append(many(limit, 40, enforce), many(limit, 25, audit)...), true, "", "all", ptr.To(false)},
	} {
		policies := append([]*Policy{allowed}, tc.policies...)
		d := Decide(input(t, `{}`), policies)
		decisive := ""
		if d.Decisive != nil {
			decisive = d.Decisive.Rule
		}
		if d.Allowed != tc.allowed || !strings.Contains(d.Message, tc.message) || decisive != tc.decisive {
			t.Errorf("%s: allowed=%v decisive=%q: %s", tc.reason, d.Allowed, decisive, d.Message)
		}
		if !d.Allowed && (d.Approvals != nil || d.Limits != nil) || len(d.Matched) > 64 {
			t.Errorf("%s: refused with %d approvals, %d limits; %d matched", tc.reason, len(d.Approvals), len(d.Limits), len(d.Matched))
		}
		if (d.Audit == nil) != (tc.would == nil) || d.Audit != nil && *d.Audit.Allowed != *tc.would {
			t.Errorf("%s: audit %+v", tc.reason, d.Audit)
		}
		if tc.message != "" && decisive == "" {
			if first := Decide(input(t, ""), policies); !first.Allowed {
				t.Errorf("%s: the first half refuses: %s", tc.reason, first.Message)
			}
			if none := Decide(input(t, `{}`), tc.policies); none.Allowed || !strings.Contains(none.Message, "no policy allows") {
				t.Errorf("%s: without an Allow: %+v", tc.reason, none)
			}
		}
		if tc.reason == "64 of each" && (len(d.Approvals) != 64 || len(d.Limits) != 64) {
			t.Errorf("%d approvals and %d limits", len(d.Approvals), len(d.Limits))
		}
	}
}

// Policies in mode Audit oblige to nothing, and are recorded.
func TestAuditedObligations(t *testing.T) {
	for _, effect := range []v1alpha1.RuleEffect{v1alpha1.EffectRequireApproval, v1alpha1.EffectLimit} {
		p := pol("trial", agentSA, ruleOf("r", effect, names("*")))
		p.Spec.Mode = v1alpha1.PolicyModeAudit
		trial := Compile(p.Namespace, p.Name, &p.Spec)
		d := Decide(input(t, `{}`), append(one("Allow", ""), trial))
		if !d.Allowed || d.Approvals != nil || d.Limits != nil || len(d.Matched) != 1 {
			t.Errorf("%s: an audited obligation changed the decision: %+v", effect, d)
		}
		if want := []v1alpha1.RuleReference{{Policy: "tools/trial", Rule: "r", Effect: effect}}; d.Audit == nil || !*d.Audit.Allowed ||
			d.Audit.DecisiveRule.Policy != "tools/p" || !slices.Equal(d.Audit.MatchedRules, want) {
			t.Errorf("%s: not recorded: %+v", effect, d.Audit)
		}
		// Enforced and audited ones beside each other stay apart.
		p.Name, p.Spec.Mode = "real", v1alpha1.PolicyModeEnforce
		d = Decide(input(t, `{}`), append(one("Allow", ""), trial, Compile(p.Namespace, p.Name, &p.Spec)))
		approvals, limits := listed(d)
		if got := slices.Concat(approvals, limits); !slices.Equal(got, []string{"tools/real/r"}) || len(d.Audit.MatchedRules) != 1 {
			t.Errorf("%s: %v, audit %+v", effect, got, d.Audit)
		}
	}
}

func TestIncludes(t *testing.T) {
	account := v1alpha1.Requester{Username: "system:serviceaccount:agents:support", Groups: []string{"system:serviceaccounts"}}
	dana := v1alpha1.Requester{Username: "dana", Groups: []string{"finance", "system:authenticated"}}
	for _, tc := range []struct {
		reason   string
		subjects []v1alpha1.Subject
		who      v1alpha1.Requester
		want     bool
	}{
		{"nobody", nil, dana, false},
		{"a user", []v1alpha1.Subject{{Kind: "User", Name: "dana"}}, dana, true},
		{"case counts", []v1alpha1.Subject{{Kind: "User", Name: "Dana"}}, dana, false},
		{"a user named like her group", []v1alpha1.Subject{{Kind: "User", Name: "finance"}}, dana, false},
		{"a group", []v1alpha1.Subject{{Kind: "Group", Name: "finance"}}, dana, true},
		{"a group named like her", []v1alpha1.Subject{{Kind: "Group", Name: "dana"}}, dana, false},
		{"one of several", []v1alpha1.Subject{{Kind: "User", Name: "bob"}, {Kind: "Group", Name: "finance"}}, dana, true},
		{"a ServiceAccount", []v1alpha1.Subject{{Kind: "ServiceAccount", Namespace: "agents", Name: "support"}}, account, true},
		{"of another namespace", []v1alpha1.Subject{{Kind: "ServiceAccount", Namespace: "agent", Name: "support"}}, account, false},
		{"of another name", []v1alpha1.Subject{{Kind: "ServiceAccount", Namespace: "agents", Name: "support2"}}, account, false},
		{"a name that begins like it", []v1alpha1.Subject{{Kind: "ServiceAccount", Namespace: "agents", Name: "suppor"}}, account, false},
		{"the border elsewhere", []v1alpha1.Subject{{Kind: "ServiceAccount", Namespace: "agentss", Name: "upport"}}, account, false},
		{"no border", []v1alpha1.Subject{{Kind: "ServiceAccount", Namespace: "agents", Name: "support"}}, v1alpha1.Requester{Username: "system:serviceaccount:agentssupport"}, false},
		{"without its namespace", []v1alpha1.Subject{{Kind: "ServiceAccount", Name: "agents:support"}}, account, false},
		{"a user is no ServiceAccount", []v1alpha1.Subject{{Kind: "ServiceAccount", Namespace: "agents", Name: "support"}}, v1alpha1.Requester{Username: "agents:support"}, false},
		{"a kind of a later version", []v1alpha1.Subject{{Kind: "Team", Name: "dana"}}, dana, false},
	} {
		if got := Includes(tc.subjects, tc.who); got != tc.want {
			t.Errorf("%s: %v", tc.reason, got)
		}
	}
}

func TestRequiresApproval(t *testing.T) {
	asks := func(sel v1alpha1.ToolSelector, when string) v1alpha1.PolicyRule {
		r := ruleOf("r", v1alpha1.EffectRequireApproval, sel)
		r.When = when
		return r
	}
	for _, tc := range []struct {
		reason    string
		namespace string
		mode      v1alpha1.PolicyMode
		rules     []v1alpha1.PolicyRule
		want      bool
	}{
		{"it selects the Tool", "tools", "", []v1alpha1.PolicyRule{allowAll, asks(names("refund"), "")}, true},
		{"whatever its condition", "tools", "Enforce", []v1alpha1.PolicyRule{asks(names("*"), "args.amount > 100")}, true},
		{"even if that does not compile", "tools", "Enforce", []v1alpha1.PolicyRule{asks(names("*"), "args.amount >")}, true},
		{"nobody knows what it selects", "tools", "Enforce", []v1alpha1.PolicyRule{asks(badSelector, "")}, true},
		{"without its block", "tools", "Enforce", []v1alpha1.PolicyRule{{Name: "r", Effect: "RequireApproval", Tools: names("*")}}, true},
		{"a ClusterToolPolicy", "", "Enforce", []v1alpha1.PolicyRule{asks(names("*"), "")}, true},
		{"another Tool", "tools", "Enforce", []v1alpha1.PolicyRule{asks(names("other"), "")}, false},
		{"another namespace", "other", "Enforce", []v1alpha1.PolicyRule{asks(names("*"), "")}, false},
		{"it only records", "tools", "Audit", []v1alpha1.PolicyRule{asks(names("*"), "")}, false},
		{"other effects", "tools", "Enforce", []v1alpha1.PolicyRule{allowAll, ruleOf("l", "Limit", names("*")), ruleOf("d", "Deny", names("*"))}, false},
	} {
		p := Compile(tc.namespace, "p", &v1alpha1.ToolPolicySpec{Mode: tc.mode, Subjects: finance, Rules: tc.rules})
		if got := p.RequiresApproval(input(t, "").Tool); got != tc.want {
			t.Errorf("%s: %v", tc.reason, got)
		}
	}
}
