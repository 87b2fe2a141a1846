package policy

import (
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"callgate.dev/callgate/api/v1alpha1"
)

func tool(name string, mod ...func(*v1alpha1.Tool)) *v1alpha1.Tool {
	t := &v1alpha1.Tool{ObjectMeta: metav1.ObjectMeta{Namespace: "tools", Name: name}}
	for _, m := range mod {
		m(t)
	}
	return t
}

func pol(name string, subjects []v1alpha1.Subject, rules ...v1alpha1.PolicyRule) v1alpha1.ToolPolicy {
	return v1alpha1.ToolPolicy{
		ObjectMeta: metav1.ObjectMeta{Namespace: "tools", Name: name},
		Spec:       v1alpha1.ToolPolicySpec{Subjects: subjects, Rules: rules},
	}
}

func ruleOf(name string, e v1alpha1.RuleEffect, sel v1alpha1.ToolSelector) v1alpha1.PolicyRule {
	return filled(v1alpha1.PolicyRule{Name: name, Effect: e, Tools: sel})
}

// decide compiles the policies and judges a call of a Tool without arguments.
func decide(t *v1alpha1.Tool, who v1alpha1.Requester, policies []v1alpha1.ToolPolicy) Decision {
	return Decide(Input{Tool: t, Requester: who, Namespace: "agents", Args: map[string]any{}}, compileAll(policies))
}

func compileAll(policies []v1alpha1.ToolPolicy) []*Policy {
	out := make([]*Policy, 0, len(policies))
	for i := range policies {
		out = append(out, Compile(policies[i].Namespace, policies[i].Name, &policies[i].Spec))
	}
	return out
}

func names(n ...string) v1alpha1.ToolSelector { return v1alpha1.ToolSelector{Names: n} }

var (
	agent    = v1alpha1.Requester{Username: "system:serviceaccount:agents:support", Groups: []string{"system:serviceaccounts", "system:serviceaccounts:agents"}}
	agentSA  = []v1alpha1.Subject{{Kind: v1alpha1.SubjectServiceAccount, Namespace: "agents", Name: "support"}}
	allowAll = ruleOf("all", v1alpha1.EffectAllow, names("*"))
)

func TestDecide(t *testing.T) {
	for _, tc := range []struct {
		reason   string
		tool     *v1alpha1.Tool
		who      v1alpha1.Requester
		policies []v1alpha1.ToolPolicy
		allowed  bool
		decisive string
		message  string
	}{
		{reason: "default deny: no policy at all", tool: tool("a"), who: agent, message: "no policy allows"},
		{reason: "a policy for somebody else grants nothing", tool: tool("a"), who: agent,
			policies: []v1alpha1.ToolPolicy{pol("p", []v1alpha1.Subject{{Kind: "User", Name: "bob"}}, allowAll)}, message: "no policy allows"},
		{reason: "ServiceAccount subject", tool: tool("a"), who: agent, policies: []v1alpha1.ToolPolicy{pol("p", agentSA, allowAll)}, allowed: true, decisive: "tools/p all"},
		{reason: "a ServiceAccount of the same name elsewhere is another", tool: tool("a"), who: agent,
			policies: []v1alpha1.ToolPolicy{pol("p", []v1alpha1.Subject{{Kind: "ServiceAccount", Namespace: "other", Name: "support"}}, allowAll)}},
		{reason: "a User subject spells a ServiceAccount's full name", tool: tool("a"), who: agent,
			policies: []v1alpha1.ToolPolicy{pol("p", []v1alpha1.Subject{{Kind: "User", Name: agent.Username}}, allowAll)}, allowed: true, decisive: "tools/p all"},
		{reason: "a User subject does not match a group of that name", tool: tool("a"), who: agent,
			policies: []v1alpha1.ToolPolicy{pol("p", []v1alpha1.Subject{{Kind: "User", Name: "system:serviceaccounts"}}, allowAll)}},
		{reason: "Group subject: all ServiceAccounts of a namespace", tool: tool("a"), who: agent,
			policies: []v1alpha1.ToolPolicy{pol("p", []v1alpha1.Subject{{Kind: "Group", Name: "system:serviceaccounts:agents"}}, allowAll)}, allowed: true, decisive: "tools/p all"},
		{reason: "exact names only", tool: tool("ab"), who: agent, policies: []v1alpha1.ToolPolicy{pol("p", agentSA, ruleOf("r", "Allow", names("a", "abc", "a*")))}},
		{reason: "Deny beats Allow in the same policy", tool: tool("a"), who: agent,
			policies: []v1alpha1.ToolPolicy{pol("p", agentSA, allowAll, v1alpha1.PolicyRule{Name: "no", Effect: "Deny", Tools: names("a"), Message: "ask the on-call"})},
			decisive: "tools/p no", message: "ask the on-call"},
		{reason: "Deny beats Allow across policies", tool: tool("a"), who: agent,
			policies: []v1alpha1.ToolPolicy{pol("z", agentSA, ruleOf("no", "Deny", names("*"))), pol("a", agentSA, allowAll)}, decisive: "tools/z no"},
		{reason: "Deny for another Tool does not matter", tool: tool("a"), who: agent,
			policies: []v1alpha1.ToolPolicy{pol("p", agentSA, allowAll, ruleOf("no", "Deny", names("b")))}, allowed: true, decisive: "tools/p all"},
		{reason: "an effect this version does not know refuses", tool: tool("a"), who: agent,
			policies: []v1alpha1.ToolPolicy{pol("p", agentSA, allowAll, ruleOf("later", "Later", names("*")))}, decisive: "tools/p later"},
		{reason: "labels select", tool: tool("a", func(t *v1alpha1.Tool) { t.Labels = map[string]string{"env": "dev"} }), who: agent,
			policies: []v1alpha1.ToolPolicy{pol("p", agentSA, ruleOf("dev", "Allow", v1alpha1.ToolSelector{Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"env": "dev"}}}))}, allowed: true, decisive: "tools/p dev"},
		{reason: "fields are ANDed", tool: tool("a", func(t *v1alpha1.Tool) { t.Spec.SideEffects = "Idempotent" }), who: agent,
			policies: []v1alpha1.ToolPolicy{pol("p", agentSA, ruleOf("r", "Allow", v1alpha1.ToolSelector{Names: []string{"a"}, SideEffects: []v1alpha1.SideEffects{"None"}}))}},
		{reason: "no sideEffects means NonIdempotent", tool: tool("a"), who: agent,
			policies: []v1alpha1.ToolPolicy{pol("p", agentSA, ruleOf("r", "Allow", v1alpha1.ToolSelector{SideEffects: []v1alpha1.SideEffects{"NonIdempotent"}}))}, allowed: true, decisive: "tools/p r"},
		{reason: "a broken Allow never matches", tool: tool("a"), who: agent, policies: []v1alpha1.ToolPolicy{pol("p", agentSA, ruleOf("r", "Allow", badSelector))}},
		{reason: "a broken Deny always matches", tool: tool("a"), who: agent, policies: []v1alpha1.ToolPolicy{pol("p", agentSA, allowAll, ruleOf("r", "Deny", badSelector))}, decisive: "tools/p r"},
		{reason: "an empty selector grants nothing", tool: tool("a"), who: agent, policies: []v1alpha1.ToolPolicy{pol("p", agentSA, ruleOf("r", "Allow", v1alpha1.ToolSelector{}))}},
	} {
		t.Run(tc.reason, func(t *testing.T) {
			d := decide(tc.tool, tc.who, tc.policies)
			got := ""
			if d.Decisive != nil {
				got = d.Decisive.Policy + " " + d.Decisive.Rule
			}
			if d.Allowed != tc.allowed || got != tc.decisive || !strings.Contains(d.Message, tc.message) {
				t.Errorf("allowed=%v decisive=%q message=%q; want %v %q %q", d.Allowed, got, d.Message, tc.allowed, tc.decisive, tc.message)
			}
			if !d.Allowed && d.Message == "" {
				t.Error("a refusal must say why")
			}
		})
	}
}

func TestErrNamesTheRule(t *testing.T) {
	p := pol("p", agentSA, allowAll,
		ruleOf("bad", "Deny", badSelector),
		v1alpha1.PolicyRule{Name: "cel", Effect: "Deny", Tools: names("*"), When: "args.a >\n  wrong.b"})
	err := Compile("tools", "p", &p.Spec).Err()
	for _, want := range []string{`spec.rules[1].tools.selector (rule "bad")`, `spec.rules[2].when (rule "cel"): 2:3: undeclared reference to 'wrong'`} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want %s", err, want)
		}
	}
	p = pol("p", agentSA, allowAll)
	if err := Compile("tools", "p", &p.Spec).Err(); err != nil {
		t.Errorf("a good policy: %v", err)
	}
}
