package policy

import (
	"strings"
	"testing"

	"callgate.dev/callgate/api/v1alpha1"
)

// A refusal says who decided, and what a person can do about it.
func TestMessages(t *testing.T) {
	const nobody = "no policy allows system:serviceaccount:agents:support to call Tool tools/refund"
	long := `args.` + strings.Repeat("x", 3000) + ` == 1`
	for _, tc := range []struct {
		reason   string
		policies []*Policy
		want     []string
		without  string
	}{
		{"nothing at all", nil, []string{nobody, "without an Allow rule for both nothing is allowed", `namespace "tools"`}, "condition"},
		{"only a Deny that does not match", one("Deny", "args.amount > 100"),
			[]string{nobody, "without an Allow rule", "Deny rules alone grant nothing"}, "refuses"},
		{"only a Deny that matches: mending it would not help", one("Deny", "args.amount > 0"),
			[]string{`ToolPolicy tools/p, rule "r" (Deny) refuses calls of Tool tools/refund by system:serviceaccount:agents:support`, "and no policy allows it, either"}, ""},
		{"a Deny over an Allow", one("Deny", "args.amount > 0", allowAll), []string{`rule "r" (Deny) refuses`}, "no policy allows"},
		{"an Allow whose condition is not met", one("Allow", "args.amount > 100"),
			[]string{nobody, `the condition of ToolPolicy tools/p, rule "r" (Allow) is not met`}, "without an Allow"},
		{"an Allow that fails on the call", one("Allow", "args.missing > 100"),
			[]string{nobody, `ToolPolicy tools/p, rule "r" (Allow) could not be evaluated: no such key: missing`}, ""},
		{"an Allow that does not compile", one("Allow", "args.amount >"),
			[]string{nobody, `could not be evaluated: spec.rules[0].when (rule "r"): 1:14: Syntax error`}, ""},
		{"a Deny that fails on the call", one("Deny", "args.missing > 100", allowAll),
			[]string{`rule "r" (Deny) refuses`, "could not be evaluated: no such key: missing"}, "no policy allows"},
		{"an Allow for other Tools is not mentioned", one("Deny", "args.amount > 100", ruleOf("other", "Allow", names("elsewhere"))),
			[]string{nobody, "without an Allow rule"}, "other"},
		{"an effect of a later version", one("Later", "", allowAll), []string{`rule "r" (Later) refuses`}, ""},
		{"only a RequireApproval that matches", one("RequireApproval", ""), []string{nobody, "without an Allow rule", "Deny rules alone grant nothing"}, "refuses"},
		{"an error is quoted in part", one("Deny", long, allowAll), []string{"could not be evaluated: no such key: xxx"}, strings.Repeat("x", 400)},
	} {
		d := Decide(input(t, `{"amount":1}`), tc.policies)
		if d.Allowed {
			t.Fatalf("%s: allowed", tc.reason)
		}
		for _, want := range tc.want {
			if !strings.Contains(d.Message, want) {
				t.Errorf("%s: %q lacks %q", tc.reason, d.Message, want)
			}
		}
		if tc.without != "" && strings.Contains(d.Message, tc.without) || strings.Contains(d.Message, "\n") || len(d.Message) > 2000 {
			t.Errorf("%s: %q", tc.reason, d.Message)
		}
	}
	own := pol("p", agentSA, allowAll, v1alpha1.PolicyRule{Name: "no", Effect: "Deny", Tools: names("*"), Message: "ask the on-call"})
	if d := Decide(input(t, `{}`), compileAll([]v1alpha1.ToolPolicy{own})); !strings.HasSuffix(d.Message, ": ask the on-call") {
		t.Errorf("the rule's own message is lost: %q", d.Message)
	}
}
