package controllers_test

import (
	"fmt"
	"strings"
	"testing"

	apimeta "k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"callgate.dev/callgate/api/v1alpha1"
)

func TestLookup(t *testing.T) {
	t.Parallel()
	tools := openNamespace(t)
	allow(t, tools)
	newTool(t, tools, "by-name", func(s *v1alpha1.ToolSpec) { s.FunctionName = "by_function" })
	ref := func(r v1alpha1.ToolReference) func(*v1alpha1.ToolCallSpec) {
		return func(s *v1alpha1.ToolCallSpec) { s.ToolRef = r }
	}
	for _, test := range []struct {
		reason    string
		namespace string
		ref       v1alpha1.ToolReference
		found     bool
		message   string
	}{
		{reason: "the object's name, in another namespace", namespace: agentsNamespace,
			ref: v1alpha1.ToolReference{Namespace: tools, Name: "by-name"}, found: true},
		{reason: "the function name, in another namespace", namespace: agentsNamespace,
			ref: v1alpha1.ToolReference{Namespace: tools, FunctionName: "by_function"}, found: true},
		{reason: "without a namespace, the call's own", namespace: tools,
			ref: v1alpha1.ToolReference{FunctionName: "by_function"}, found: true},
		{reason: "the object's name is not its function name once it has one", namespace: agentsNamespace,
			ref: v1alpha1.ToolReference{Namespace: tools, FunctionName: "by-name"}, message: `functionName "by-name"`},
		{reason: "a function name is not an object's name", namespace: agentsNamespace,
			ref: v1alpha1.ToolReference{Namespace: tools, Name: "by_function"}, message: `name "by_function"`},
		{reason: "without a namespace another one is not searched", namespace: agentsNamespace,
			ref: v1alpha1.ToolReference{Name: "by-name"}, message: `namespace "agents"`},
		{reason: "a namespace that does not exist holds no Tool", namespace: agentsNamespace,
			ref: v1alpha1.ToolReference{Namespace: "nowhere", Name: "by-name"}, message: `namespace "nowhere"`},
	} {
		t.Run(test.reason, func(t *testing.T) {
			t.Parallel()
			call := callObject(tools, "", ref(test.ref))
			call.Namespace = test.namespace
			propose(t, agent, call)
			if test.found {
				jobOf(t, call)
				return
			}
			want{code: v1alpha1.ErrorToolNotFound, message: []string{test.message, "kubectl get tools"}}.check(t, waitForEnd(t, call))
		})
	}
}

// kubectl apply -f dir/ creates Tool, policy and call within milliseconds: the
// call must not lose against the controller's caches.
func TestAppliedTogether(t *testing.T) {
	t.Parallel()
	tools := openNamespace(t)
	var calls []*v1alpha1.ToolCall
	for i := range 50 {
		name := fmt.Sprintf("tool-%d", i)
		create(t, toolObject(tools, name))
		create(t, policyObject(tools, name, v1alpha1.EffectAllow, name))
		calls = append(calls, newCall(t, tools, name))
	}
	for i, call := range calls {
		eventually(t, fmt.Sprintf("the sandbox of call %d", i), func() (bool, any) {
			now := &v1alpha1.ToolCall{}
			if err := admin.Get(t.Context(), keyOf(call), now); err != nil {
				return false, err
			}
			if complete(now) {
				t.Fatalf("call %d ended: %s", i, show(now.Status.Result))
			}
			return get(t, jobKey(tools, call), &jobType{}), now.Status
		})
		// Not left to the end of the suite: they are many.
		remove(t, call.DeepCopy())
	}
}

func TestPolicies(t *testing.T) {
	t.Parallel()
	tools := openNamespace(t)
	newTool(t, tools, "free")
	newTool(t, tools, "forbidden")
	newTool(t, tools, "unnamed")
	newTool(t, tools, "grouped")
	newTool(t, tools, "account")
	create(t, policyObject(tools, "a-allow", v1alpha1.EffectAllow, "free", "forbidden"))
	deny := policyObject(tools, "b-deny", v1alpha1.EffectDeny, "forbidden")
	deny.Spec.Rules[0].Message = "ask the on-call"
	create(t, deny)
	group := policyObject(tools, "c-group", v1alpha1.EffectAllow, "grouped")
	group.Spec.Subjects = []v1alpha1.Subject{{Kind: v1alpha1.SubjectGroup, Name: agentGroup}}
	create(t, group)
	account := policyObject(tools, "d-account", v1alpha1.EffectAllow, "account")
	account.Spec.Subjects = []v1alpha1.Subject{{Kind: v1alpha1.SubjectServiceAccount, Namespace: "agents", Name: "worker"}}
	create(t, account)
	rule := func(policy string, effect v1alpha1.RuleEffect) *v1alpha1.RuleReference {
		return &v1alpha1.RuleReference{Policy: tools + "/" + policy, Rule: "rule", Effect: effect}
	}
	for _, test := range []struct {
		reason   string
		tool     string
		who      string
		decisive *v1alpha1.RuleReference
		matched  int
		message  []string // empty means allowed
	}{
		{reason: "an Allow rule that names the Tool and the user", tool: "free", decisive: rule("a-allow", v1alpha1.EffectAllow), matched: 1},
		{reason: "an Allow rule by group", tool: "grouped", decisive: rule("c-group", v1alpha1.EffectAllow), matched: 1},
		{reason: "an Allow rule by ServiceAccount", tool: "account", who: "worker", decisive: rule("d-account", v1alpha1.EffectAllow), matched: 1},
		{reason: "Deny beats Allow", tool: "forbidden", decisive: rule("b-deny", v1alpha1.EffectDeny), matched: 2,
			message: []string{tools + "/b-deny", "ask the on-call"}},
		{reason: "no rule, no call", tool: "unnamed", message: []string{"no policy allows", agentName, "Allow rule"}},
		{reason: "somebody else's rule", tool: "account", message: []string{"no policy allows", agentName, "Allow rule"}},
	} {
		t.Run(test.reason, func(t *testing.T) {
			t.Parallel()
			who := agent
			if test.who == "worker" {
				who = worker
			}
			call := propose(t, who, callObject(tools, test.tool))
			if len(test.message) > 0 {
				call = waitForEnd(t, call)
				want{code: v1alpha1.ErrorToolNotAllowed, message: test.message}.check(t, call)
				if get(t, jobKey(tools, call), &jobType{}) {
					t.Error("a refused call has a sandbox")
				}
			} else {
				waitForReason(t, call, v1alpha1.ReasonStarting)
				call = waitForCall(t, call, "a decision", func(call *v1alpha1.ToolCall) bool { return call.Status.Decision != nil })
			}
			d := call.Status.Decision
			if d == nil || *d.Allowed != (len(test.message) == 0) || len(d.MatchedRules) != test.matched ||
				!ptr.Equal(d.DecisiveRule, test.decisive) {
				t.Errorf("status.decision is %s, want decisive %s of %d matched", show(d), show(test.decisive), test.matched)
			}
			if call.Status.ToolUID == "" || call.Status.ToolGeneration != 1 || call.Status.ArgsDigest == "" {
				t.Errorf("status does not say what was decided about: %s", show(call.Status))
			}
		})
	}
}

// A rule that cannot be read counts against the call, and its policy says so.
func TestBrokenPolicy(t *testing.T) {
	t.Parallel()
	tools := openNamespace(t)
	newTool(t, tools, "tool")
	good := allow(t, tools)
	broken := policyObject(tools, "broken", v1alpha1.EffectDeny)
	broken.Spec.Rules[0].Tools = v1alpha1.ToolSelector{Selector: &metav1.LabelSelector{
		MatchExpressions: []metav1.LabelSelectorRequirement{{Key: "env", Operator: "Contains", Values: []string{"prod"}}}}}
	create(t, broken)
	for policy, reason := range map[*v1alpha1.ToolPolicy]string{good: v1alpha1.ReasonReady, broken: v1alpha1.ReasonInvalidRule} {
		eventually(t, "policy "+policy.Name+" "+reason, func() (bool, any) {
			if !get(t, keyOf(policy), policy) {
				return false, "no policy"
			}
			c := apimeta.FindStatusCondition(policy.Status.Conditions, v1alpha1.ConditionReady)
			return c != nil && c.Reason == reason && (reason == v1alpha1.ReasonReady || contains(c.Message, "spec.rules[0].tools.selector")), policy.Status
		})
	}
	want{code: v1alpha1.ErrorToolNotAllowed, message: []string{tools + "/broken"}}.check(t, waitForEnd(t, newCall(t, tools, "tool")))
}

// The decision is made again right before the call is sent.
func TestPolicyRemovedWhileStarting(t *testing.T) {
	t.Parallel()
	tools := openNamespace(t)
	policy := allow(t, tools)
	newTool(t, tools, "tool")
	call := newCall(t, tools, "tool")
	pod := podOf(t, call)
	waitForReason(t, call, v1alpha1.ReasonStarting)
	remove(t, policy)
	call = waitForEnd(t, call)
	want{code: v1alpha1.ErrorToolNotAllowed, message: []string{"no policy allows"}}.check(t, call)
	if len(call.Status.Attempts) > 0 {
		t.Errorf("sent to pod %s: %s", pod.Name, show(call.Status.Attempts))
	}
	waitForNoSandbox(t, call)
}

func TestArguments(t *testing.T) {
	t.Parallel()
	tools := openNamespace(t)
	allow(t, tools)
	newTool(t, tools, "tool", func(s *v1alpha1.ToolSpec) { s.Container.Command = []string{"/tool", "--text=$(args.text)"} })
	deep := func(n int) string { return `{"any":` + strings.Repeat("[", n) + strings.Repeat("]", n) + `}` }
	for _, test := range []struct {
		reason  string
		args    string
		message []string
		refused string // by the API server
	}{
		{reason: "a wrong type has its pointer", args: `{"n":"seven"}`, message: []string{"/n", "integer"}},
		{reason: "a name that the schema lacks has its pointer", args: `{"more":1}`, message: []string{"more"}},
		{reason: "past int64 a number is no longer what was sent", args: `{"n":12345678901234567890}`, message: []string{"/n", "string"}},
		{reason: "also below, and in a value of any type", args: `{"any":[1,-98765432109876543210]}`, message: []string{"/any/1", "string"}},
		{reason: "a NUL ends an argument of a program", args: `{"text":"a\u0000b"}`, message: []string{"NUL"}},
		{reason: "300 KiB, the limit is 256", args: `{"text":"` + strings.Repeat("x", 300<<10) + `"}`, message: []string{"262144"}},
		{reason: "5,000 levels deep", args: deep(5000), message: []string{"512"}},
		{reason: "10,000 levels deep are refused before they are stored", args: deep(10000), refused: "depth"},
	} {
		t.Run(test.reason, func(t *testing.T) {
			t.Parallel()
			call := callObject(tools, "tool", withArgs(test.args))
			if test.refused != "" {
				err := agent.Create(t.Context(), call)
				if err == nil || !strings.Contains(err.Error(), test.refused) {
					t.Errorf("create: %v, want an error that says %q", err, test.refused)
				}
				return
			}
			propose(t, agent, call)
			want{code: v1alpha1.ErrorInvalidArguments, message: test.message}.check(t, waitForEnd(t, call))
			if get(t, jobKey(tools, call), &jobType{}) {
				t.Error("a refused call has a sandbox")
			}
		})
	}
	// The controller is alive and takes the next one.
	jobOf(t, newCall(t, tools, "tool"))
}
