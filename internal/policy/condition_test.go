package policy

import (
	"encoding/json"
	"slices"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"callgate.dev/callgate/api/v1alpha1"
)

// input is a call of Tool refund by the agent, with these arguments.
func input(t testing.TB, args string) Input {
	t.Helper()
	in := Input{
		Tool: tool("refund", func(t *v1alpha1.Tool) {
			t.Labels = map[string]string{"env": "prod"}
			t.Spec.SideEffects = v1alpha1.SideEffectsIdempotent
		}),
		Requester: agent, Namespace: "agents", Context: map[string]v1alpha1.ContextValue{"run": "r-17"},
		Now: time.Date(2026, 12, 24, 18, 0, 0, 0, time.UTC),
	}
	if args != "" {
		decoder := json.NewDecoder(strings.NewReader(args))
		decoder.UseNumber()
		var decoded map[string]any
		if err := decoder.Decode(&decoded); err != nil {
			t.Fatal(err)
		}
		in.Args = Arguments(decoded)
	}
	return in
}

func one(effect v1alpha1.RuleEffect, when string, more ...v1alpha1.PolicyRule) []*Policy {
	p := pol("p", agentSA, append(more, filled(v1alpha1.PolicyRule{Name: "r", Effect: effect, Tools: names("*"), When: when}))...)
	return compileAll([]v1alpha1.ToolPolicy{p})
}

func TestWhen(t *testing.T) {
	for _, tc := range []struct {
		reason, when, args string
		allowed            bool // by an Allow with this condition
	}{
		{"an integer", "args.amount > 100", `{"amount":101}`, true},
		{"at the limit", "args.amount > 100", `{"amount":100}`, false},
		{"a fraction, compared with an integer", "args.amount > 100", `{"amount":100.5}`, true},
		{"int64 is exact", "args.n == 9007199254740993", `{"n":9007199254740993}`, true},
		{"int64 is not rounded", "args.n == 9007199254740993", `{"n":9007199254740992}`, false},
		{"caller", `caller.username.endsWith(":support") && "system:serviceaccounts" in caller.groups && caller.serviceAccount == "agents/support"`, `{}`, true},
		{"tool", `tool.name == "refund" && tool.namespace == "tools" && tool.labels["env"] == "prod" && tool.sideEffects == "Idempotent"`, `{}`, true},
		{"call", `call.namespace == "agents" && call.context["run"] == "r-17"`, `{}`, true},
		{"now: a change freeze", `now >= timestamp("2026-12-20T00:00:00Z") && now < timestamp("2027-01-02T00:00:00Z")`, `{}`, true},
		{"now: working hours", `now.getHours("Europe/Berlin") < 18`, `{}`, false},
		{"has guards", "has(args.amount) && args.amount > 100", `{}`, false},
		{"a list", `args.urls.all(u, u.startsWith("https://example.com/"))`, `{"urls":["https://example.com/a","https://example.com/b"]}`, true},
		{"a list with one that does not fit", `args.urls.all(u, u.startsWith("https://example.com/"))`, `{"urls":["https://example.com/a","https://evil/b"]}`, false},
		{"null is null", "args.a == null", `{"a":null}`, true},
		{"nested", "args.a.b[1] == 2", `{"a":{"b":[1,2]}}`, true},
	} {
		in := input(t, tc.args)
		if d := Decide(in, one("Allow", tc.when)); d.Allowed != tc.allowed {
			t.Errorf("%s: allowed is %v: %s", tc.reason, d.Allowed, d.Message)
		}
		if d := Decide(in, one("Deny", tc.when, allowAll)); d.Allowed == tc.allowed {
			t.Errorf("%s: a Deny with the same condition: allowed is %v", tc.reason, d.Allowed)
		}
	}
}

// What does not compile, or fails on the call, counts against it.
func TestBrokenConditions(t *testing.T) {
	for _, tc := range []struct {
		reason, when, err string // err is empty if it compiles
	}{
		{"syntax", "args.amount >", "1:14"},
		{"an unknown variable", "arg.amount > 1", "1:1: undeclared reference"},
		{"an unknown field", `caller.name == "x"`, "has no field \"name\"; it has username, groups, serviceAccount"},
		{"not a condition", `"text"`, "must be true or false"},
		{"no regular expression", `args.s.matches("(")`, "1:16: invalid matches argument"},
		{"no such day", `now < timestamp("2026-13-01T00:00:00Z")`, "1:17: invalid timestamp argument"},
		{"no duration", `now + duration("1 day") < now`, "1:16: invalid duration argument"},
		{"a missing argument", "args.missing > 1", ""},
		{"another type", `args.amount.startsWith("a")`, ""},
		{"neither true nor false", "args.amount", ""},
		{"too costly", `[1,2,3,4,5,6,7,8,9,0].all(a, [1,2,3,4,5,6,7,8,9,0].all(b, [1,2,3,4,5,6,7,8,9,0].all(c, [1,2,3,4,5,6,7,8,9,0].all(d, [1,2,3,4,5,6,7,8,9,0].all(e, a+b+c+d+e >= 0)))))`, ""},
		{"division by zero", "args.amount / 0 == 1", ""},
	} {
		_, err := compileCondition(tc.when)
		if (err != nil) != (tc.err != "") || err != nil && !strings.Contains(err.Error(), tc.err) {
			t.Errorf("%s: compile error %v, want %q", tc.reason, err, tc.err)
		}
		in := input(t, `{"amount":1}`)
		if d := Decide(in, one("Allow", tc.when)); d.Allowed {
			t.Errorf("%s: a broken Allow granted", tc.reason)
		}
		for _, effect := range []v1alpha1.RuleEffect{"Deny", "Later"} {
			if d := Decide(in, one(effect, tc.when, allowAll)); d.Allowed {
				t.Errorf("%s: a broken %s did not count", tc.reason, effect)
			}
		}
		if d := Decide(in, one("RequireApproval", tc.when, allowAll)); len(d.Approvals) != 1 {
			t.Errorf("%s: a broken RequireApproval did not count", tc.reason)
		}
		if d := Decide(in, one("Limit", tc.when, allowAll)); len(d.Limits) != 1 {
			t.Errorf("%s: a broken Limit did not count", tc.reason)
		}
	}
}

// Before the arguments are known to be valid, only rules that do not read them
// decide.
func TestHalves(t *testing.T) {
	const reads = `args.amount > 100`
	for _, tc := range []struct {
		reason        string
		policies      []*Policy
		args          string
		before, after bool
	}{
		{"no Allow at all ends before", one("Deny", reads), `{"amount":1}`, false, false},
		{"an Allow that reads args is open", one("Allow", reads), `{"amount":101}`, true, true},
		{"and may not match", one("Allow", reads), `{"amount":1}`, true, false},
		{"a Deny that reads args waits", one("Deny", reads, allowAll), `{"amount":101}`, true, false},
		{"a Deny that does not, ends before", one("Deny", `call.namespace == "agents"`, allowAll), `{}`, false, false},
		{"a Deny that does not compile ends before, even if it would read args", one("Deny", "args.amount >", allowAll), `{}`, false, false},
		{"a RequireApproval does not refuse", one("RequireApproval", "", allowAll), `{}`, true, true},
		{"nor one that does not compile", one("RequireApproval", "args.amount >", allowAll), `{}`, true, true},
		{"a Limit that reads args does not refuse", one("Limit", reads, allowAll), `{"amount":101}`, true, true},
		{"an obligation is no Allow that could still match", one("RequireApproval", reads), `{"amount":101}`, false, false},
		{"an Allow that does not compile cannot match", one("Allow", "args.amount >"), `{}`, false, false},
	} {
		if d := Decide(input(t, ""), tc.policies); d.Allowed != tc.before {
			t.Errorf("%s: before: %v (%s)", tc.reason, d.Allowed, d.Message)
		}
		if d := Decide(input(t, tc.args), tc.policies); d.Allowed != tc.after {
			t.Errorf("%s: after: %v (%s)", tc.reason, d.Allowed, d.Message)
		}
	}
}

func TestClusterPolicies(t *testing.T) {
	cluster := func(rules ...v1alpha1.PolicyRule) *Policy {
		return Compile("", "everywhere", &v1alpha1.ToolPolicySpec{Subjects: agentSA, Rules: rules})
	}
	in := input(t, `{}`)
	for _, tc := range []struct {
		reason   string
		policies []*Policy
		allowed  bool
		decisive string
	}{
		{"an Allow for all namespaces", []*Policy{cluster(allowAll)}, true, "everywhere"},
		{"by namespace", []*Policy{cluster(ruleOf("ns", "Allow", v1alpha1.ToolSelector{Namespaces: []string{"tools"}}))}, true, "everywhere"},
		{"another namespace", []*Policy{cluster(ruleOf("ns", "Allow", v1alpha1.ToolSelector{Namespaces: []string{"other"}}))}, false, ""},
		{"its Deny beats the namespace's Allow", append(one("Allow", ""), cluster(ruleOf("no", "Deny", names("*")))), false, "everywhere"},
		{"the namespace's Deny beats its Allow", append(one("Deny", ""), cluster(allowAll)), false, "tools/p"},
		{"a ToolPolicy of another namespace says nothing", []*Policy{Compile("other", "p", &v1alpha1.ToolPolicySpec{Subjects: agentSA, Rules: []v1alpha1.PolicyRule{allowAll}})}, false, ""},
	} {
		d := Decide(in, tc.policies)
		got := ""
		if d.Decisive != nil {
			got = d.Decisive.Policy
		}
		if d.Allowed != tc.allowed || got != tc.decisive {
			t.Errorf("%s: %v by %q: %s", tc.reason, d.Allowed, got, d.Message)
		}
	}
	if d := Decide(in, []*Policy{cluster(ruleOf("no", "Deny", names("*")))}); !strings.HasPrefix(d.Message, `ClusterToolPolicy everywhere, rule "no"`) {
		t.Errorf("the message does not name the kind: %s", d.Message)
	}
}

func TestAuditMode(t *testing.T) {
	audit := func(effect v1alpha1.RuleEffect) *Policy {
		p := pol("trial", agentSA, ruleOf("r", effect, names("*")))
		p.Spec.Mode = v1alpha1.PolicyModeAudit
		return Compile(p.Namespace, p.Name, &p.Spec)
	}
	in := input(t, `{}`)
	d := Decide(in, append(one("Allow", ""), audit("Deny")))
	if !d.Allowed || d.Decisive.Policy != "tools/p" || len(d.Matched) != 1 {
		t.Errorf("an audited Deny changed the decision: %+v", d)
	}
	if d.Audit == nil || *d.Audit.Allowed || d.Audit.DecisiveRule.Policy != "tools/trial" || len(d.Audit.MatchedRules) != 1 {
		t.Errorf("an audited Deny is not recorded: %+v", d.Audit)
	}
	d = Decide(in, []*Policy{audit("Allow")})
	if d.Allowed || d.Audit == nil || !*d.Audit.Allowed {
		t.Errorf("an audited Allow granted, or is not recorded: %+v", d)
	}
	if d := Decide(in, one("Allow", "")); d.Audit != nil {
		t.Errorf("an audit without a policy in that mode: %+v", d.Audit)
	}
}

func TestArguments(t *testing.T) {
	p := pol("p", agentSA,
		v1alpha1.PolicyRule{Name: "typo", Effect: "Allow", Tools: names("refund"), When: "args.ammount > 1"},
		v1alpha1.PolicyRule{Name: "optional", Effect: "Allow", Tools: names("*"), When: `args["amount"] > 1`},
		v1alpha1.PolicyRule{Name: "guarded", Effect: "Allow", Tools: names("*"), When: `has(args.amount) && args.amount > 1 || "note" in args && args.note != ""`},
		v1alpha1.PolicyRule{Name: "nobody", Effect: "Allow", Tools: names("later"), When: "args.x == 1"},
	)
	tools := []v1alpha1.Tool{*tool("refund"), *tool("word-stats"), *tool("elsewhere", func(t *v1alpha1.Tool) { t.Namespace = "other" })}
	declared := map[string][]string{"refund": {"amount", "note"}}
	required := map[string][]string{"refund": {"amount"}, "elsewhere": {"ammount"}}
	unknown, unguarded := Compile("tools", "p", &p.Spec).Arguments(tools,
		func(t *v1alpha1.Tool, name string) bool { return slices.Contains(declared[t.Name], name) },
		func(t *v1alpha1.Tool, name string) bool { return slices.Contains(required[t.Name], name) })
	if want := []string{`spec.rules[0].when (rule "typo"): args.ammount`}; !slices.Equal(unknown, want) {
		t.Errorf("unknown: %q", unknown)
	}
	if want := []string{`spec.rules[1].when (rule "optional"): args.amount, which Tool tools/word-stats does not require`}; !slices.Equal(unguarded, want) {
		t.Errorf("unguarded: %q", unguarded)
	}
}

func FuzzCondition(f *testing.F) {
	for _, seed := range []string{"args.a > 1", `has(args.x) && args["x"] in [1,2]`, "caller.groups.exists(g, g == 'a')", "now.getHours() < 8", "{1:2}[1]", "args.a.b.c", "[].all(x, x)"} {
		f.Add(seed)
	}
	in := input(f, `{"a":1,"x":[1,{"y":null}],"s":"text"}`)
	f.Fuzz(func(t *testing.T, when string) {
		if len(when) > 4096 {
			t.Skip("longer than the CRD allows")
		}
		_, err := compileCondition(when)
		allow, deny := Decide(in, one("Allow", when)), Decide(in, one("Deny", when, allowAll))
		if when != "" && err != nil && (allow.Allowed || deny.Allowed) {
			t.Errorf("%q does not compile and does not count against the call", when)
		}
		// An obligation applies exactly when a Deny would.
		approval, limit := Decide(in, one("RequireApproval", when, allowAll)), Decide(in, one("Limit", when, allowAll))
		if !approval.Allowed || !limit.Allowed || (len(approval.Approvals) == 1) == deny.Allowed || (len(limit.Limits) == 1) == deny.Allowed {
			t.Errorf("%q: allowed beside a Deny is %v, and the obligations are %+v and %+v", when, deny.Allowed, approval, limit)
		}
	})
}

// 1,000 policies of four rules each over 500 Tools, most for somebody else, as
// in a large company; the last one decides, alone or with obligations.
func BenchmarkDecide(b *testing.B) {
	var policies []*Policy
	effects := []v1alpha1.RuleEffect{v1alpha1.EffectAllow, v1alpha1.EffectDeny, v1alpha1.EffectRequireApproval, v1alpha1.EffectLimit}
	for i := range 1000 {
		p := v1alpha1.ToolPolicy{ObjectMeta: metav1.ObjectMeta{Namespace: "tools", Name: "p" + string(rune('a'+i%26)) + time.Duration(i).String()}}
		p.Spec.Subjects = []v1alpha1.Subject{{Kind: "ServiceAccount", Namespace: "agents", Name: "a" + time.Duration(i%100).String()}}
		if i%100 == 0 {
			p.Spec.Subjects = agentSA
		}
		for j, effect := range effects {
			r := ruleOf(string(rune('a'+j)), effect, names("tool-"+time.Duration(i%500).String()))
			r.When = "args.amount > 100 && has(args.note)"
			p.Spec.Rules = append(p.Spec.Rules, r)
		}
		policies = append(policies, Compile(p.Namespace, p.Name, &p.Spec))
	}
	approval, limit := ruleOf("approval", v1alpha1.EffectRequireApproval, names("*")), ruleOf("limit", v1alpha1.EffectLimit, names("refund"))
	approval.When = "args.amount > 100"
	in := input(b, `{"amount":101}`)
	for name, last := range map[string][]*Policy{
		"allow":       one("Allow", "args.amount > 100"),
		"obligations": one("Allow", "args.amount > 100", approval, limit),
	} {
		all := append(slices.Clone(policies), last...)
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				if d := Decide(in, all); !d.Allowed || (len(d.Approvals) == 1 && len(d.Limits) == 1) != (name == "obligations") {
					b.Fatalf("%+v", d)
				}
			}
		})
	}
}
