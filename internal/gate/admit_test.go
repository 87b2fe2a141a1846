package gate

import (
	"strings"
	"testing"
	"time"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"callgate.dev/callgate/api/v1alpha1"
	"callgate.dev/callgate/internal/jsonvalue"
	"callgate.dev/callgate/internal/policy"
	"callgate.dev/callgate/internal/schema"
)

// created is when the call of every test was created.
var created = time.Date(2026, 11, 29, 12, 0, 0, 0, time.UTC)

const inputSchema = `{"type":"object","properties":{"text":{"type":"string"},"n":{"type":"integer"}},"required":["text"],"additionalProperties":false}`

func digestOf(t *testing.T, args string) string {
	t.Helper()
	digest, err := jsonvalue.CanonicalDigest([]byte(args))
	if err != nil {
		t.Fatal(err)
	}
	return digest
}

func testCall(args string) *v1alpha1.ToolCall {
	return &v1alpha1.ToolCall{
		ObjectMeta: metav1.ObjectMeta{Namespace: "agents", Name: "say-hello", UID: "call-uid", CreationTimestamp: metav1.NewTime(created)},
		Spec: v1alpha1.ToolCallSpec{
			ToolRef:   v1alpha1.ToolReference{FunctionName: "echo", Namespace: "tools"},
			Args:      &apiextensionsv1.JSON{Raw: []byte(args)},
			Requester: &v1alpha1.Requester{Username: "system:serviceaccount:agents:assistant"},
		},
	}
}

func testTool(name string) v1alpha1.Tool {
	return v1alpha1.Tool{
		ObjectMeta: metav1.ObjectMeta{Namespace: "tools", Name: name, UID: "tool-uid", Generation: 3},
		Spec: v1alpha1.ToolSpec{
			FunctionName: "echo",
			Container:    v1alpha1.ToolContainer{Image: "echo:1", Command: []string{"echo", "$(args.text)"}},
		},
		Status: v1alpha1.ToolStatus{Conditions: []metav1.Condition{
			{Type: v1alpha1.ConditionReady, Status: metav1.ConditionTrue, Reason: v1alpha1.ReasonReady, ObservedGeneration: 3}}},
	}
}

// testPolicy has one rule for every Tool, with a condition if there is one.
func testPolicy(name string, effect v1alpha1.RuleEffect, when ...string) *policy.Policy {
	return policy.Compile("tools", name, &v1alpha1.ToolPolicySpec{
		Subjects: []v1alpha1.Subject{{Kind: v1alpha1.SubjectServiceAccount, Namespace: "agents", Name: "assistant"}},
		Rules: []v1alpha1.PolicyRule{{Name: "all", Effect: effect, Tools: v1alpha1.ToolSelector{Names: []string{"*"}},
			When: strings.Join(when, "")}},
	})
}

// admissible is a call, two seconds old, that may run.
func admissible(t *testing.T) Admission {
	t.Helper()
	s, err := schema.Compile([]byte(inputSchema))
	if err != nil {
		t.Fatal(err)
	}
	return Admission{
		Now: created.Add(2 * time.Second), Call: testCall(`{"text":"hello"}`),
		Stamping: Stamping{Proven: true, LastChange: created.Add(-time.Hour)},
		Tools:    []v1alpha1.Tool{testTool("echo")}, Policies: []*policy.Policy{testPolicy("support", v1alpha1.EffectAllow)},
		InputSchema: s,
	}
}

func TestAdmit(t *testing.T) {
	condition := func(a *Admission, status metav1.ConditionStatus, generation int64) {
		a.Tools[0].Status.Conditions = []metav1.Condition{{Type: v1alpha1.ConditionReady, Status: status, ObservedGeneration: generation,
			Reason: v1alpha1.ReasonInvalidSchema, Message: "spec.inputSchema: at /type: no such type"}}
	}
	at := func(a *Admission, age time.Duration) { a.Now = created.Add(age) }
	for _, tc := range []struct {
		reason string
		change func(t *testing.T, a *Admission)
		// The end, or else the wait.
		code      v1alpha1.ErrorCode
		retryable bool
		message   string // contained in the end's or the wait's message
		act       Act
		wait      string // reason of the wait
		after     time.Duration
		judged    bool // the digest is stored
		runs      bool // a command is there
	}{
		{reason: "everything fits", change: func(*testing.T, *Admission) {}, wait: "Starting", judged: true, runs: true},
		{reason: "the Tool by object name", change: func(_ *testing.T, a *Admission) {
			a.Call.Spec.ToolRef = v1alpha1.ToolReference{Name: "echo", Namespace: "tools"}
		},
			wait: "Starting", judged: true, runs: true},

		// 1. cancelled
		{reason: "cancelled, before anything else is looked at",
			change: func(_ *testing.T, a *Admission) {
				a.Call.Spec.Cancel, a.Stamping.Proven, a.Tools, a.Call.Spec.Requester = true, false, nil, nil
			},
			code: v1alpha1.ErrorCancelled, message: "cancelled by spec.cancel before the tool was started"},
		{reason: "deleted, and kept by a finalizer",
			change: func(_ *testing.T, a *Admission) { a.Call.DeletionTimestamp = &metav1.Time{} },
			code:   v1alpha1.ErrorCancelled, message: "cancelled by the deletion of the call before the tool was started"},

		// 2. who asked
		{reason: "stamping is not proven: the call waits, unjudged",
			change: func(_ *testing.T, a *Admission) { a.Stamping = Stamping{Message: "the binding is missing"} },
			wait:   "Pending", message: "the binding is missing", after: time.Second},
		{reason: "not proven comes before a Tool that is not there",
			change: func(_ *testing.T, a *Admission) { a.Stamping.Proven, a.Tools = false, nil }, wait: "Pending", after: time.Second},
		{reason: "not proven: the last moment of the wait",
			change: func(_ *testing.T, a *Admission) { a.Stamping.Proven = false; at(a, 10*time.Minute) }, wait: "Pending", after: time.Second},
		{reason: "not proven: the wait has an end, and it is our fault",
			change: func(_ *testing.T, a *Admission) {
				a.Stamping = Stamping{Message: "the binding is missing"}
				at(a, 10*time.Minute+time.Second)
			},
			code: v1alpha1.ErrorInternal, retryable: true, message: "for 10m0s it could not be proven that the API server stamps who asked and who approved: the binding is missing"},
		{reason: "created 10 s after the last change: old enough to be sure",
			change: func(_ *testing.T, a *Admission) { a.Stamping.LastChange = created.Add(-10 * time.Second) }, wait: "Starting", judged: true, runs: true},
		{reason: "created less than 10 s after the last change",
			change: func(_ *testing.T, a *Admission) { a.Stamping.LastChange = created.Add(-10*time.Second + 1) },
			code:   v1alpha1.ErrorToolNotAllowed, message: "created while stamping was not proven (less than 10s after the last change of Callgate's admission policies): create it again", judged: true},
		{reason: "the policies changed after it was created, before it was judged",
			change: func(_ *testing.T, a *Admission) { a.Stamping.LastChange = created.Add(time.Second) },
			code:   v1alpha1.ErrorToolNotAllowed, message: "create it again", judged: true},
		{reason: "the 10 s rule comes before a Tool that is not there",
			change: func(_ *testing.T, a *Admission) { a.Stamping.LastChange, a.Tools, a.Confirmed = created, nil, true },
			code:   v1alpha1.ErrorToolNotAllowed, message: "create it again", judged: true},
		{reason: "judged before: a later change does not revoke it",
			change: func(t *testing.T, a *Admission) {
				a.Call.Status.ArgsDigest = digestOf(t, `{"text":"hello"}`)
				a.Stamping.LastChange = created.Add(time.Second)
			}, wait: "Starting", judged: true, runs: true},
		{reason: "judged before: nor does a proof that fails now",
			change: func(t *testing.T, a *Admission) {
				a.Call.Status.ArgsDigest = digestOf(t, `{"text":"hello"}`)
				a.Stamping = Stamping{}
				at(a, time.Hour)
			}, wait: "Starting", judged: true, runs: true},
		{reason: "judged before, and the same value written another way",
			change: func(t *testing.T, a *Admission) {
				a.Call.Status.ArgsDigest = digestOf(t, ` { "n" : 1.0, "text" : "hell\u006f" }`)
				a.Call.Spec.Args.Raw = []byte(`{"text":"hello","n":1}`)
			}, wait: "Starting", judged: true, runs: true},
		{reason: "judged before, and the arguments are others now",
			change: func(t *testing.T, a *Admission) { a.Call.Status.ArgsDigest = digestOf(t, `{"text":"bye"}`) },
			code:   v1alpha1.ErrorToolNotAllowed, message: "spec.args changed after the call was judged", judged: true},
		{reason: "nobody asked", change: func(_ *testing.T, a *Admission) { a.Call.Spec.Requester = nil },
			code: v1alpha1.ErrorToolNotAllowed, message: "spec.requester is empty", judged: true},
		{reason: "nobody asked, judged before: no panic, no right",
			change: func(t *testing.T, a *Admission) {
				a.Call.Status.ArgsDigest, a.Call.Spec.Requester = digestOf(t, `{"text":"hello"}`), nil
			}, code: v1alpha1.ErrorToolNotAllowed, message: "spec.requester is empty", judged: true},
		{reason: "an empty name is nobody", change: func(_ *testing.T, a *Admission) { a.Call.Spec.Requester.Username = "" },
			code: v1alpha1.ErrorToolNotAllowed, message: "spec.requester is empty", judged: true},

		// 3. lookup
		{reason: "no Tool in the cache: ask the API server first", change: func(_ *testing.T, a *Admission) { a.Tools = nil }, act: ActConfirm, wait: "Pending", judged: true},
		{reason: "no Tool, however old the call is: ask first", change: func(_ *testing.T, a *Admission) { a.Tools = nil; at(a, time.Hour) }, act: ActConfirm, wait: "Pending", judged: true},
		{reason: "no Tool, confirmed", change: func(_ *testing.T, a *Admission) { a.Tools, a.Confirmed = nil, true },
			code: v1alpha1.ErrorToolNotFound, message: `there is no Tool with functionName "echo" in namespace "tools": kubectl get tools -n tools lists them`, judged: true},
		{reason: "no Tool of that object name, in the call's own namespace",
			change: func(_ *testing.T, a *Admission) {
				a.Call.Spec.ToolRef, a.Tools, a.Confirmed = v1alpha1.ToolReference{Name: "echo"}, nil, true
			},
			code: v1alpha1.ErrorToolNotFound, message: `name "echo" in namespace "agents"`, judged: true},
		{reason: "past the deadline a Tool that is not there is still not there, not unavailable",
			change: func(_ *testing.T, a *Admission) { a.Tools, a.Call.Spec.DeadlineSeconds = nil, 1 }, act: ActConfirm, wait: "Pending", judged: true},

		// 4. authorize
		{reason: "no policy, a young call: ask the API server first", change: func(_ *testing.T, a *Admission) { a.Policies = nil }, act: ActConfirm, wait: "Pending", judged: true},
		{reason: "no policy, the last young moment", change: func(_ *testing.T, a *Admission) { a.Policies = nil; at(a, 5*time.Second-1) }, act: ActConfirm, wait: "Pending", judged: true},
		{reason: "no policy, five seconds old: the cache has had its time", change: func(_ *testing.T, a *Admission) { a.Policies = nil; at(a, 5*time.Second) },
			code: v1alpha1.ErrorToolNotAllowed, message: "no policy allows system:serviceaccount:agents:assistant to call Tool tools/echo", judged: true},
		{reason: "no policy, confirmed", change: func(_ *testing.T, a *Admission) { a.Policies, a.Confirmed = nil, true },
			code: v1alpha1.ErrorToolNotAllowed, message: "no policy allows", judged: true},
		{reason: "denied by a rule: nothing to confirm",
			change: func(_ *testing.T, a *Admission) {
				a.Policies = append(a.Policies, testPolicy("never", v1alpha1.EffectDeny))
			},
			code: v1alpha1.ErrorToolNotAllowed, message: `ToolPolicy tools/never, rule "all" (Deny)`, judged: true},
		{reason: "an obligation that this version cannot meet refuses",
			change: func(_ *testing.T, a *Admission) {
				a.Policies = append(a.Policies, testPolicy("approve", v1alpha1.EffectRequireApproval))
			},
			code: v1alpha1.ErrorToolNotAllowed, message: "RequireApproval", judged: true},
		{reason: "who may not call learns nothing of the Tool's state or schema",
			change: func(_ *testing.T, a *Admission) {
				a.Policies, a.Confirmed, a.Call.Spec.Args.Raw = nil, true, []byte(`{"text":1}`)
				condition(a, metav1.ConditionFalse, 3)
			}, code: v1alpha1.ErrorToolNotAllowed, message: "no policy allows", judged: true},

		// 5. readiness
		{reason: "not Ready: the condition is named", change: func(_ *testing.T, a *Admission) { condition(a, metav1.ConditionFalse, 3) },
			code: v1alpha1.ErrorToolUnavailable, message: "Tool tools/echo is not Ready: InvalidSchema: spec.inputSchema: at /type: no such type", judged: true},
		{reason: "not Ready comes before the arguments",
			change: func(_ *testing.T, a *Admission) {
				condition(a, metav1.ConditionFalse, 3)
				a.Call.Spec.Args.Raw = []byte(`{"text":1}`)
			},
			code: v1alpha1.ErrorToolUnavailable, message: "not Ready", judged: true},
		{reason: "Ready of an older generation says nothing", change: func(_ *testing.T, a *Admission) { condition(a, metav1.ConditionTrue, 2) },
			wait: "Pending", message: "waiting for Tool tools/echo to become Ready", after: 118 * time.Second, judged: true},
		{reason: "not Ready of an older generation says nothing either", change: func(_ *testing.T, a *Admission) { condition(a, metav1.ConditionFalse, 2) },
			wait: "Pending", after: 118 * time.Second, judged: true},
		{reason: "Ready is Unknown", change: func(_ *testing.T, a *Admission) { condition(a, metav1.ConditionUnknown, 3) }, wait: "Pending", after: 118 * time.Second, judged: true},
		{reason: "no condition yet", change: func(_ *testing.T, a *Admission) { a.Tools[0].Status.Conditions = nil }, wait: "Pending", after: 118 * time.Second, judged: true},
		{reason: "the wait is bounded by the Tool's own startDeadlineSeconds",
			change: func(_ *testing.T, a *Admission) {
				a.Tools[0].Status.Conditions = nil
				a.Tools[0].Spec.StartDeadlineSeconds = 30
			},
			wait: "Pending", after: 28 * time.Second, judged: true},
		{reason: "and then it is over", change: func(_ *testing.T, a *Admission) { a.Tools[0].Status.Conditions = nil; at(a, 2*time.Minute) },
			code: v1alpha1.ErrorToolUnavailable, retryable: true, message: "did not say within startDeadlineSeconds (120) whether Tool tools/echo is Ready", judged: true},
		{reason: "unless the Tool was changed since: then the wait begins with that",
			change: func(_ *testing.T, a *Admission) {
				a.Tools[0].Status.Conditions, a.ToolSeen = nil, created.Add(time.Hour)
				at(a, time.Hour+2*time.Second)
			},
			wait: "Pending", after: 118 * time.Second, judged: true},
		{reason: "and is over, too",
			change: func(_ *testing.T, a *Admission) {
				a.Tools[0].Status.Conditions, a.ToolSeen = nil, created.Add(time.Hour)
				at(a, time.Hour+2*time.Minute)
			},
			code: v1alpha1.ErrorToolUnavailable, retryable: true, message: "did not say within startDeadlineSeconds (120)", judged: true},
		{reason: "a Tool that is being deleted takes no new calls",
			change: func(_ *testing.T, a *Admission) { a.Tools[0].DeletionTimestamp = &metav1.Time{Time: created} },
			code:   v1alpha1.ErrorToolNotFound, message: "Tool tools/echo is being deleted", judged: true},
		{reason: "two Tools of one function name: neither, whatever the cache's order",
			change: func(_ *testing.T, a *Admission) { a.Tools = []v1alpha1.Tool{testTool("echo2"), testTool("echo1")} },
			code:   v1alpha1.ErrorToolUnavailable, message: `2 Tools in namespace "tools" have functionName "echo": name one of them with toolRef.name`, judged: true},

		// 6. validate
		{reason: "arguments that do not fit, with their pointer", change: func(_ *testing.T, a *Admission) { a.Call.Spec.Args.Raw = []byte(`{"text":"x","n":"many"}`) },
			code: v1alpha1.ErrorInvalidArguments, message: "/n", judged: true},
		{reason: "no arguments at all are {}", change: func(_ *testing.T, a *Admission) { a.Call.Spec.Args = nil },
			code: v1alpha1.ErrorInvalidArguments, message: "text", judged: true},
		{reason: "a number past int64, whatever the schema says", change: func(_ *testing.T, a *Admission) { a.Call.Spec.Args.Raw = []byte(`{"text":"x","n":1e30}`) },
			code: v1alpha1.ErrorInvalidArguments, message: "send it as a string", judged: true},
		{reason: "nested 10,000 deep: refused, and it has no digest of its own",
			change: func(_ *testing.T, a *Admission) {
				a.Call.Spec.Args.Raw = []byte(`{"text":` + strings.Repeat("[", 10000) + strings.Repeat("]", 10000) + `}`)
			}, code: v1alpha1.ErrorInvalidArguments, message: "spec.args", judged: true},
		{reason: "300 KiB", change: func(_ *testing.T, a *Admission) {
			a.Call.Spec.Args.Raw = []byte(`{"text":"` + strings.Repeat("x", 300<<10) + `"}`)
		},
			code: v1alpha1.ErrorInvalidArguments, message: "at most 262144", judged: true},
		{reason: "not an object", change: func(_ *testing.T, a *Admission) { a.Call.Spec.Args.Raw = []byte(`[1]`) },
			code: v1alpha1.ErrorInvalidArguments, message: "not a JSON object", judged: true},
		{reason: "an argument that would be read as an option", change: func(_ *testing.T, a *Admission) { a.Call.Spec.Args.Raw = []byte(`{"text":"--help"}`) },
			code: v1alpha1.ErrorInvalidArguments, message: `begins with "-"`, judged: true},
		{reason: "a NUL in the command", change: func(_ *testing.T, a *Admission) { a.Call.Spec.Args.Raw = []byte(`{"text":"a\u0000b"}`) },
			code: v1alpha1.ErrorInvalidArguments, message: "NUL", judged: true},
		{reason: "an element longer than the kernel takes",
			change: func(_ *testing.T, a *Admission) {
				a.Call.Spec.Args.Raw = []byte(`{"text":"` + strings.Repeat("x", 131072) + `"}`)
			},
			code: v1alpha1.ErrorInvalidArguments, message: "at most 131071", judged: true},
		{reason: "a schema that does not compile here though the Tool is Ready: wait, bounded",
			change: func(_ *testing.T, a *Admission) { a.InputSchema = nil }, wait: "Pending", after: 118 * time.Second, judged: true},
		{reason: "and that is over, too", change: func(_ *testing.T, a *Admission) { a.InputSchema = nil; at(a, 2*time.Minute) },
			code: v1alpha1.ErrorToolUnavailable, retryable: true, message: "startDeadlineSeconds (120)", judged: true},

		// the call's own deadline
		{reason: "a deadline shortens a wait",
			change: func(_ *testing.T, a *Admission) { a.Tools[0].Status.Conditions = nil; a.Call.Spec.DeadlineSeconds = 10 },
			wait:   "Pending", after: 8 * time.Second, judged: true},
		{reason: "the deadline of what may run is left to Start, which knows what the sandbox waits for",
			change: func(_ *testing.T, a *Admission) { a.Call.Spec.DeadlineSeconds = 10; at(a, 10*time.Second) },
			wait:   "Starting", judged: true, runs: true},
		{reason: "a deadline that is over ends with the code and name of the wait",
			change: func(_ *testing.T, a *Admission) {
				a.Tools[0].Status.Conditions = nil
				a.Call.Spec.DeadlineSeconds = 10
				at(a, 10*time.Second)
			},
			code: v1alpha1.ErrorToolUnavailable, retryable: true,
			message: "deadlineSeconds (10) passed before the tool started; it was Pending (waiting for Tool tools/echo to become Ready)", judged: true},
		{reason: "a deadline that is over does not hide why the call is refused",
			change: func(_ *testing.T, a *Admission) {
				a.Call.Spec.DeadlineSeconds, a.Call.Spec.Args.Raw = 10, []byte(`{}`)
				at(a, time.Minute)
			}, code: v1alpha1.ErrorInvalidArguments, message: "text", judged: true},
	} {
		t.Run(tc.reason, func(t *testing.T) {
			a := admissible(t)
			tc.change(t, &a)
			got := Admit(a)
			message := got.Message
			if got.Ended() != (tc.code != "") {
				t.Fatalf("ended is %v: %+v", got.Ended(), got.Result)
			}
			if got.Ended() {
				r := got.Result
				if r.ErrorCode != tc.code || *r.Retryable != tc.retryable || *r.OK || r.Data != nil {
					t.Errorf("the end is %s, retryable %v, want %s, %v", r.ErrorCode, *r.Retryable, tc.code, tc.retryable)
				}
				message = r.Message
			} else if got.Act != tc.act || got.Reason != tc.wait || got.After != tc.after {
				t.Errorf("the wait is act %q, reason %q, after %s; want %q, %q, %s", got.Act, got.Reason, got.After, tc.act, tc.wait, tc.after)
			}
			if !strings.Contains(message, tc.message) {
				t.Errorf("message %q, want %q in it", message, tc.message)
			}
			if (got.ArgsDigest != "") != tc.judged {
				t.Errorf("digest %q, judged should be %v", got.ArgsDigest, tc.judged)
			}
			if tc.runs != (got.Command != nil) && !got.Ended() {
				t.Errorf("command %q", got.Command)
			}
		})
	}
}

func TestAdmitSaysWhatItFound(t *testing.T) {
	a := admissible(t)
	got := Admit(a)
	if want := digestOf(t, `{"text":"hello"}`); got.ArgsDigest != want {
		t.Errorf("digest %q, want %q", got.ArgsDigest, want)
	}
	if got.Tool == nil || got.Tool.Name != "echo" || strings.Join(got.Command, " ") != "echo hello" {
		t.Errorf("Tool %v, command %q", got.Tool, got.Command)
	}
	d := got.Decision
	if d == nil || !*d.Allowed || d.DecisiveRule == nil || d.DecisiveRule.Policy != "tools/support" || len(d.MatchedRules) != 1 {
		t.Errorf("decision %+v", d)
	}

	a.Policies, a.Confirmed = nil, true
	if d := Admit(a).Decision; d == nil || *d.Allowed || d.DecisiveRule != nil {
		t.Errorf("the decision of a default refusal is %+v", d)
	}
}

// What stands in the status must not be lost to a call that ends early.
func TestAdmitKeepsWhatWasJudged(t *testing.T) {
	for reason, change := range map[string]func(*Admission){
		"cancelled":         func(a *Admission) { a.Call.Spec.Cancel = true },
		"arguments changed": func(a *Admission) { a.Call.Spec.Args.Raw = []byte(`{"text":"other"}`) },
		"the Tool is gone":  func(a *Admission) { a.Tools, a.Confirmed = nil, true },
	} {
		a := admissible(t)
		a.Call.Status.ArgsDigest = digestOf(t, `{"text":"hello"}`)
		a.Call.Status.Decision = &v1alpha1.PolicyDecision{}
		want := a.Call.Status.ArgsDigest
		change(&a)
		if got := Admit(a); got.ArgsDigest != want || got.Decision == nil || !got.Ended() {
			t.Errorf("%s: digest %q, want %q; decision %v; ended %v", reason, got.ArgsDigest, want, got.Decision, got.Ended())
		}
	}
}

func TestTwoToolsOfOneNameAreJudgedTheSameInAnyOrder(t *testing.T) {
	one, two := testTool("echo1"), testTool("echo2")
	onlyOne := policy.Compile("tools", "support", &v1alpha1.ToolPolicySpec{
		Subjects: []v1alpha1.Subject{{Kind: v1alpha1.SubjectServiceAccount, Namespace: "agents", Name: "assistant"}},
		Rules:    []v1alpha1.PolicyRule{{Name: "one", Effect: v1alpha1.EffectAllow, Tools: v1alpha1.ToolSelector{Names: []string{"echo1"}}}},
	})
	var ends []string
	for _, tools := range [][]v1alpha1.Tool{{one, two}, {two, one}} {
		a := admissible(t)
		a.Tools, a.Policies, a.Confirmed = tools, []*policy.Policy{onlyOne}, true
		got := Admit(a)
		if !got.Ended() || got.Command != nil {
			t.Fatalf("order %s, %s: one of the two would run", tools[0].Name, tools[1].Name)
		}
		ends = append(ends, got.Tool.Name+": "+got.Result.Message)
	}
	if ends[0] != ends[1] {
		t.Errorf("the order of the cache decides:\n%s\n%s", ends[0], ends[1])
	}
}
