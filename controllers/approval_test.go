package controllers_test

import (
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"callgate.dev/callgate/api/v1alpha1"
)

// A call that needs approval says at once whom it waits for and until when, has
// no sandbox, and runs when it has what it waits for.
func TestApproval(t *testing.T) {
	t.Parallel()
	tools := guarded(t, expireAfter(600))
	frida := approver(t, "frida", finance)
	before := time.Now()
	call := newCall(t, tools, "tool")
	call = awaiting(t, call)
	if states := statesOf(t, call); len(states) > 2 || len(states[0].Status.Conditions) > 0 {
		t.Errorf("something else was written before AwaitingApproval: %s", show(states))
	}
	if len(call.Status.Approvals) != 1 {
		t.Fatalf("status.approvals is %s", show(call.Status.Approvals))
	}
	a := call.Status.Approvals[0]
	if a.Policy != tools+"/ask" || a.Rule != "rule" || a.RequiredApprovals != 1 || len(a.Granted) > 0 || !slices.Equal(a.Approvers, groups(finance)) {
		t.Errorf("status.approvals is %s", show(a))
	}
	if d := a.ExpireTime.Sub(before); d < 599*time.Second || d > 602*time.Second+time.Since(before) {
		t.Errorf("it expires %s after its creation, want 600 s", d)
	}
	if call.Status.ApprovalDigest == "" {
		t.Error("no approvalDigest")
	}
	approvedIs(t, call, metav1.ConditionUnknown, v1alpha1.ReasonAwaitingApproval)
	message := waitForReason(t, call, v1alpha1.ReasonAwaitingApproval)
	for _, part := range []string{"0 of 1", "Group " + finance, "policy " + tools + "/ask", a.ExpireTime.UTC().Format(time.RFC3339)} {
		if !contains(message, part) {
			t.Errorf("message %q does not say %q", message, part)
		}
	}
	noSandbox(t, call)

	approve(t, frida, call)
	call = runs(t, call)
	approvedIs(t, call, metav1.ConditionTrue, v1alpha1.ReasonApproved)
	if got := call.Status.Approvals; len(got) != 1 || !slices.Equal(got[0].Granted, []string{"frida"}) || !got[0].ExpireTime.Equal(&a.ExpireTime) {
		t.Errorf("status.approvals of a call that ran: %s", show(got))
	}
}

// Who may say something, and whose word it is, decide the role and the API
// server; whether it counts decide the rules.
func TestApproverIsStamped(t *testing.T) {
	t.Parallel()
	tools := guarded(t)
	call := awaiting(t, newCall(t, tools, "tool"))
	for name, who := range map[string]client.Client{
		"somebody of finance without the role": somebody(t, "frida", finance),
		"an agent":                             agent,
	} {
		if err := who.Create(t.Context(), approvalObject(call, v1alpha1.DecisionApprove)); !apierrors.IsForbidden(err) {
			t.Errorf("%s: want 403, got %v", name, err)
		}
	}
	forged := approvalObject(call, v1alpha1.DecisionApprove)
	forged.Spec.Approver = &v1alpha1.Requester{Username: "frida", Groups: []string{finance}}
	says(t, approver(t, "mallory"), forged)
	if forged.Spec.Approver.Username != "mallory" || slices.Contains(forged.Spec.Approver.Groups, finance) {
		t.Fatalf("the approver is %s", show(forged.Spec.Approver))
	}
	doesNotCount(t, call, forged, "its approver is not among those who may approve")
	// Nor does a no of somebody who is not asked.
	no := says(t, approver(t, "mallory"), approvalObject(call, v1alpha1.DecisionDeny))
	doesNotCount(t, call, no, "its approver is not among those who may approve")

	forged = approvalObject(call, v1alpha1.DecisionApprove)
	forged.Spec.Approver = &v1alpha1.Requester{Username: "mallory"}
	says(t, approver(t, "gustav", finance), forged)
	call = runs(t, call)
	if got := call.Status.Approvals[0].Granted; !slices.Equal(got, []string{"gustav"}) {
		t.Errorf("granted is %v, want [gustav]", got)
	}
}

// Each rule that matches must be met, by different persons, and never by the
// one who asks.
func TestApprovalRules(t *testing.T) {
	t.Parallel()
	frida := v1alpha1.Subject{Kind: v1alpha1.SubjectUser, Name: "frida"}
	robot := v1alpha1.Subject{Kind: v1alpha1.SubjectServiceAccount, Namespace: "ops", Name: "robot"}
	type step struct {
		who     []string            // name and groups
		granted map[string][]string // by policy, after it
		why     string              // why it does not count
	}
	for _, test := range []struct {
		reason string
		rules  map[string][]func(*v1alpha1.RuleApproval)
		steps  []step // after the last one the call runs
	}{
		{reason: "two rules, two persons", rules: map[string][]func(*v1alpha1.RuleApproval){"a": {}, "b": {by(groups(onCall)...)}}, steps: []step{
			{who: []string{"frida", finance}, granted: map[string][]string{"a": {"frida"}, "b": nil}},
			{who: []string{"olga", onCall}, granted: map[string][]string{"a": {"frida"}, "b": {"olga"}}},
		}},
		{reason: "one approval counts for every rule that lists its approver", rules: map[string][]func(*v1alpha1.RuleApproval){"a": {}, "b": {by(groups(onCall)...)}}, steps: []step{
			{who: []string{"frida", finance, onCall}, granted: map[string][]string{"a": {"frida"}, "b": {"frida"}}},
		}},
		{reason: "a person counts once per rule", rules: map[string][]func(*v1alpha1.RuleApproval){"a": {required(2)}}, steps: []step{
			{who: []string{"frida", finance}, granted: map[string][]string{"a": {"frida"}}},
			{who: []string{"frida", finance, onCall}, granted: map[string][]string{"a": {"frida"}}},
			{who: []string{"gustav", finance}, granted: map[string][]string{"a": {"frida", "gustav"}}},
		}},
		{reason: "never the requester", rules: map[string][]func(*v1alpha1.RuleApproval){"a": {by(append(groups(finance), v1alpha1.Subject{Kind: v1alpha1.SubjectUser, Name: agentName})...)}}, steps: []step{
			{who: []string{agentName, finance}, why: "its approver created the call", granted: map[string][]string{"a": nil}},
			{who: []string{"frida", finance}, granted: map[string][]string{"a": {"frida"}}},
		}},
		{reason: "users and ServiceAccounts, exactly", rules: map[string][]func(*v1alpha1.RuleApproval){"a": {by(frida, robot), required(2)}}, steps: []step{
			{who: []string{"Frida", finance}, why: "its approver is not among those who may approve", granted: map[string][]string{"a": nil}},
			{who: []string{"system:serviceaccount:agents:robot"}, why: "its approver is not among those who may approve", granted: map[string][]string{"a": nil}},
			{who: []string{"system:serviceaccount:ops:robot"}, granted: map[string][]string{"a": {"system:serviceaccount:ops:robot"}}},
			{who: []string{"frida"}, granted: map[string][]string{"a": {"frida", "system:serviceaccount:ops:robot"}}},
		}},
	} {
		t.Run(test.reason, func(t *testing.T) {
			t.Parallel()
			tools := openNamespace(t)
			allow(t, tools)
			newTool(t, tools, "tool")
			for name, changes := range test.rules {
				ask(t, tools, name, changes...)
			}
			call := awaiting(t, newCall(t, tools, "tool"))
			for i, step := range test.steps {
				a := approve(t, approver(t, step.who[0], step.who[1:]...), call)
				if step.why != "" {
					doesNotCount(t, call, a, step.why)
				}
				for policy, who := range step.granted {
					grantedTo(t, call, policy, who...)
				}
				if i < len(test.steps)-1 {
					awaiting(t, call)
					noSandbox(t, call)
				}
			}
			approvedIs(t, runs(t, call), metav1.ConditionTrue, v1alpha1.ReasonApproved)
		})
	}
}

// The first no ends the call, whatever others said before; what comes after it
// changes nothing.
func TestDenial(t *testing.T) {
	t.Parallel()
	tools := guarded(t, required(2))
	call := awaiting(t, newCall(t, tools, "tool"))
	approve(t, approver(t, "frida", finance), call)
	grantedTo(t, call, "ask", "frida")
	no := approvalObject(call, v1alpha1.DecisionDeny)
	no.Spec.ToolCallRef.ApprovalDigest = "" // a no needs none
	no.Spec.Reason = "not this month"
	says(t, approver(t, "gustav", finance), no)
	call = waitForEnd(t, call)
	want{code: v1alpha1.ErrorApprovalDenied, message: []string{"denied by gustav", no.Name, "not this month"}}.check(t, call)
	approvedIs(t, call, metav1.ConditionFalse, v1alpha1.ErrorApprovalDenied.Reason())
	approve(t, approver(t, "hanna", finance), call)
	// Another call, created later, runs: the late approval was seen by then.
	other := awaiting(t, newCall(t, tools, "tool"))
	approve(t, approver(t, "frida", finance), other)
	approve(t, approver(t, "hanna", finance), other)
	runs(t, other)
	want{code: v1alpha1.ErrorApprovalDenied}.check(t, waitForEnd(t, call))
	noSandbox(t, call)
}

// Of several rules the shortest time counts. What was met in time stays met.
func TestApprovalExpires(t *testing.T) {
	t.Parallel()
	tools := guarded(t, expireAfter(600))
	ask(t, tools, "soon", by(groups(onCall)...), expireAfter(3))
	call := awaiting(t, newCall(t, tools, "tool"))
	approve(t, approver(t, "frida", finance), call)
	var expires time.Time
	for _, a := range call.Status.Approvals {
		if a.Policy == tools+"/soon" {
			expires = a.ExpireTime.Time
		}
	}
	call = waitForEnd(t, call)
	want{code: v1alpha1.ErrorApprovalExpired, retryable: true, message: []string{"0 of 1 by Group " + onCall, tools + "/soon"}}.check(t, call)
	if contains(call.Status.Result.Message, tools+"/ask") {
		t.Errorf("the message names a rule that was met: %s", call.Status.Result.Message)
	}
	if end := call.Status.CompletionTime.Time; end.Before(expires) {
		t.Errorf("it ended at %s, before %s", end, expires)
	}
	approvedIs(t, call, metav1.ConditionFalse, v1alpha1.ErrorApprovalExpired.Reason())
	noSandbox(t, call)
}

// The call's own deadline holds while it waits for people, too.
func TestDeadlineWhileAwaitingApproval(t *testing.T) {
	t.Parallel()
	tools := guarded(t)
	call := waitForEnd(t, newCall(t, tools, "tool", func(s *v1alpha1.ToolCallSpec) { s.DeadlineSeconds = 2 }))
	want{code: v1alpha1.ErrorApprovalExpired, retryable: true, message: []string{"deadlineSeconds (2)", "0 of 1 by Group " + finance}}.check(t, call)
}

// Ten approvals at once all count, and all show.
func TestApprovalsAtOnce(t *testing.T) {
	t.Parallel()
	const n = 10
	tools := guarded(t, required(n))
	call := awaiting(t, newCall(t, tools, "tool"))
	var names []string
	var all sync.WaitGroup
	for i := range n {
		name := fmt.Sprintf("person-%02d", i)
		names = append(names, name)
		who, a := approver(t, name, finance), approvalObject(call, v1alpha1.DecisionApprove)
		all.Go(func() {
			if err := who.Create(t.Context(), a); err != nil {
				t.Errorf("%s: %v", name, err)
			}
		})
	}
	all.Wait()
	grantedTo(t, call, "ask", names...)
	runs(t, call)
}

func TestCancelWhileAwaitingApproval(t *testing.T) {
	t.Parallel()
	tools := guarded(t)
	call := awaiting(t, newCall(t, tools, "tool"))
	cancel(t, call)
	call = waitForEnd(t, call)
	want{code: v1alpha1.ErrorCancelled, message: []string{"before the tool was started"}}.check(t, call)
	approvedIs(t, call, metav1.ConditionFalse, v1alpha1.ErrorCancelled.Reason())
	noSandbox(t, call)
}

// Nobody is asked about a call that could not run anyhow.
func TestNobodyIsAskedInVain(t *testing.T) {
	t.Parallel()
	tools := guarded(t)
	newTool(t, tools, "required", func(s *v1alpha1.ToolSpec) { s.Approval = v1alpha1.ApprovalRequired })
	create(t, policyObject(tools, "never", v1alpha1.EffectDeny, "denied"))
	newTool(t, tools, "denied")
	for _, test := range []struct {
		reason, tool string
		who          client.Client
		args         string
		want         want
	}{
		{"arguments that are not valid", "tool", agent, `{"n":"no number"}`, want{code: v1alpha1.ErrorInvalidArguments, message: []string{"/n"}}},
		{"a caller whom nothing allows", "tool", worker, `{}`, want{code: v1alpha1.ErrorToolNotAllowed, message: []string{"no policy allows"}}},
		{"a Deny", "denied", agent, `{}`, want{code: v1alpha1.ErrorToolNotAllowed, message: []string{tools + "/never"}}},
	} {
		t.Run(test.reason, func(t *testing.T) {
			t.Parallel()
			call := waitForEnd(t, propose(t, test.who, callObject(tools, test.tool, withArgs(test.args))))
			test.want.check(t, call)
			for _, state := range statesOf(t, call) {
				if reasonOf(state) == v1alpha1.ReasonAwaitingApproval || len(state.Status.Approvals) > 0 || state.Status.ApprovalDigest != "" {
					t.Errorf("somebody was asked: %s", show(state.Status))
				}
			}
			approvedIs(t, call, "", "")
		})
	}
}

// A Tool that requires approval cannot be called by somebody about whom nobody
// would be asked.
func TestApprovalRequiredByTool(t *testing.T) {
	t.Parallel()
	tools := openNamespace(t)
	allow(t, tools)
	newTool(t, tools, "tool", func(s *v1alpha1.ToolSpec) { s.Approval = v1alpha1.ApprovalRequired })
	call := waitForEnd(t, newCall(t, tools, "tool"))
	want{code: v1alpha1.ErrorToolNotAllowed, message: []string{"Tool " + tools + "/tool requires an approval (spec.approval)", "no RequireApproval rule matches",
		"the owner of namespace"}}.check(t, call)
	approvedIs(t, call, "", "")
	ask(t, tools, "ask")
	call = awaiting(t, newCall(t, tools, "tool"))
	approve(t, approver(t, "frida", finance), call)
	runs(t, call)
}
