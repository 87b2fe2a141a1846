package gate

import (
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"callgate.dev/callgate/api/v1alpha1"
	"callgate.dev/callgate/internal/policy"
)

// Authorize stands on both sides of validate: what does not read the arguments
// decides before them, the rest on valid arguments only.
func TestAuthorizeHalves(t *testing.T) {
	const (
		reads  = `args.text == "hello"`
		valid  = `{"text":"hello"}`
		other  = `{"text":"bye"}`
		wrong  = `{"text":7}`
		broken = `args.text ==`
	)
	allow := func(when ...string) *policy.Policy { return testPolicy("a", v1alpha1.EffectAllow, when...) }
	deny := func(when ...string) *policy.Policy { return testPolicy("d", v1alpha1.EffectDeny, when...) }
	freeze := `now >= timestamp("2026-11-29T12:00:03Z")`
	notReady := func(a *Admission) {
		a.Tools[0].Status.Conditions = []metav1.Condition{{Type: v1alpha1.ConditionReady, Status: metav1.ConditionFalse, ObservedGeneration: 3,
			Reason: v1alpha1.ReasonInvalidSchema, Message: "spec.inputSchema: no such type"}}
	}
	for _, tc := range []struct {
		reason   string
		args     string
		policies []*policy.Policy
		change   func(*Admission)
		// The end; code is empty if the call may run.
		code    v1alpha1.ErrorCode
		message string
		confirm bool // asks for a read past the cache first
		decided bool // status.decision says how the policies decided
	}{
		// the first half
		{reason: "nothing can allow it: neither schema nor readiness is told", args: wrong, policies: []*policy.Policy{deny(reads)}, change: notReady,
			code: v1alpha1.ErrorToolNotAllowed, message: "no policy allows", confirm: true, decided: true},
		{reason: "an Allow for another moment cannot allow it either", args: wrong, policies: []*policy.Policy{allow(freeze)}, change: notReady,
			code: v1alpha1.ErrorToolNotAllowed, message: "no policy allows", confirm: true, decided: true},
		{reason: "nor an Allow that does not compile", args: wrong, policies: []*policy.Policy{allow(broken)}, change: notReady,
			code: v1alpha1.ErrorToolNotAllowed, message: "no policy allows", confirm: true, decided: true},
		{reason: "a Deny that does not read the arguments comes before them", args: wrong, policies: []*policy.Policy{allow(), deny(`call.namespace == "agents"`)}, change: notReady,
			code: v1alpha1.ErrorToolNotAllowed, message: `ToolPolicy tools/d, rule "all"`, decided: true},
		{reason: "a Deny that does not compile, too, whatever it would read", args: wrong, policies: []*policy.Policy{allow(), deny(broken)}, change: notReady,
			code: v1alpha1.ErrorToolNotAllowed, message: `ToolPolicy tools/d, rule "all"`, decided: true},
		{reason: "an Allow that reads the arguments may still match: readiness is told", args: valid, policies: []*policy.Policy{allow(reads)}, change: notReady,
			code: v1alpha1.ErrorToolUnavailable, message: "not Ready"},

		// validate, between the two
		{reason: "a wrong type is invalid, though a Deny reads the arguments", args: wrong, policies: []*policy.Policy{allow(), deny(reads)},
			code: v1alpha1.ErrorInvalidArguments, message: "/text"},
		{reason: "a wrong type is invalid, though only an Allow that reads them could match", args: wrong, policies: []*policy.Policy{allow(reads)},
			code: v1alpha1.ErrorInvalidArguments, message: "/text"},

		// the second half
		{reason: "an Allow that reads the arguments and matches", args: valid, policies: []*policy.Policy{allow(reads)}, decided: true},
		{reason: "an Allow that reads the arguments and does not match", args: other, policies: []*policy.Policy{allow(reads)},
			code: v1alpha1.ErrorToolNotAllowed, message: "no policy allows", confirm: true, decided: true},
		{reason: "a Deny that reads the arguments and matches", args: valid, policies: []*policy.Policy{allow(), deny(reads)},
			code: v1alpha1.ErrorToolNotAllowed, message: `ToolPolicy tools/d, rule "all"`, decided: true},
		{reason: "a Deny that reads the arguments and does not match", args: other, policies: []*policy.Policy{allow(), deny(reads)}, decided: true},
		{reason: "a Deny that fails on the arguments counts", args: valid, policies: []*policy.Policy{allow(), deny("args.n > 3")},
			code: v1alpha1.ErrorToolNotAllowed, message: "could not be evaluated", decided: true},
		{reason: "an Allow that fails on the arguments does not", args: valid, policies: []*policy.Policy{allow("args.n > 3")},
			code: v1alpha1.ErrorToolNotAllowed, message: "could not be evaluated", confirm: true, decided: true},
		{reason: "no arguments are {}: the second half still decides", args: "", policies: []*policy.Policy{allow(`!has(args.n)`)},
			code: v1alpha1.ErrorInvalidArguments, message: "text"},
	} {
		t.Run(tc.reason, func(t *testing.T) {
			a := admissible(t)
			a.Call, a.Policies = testCall(tc.args), tc.policies
			if tc.args == "" {
				a.Call.Spec.Args = nil
			}
			if tc.change != nil {
				tc.change(&a)
			}
			got := Admit(a)
			if (got.Act == ActConfirm) != tc.confirm {
				t.Fatalf("act %q, confirm should be %v", got.Act, tc.confirm)
			}
			a.Confirmed = true
			got = Admit(a)
			if tc.code == "" {
				if got.Ended() || got.Command == nil {
					t.Fatalf("does not run: %+v", got.Result)
				}
			} else if !got.Ended() || got.Result.ErrorCode != tc.code || *got.Result.Retryable || !strings.Contains(got.Result.Message, tc.message) {
				t.Fatalf("got %+v, want %s with %q", got.Result, tc.code, tc.message)
			}
			if tc.code == v1alpha1.ErrorToolNotAllowed {
				for _, leak := range []string{"/text", "schema", "Ready"} {
					if strings.Contains(got.Result.Message, leak) {
						t.Errorf("the refusal says %q: %s", leak, got.Result.Message)
					}
				}
			}
			if (got.Decision != nil) != tc.decided || tc.decided && *got.Decision.Allowed != (tc.code == "") {
				t.Errorf("decision %+v", got.Decision)
			}
		})
	}
}

// Every look decides anew, with its own time: what was allowed when the call
// was accepted need not be when its sandbox is ready.
func TestAuthorizeReadsTheTimeAtEveryLook(t *testing.T) {
	a := admissible(t)
	a.Policies = []*policy.Policy{
		testPolicy("a", v1alpha1.EffectAllow),
		testPolicy("freeze", v1alpha1.EffectDeny, `now >= timestamp("2026-11-29T12:00:10Z") && args.text == "hello"`),
	}
	first := Admit(a)
	if first.Ended() || first.Command == nil {
		t.Fatalf("refused before the freeze: %+v", first.Result)
	}
	a.Call.Status.ArgsDigest, a.Call.Status.Decision = first.ArgsDigest, first.Decision
	a.Now = created.Add(10 * time.Second)
	second := Admit(a)
	if !second.Ended() || second.Result.ErrorCode != v1alpha1.ErrorToolNotAllowed || second.Command != nil {
		t.Fatalf("the freeze has begun and the call would run: %+v", second.Verdict)
	}
	if d := second.Decision; *d.Allowed || d.DecisiveRule.Policy != "tools/freeze" {
		t.Errorf("the decision is still %+v", d)
	}
}

// A refusal by a policy is never told as if there were no such Tool.
func TestRefusalIsNotNotFound(t *testing.T) {
	for reason, policies := range map[string][]*policy.Policy{
		"by default": nil, "by a Deny": {testPolicy("d", v1alpha1.EffectDeny)},
	} {
		a := admissible(t)
		a.Policies, a.Confirmed = policies, true
		r := Admit(a).Result
		if r == nil || r.ErrorCode != v1alpha1.ErrorToolNotAllowed || !strings.Contains(r.Message, "Tool tools/echo") ||
			strings.Contains(r.Message, "there is no") || strings.Contains(r.Message, "not found") {
			t.Errorf("%s: %+v", reason, r)
		}
	}
}
