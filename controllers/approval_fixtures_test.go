package controllers_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	apimeta "k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"callgate.dev/callgate/api/v1alpha1"
)

// Groups that rules name as approvers.
const (
	finance = "finance@example.com"
	onCall  = "on-call@example.com"
)

// somebody has no role, apart from the groups that are given.
func somebody(t *testing.T, name string, groups ...string) client.Client {
	t.Helper()
	c, err := clientOf(environment.Config, name, append(groups, "system:authenticated")...)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// approver has the role callgate-approver. Whether a word of theirs counts is
// another question.
func approver(t *testing.T, name string, groups ...string) client.Client {
	t.Helper()
	return somebody(t, name, append(groups, approversGroup)...)
}

func groups(names ...string) (subjects []v1alpha1.Subject) {
	for _, name := range names {
		subjects = append(subjects, v1alpha1.Subject{Kind: v1alpha1.SubjectGroup, Name: name})
	}
	return subjects
}

// askObject asks one of finance about calls of agent.
func askObject(namespace, name string, changes ...func(*v1alpha1.RuleApproval)) *v1alpha1.ToolPolicy {
	p := policyObject(namespace, name, v1alpha1.EffectRequireApproval, "*")
	p.Spec.Rules[0].Approval = &v1alpha1.RuleApproval{Approvers: groups(finance)}
	for _, change := range changes {
		change(p.Spec.Rules[0].Approval)
	}
	return p
}

// ask creates such a policy, and waits until the controller has it.
func ask(t *testing.T, namespace, name string, changes ...func(*v1alpha1.RuleApproval)) *v1alpha1.ToolPolicy {
	t.Helper()
	p := askObject(namespace, name, changes...)
	create(t, p)
	waitForPolicy(t, p, v1alpha1.ConditionReady, metav1.ConditionTrue, v1alpha1.ReasonReady)
	return p
}

func by(approvers ...v1alpha1.Subject) func(*v1alpha1.RuleApproval) {
	return func(a *v1alpha1.RuleApproval) { a.Approvers = approvers }
}

func required(n int32) func(*v1alpha1.RuleApproval) {
	return func(a *v1alpha1.RuleApproval) { a.RequiredApprovals = n }
}

func expireAfter(seconds int32) func(*v1alpha1.RuleApproval) {
	return func(a *v1alpha1.RuleApproval) { a.ExpireAfterSeconds = seconds }
}

// guarded makes a namespace whose Tool "tool" agent may call once somebody of
// finance agrees.
func guarded(t *testing.T, changes ...func(*v1alpha1.RuleApproval)) (namespace string) {
	t.Helper()
	namespace = openNamespace(t)
	allow(t, namespace)
	newTool(t, namespace, "tool")
	ask(t, namespace, "ask", changes...)
	return namespace
}

// awaiting waits until a call waits for approval, as often as it does so.
func awaiting(t *testing.T, call *v1alpha1.ToolCall) *v1alpha1.ToolCall {
	t.Helper()
	return waitForCall(t, call, "AwaitingApproval", func(c *v1alpha1.ToolCall) bool {
		return reasonOf(c) == v1alpha1.ReasonAwaitingApproval
	})
}

// approvalObject says something to a call as it is shown.
func approvalObject(call *v1alpha1.ToolCall, decision v1alpha1.ApprovalDecision) *v1alpha1.ToolCallApproval {
	return &v1alpha1.ToolCallApproval{
		ObjectMeta: metav1.ObjectMeta{Namespace: call.Namespace, GenerateName: call.Name + "-"},
		Spec: v1alpha1.ToolCallApprovalSpec{Decision: decision, ToolCallRef: v1alpha1.ApprovedCallReference{
			Name: call.Name, UID: call.UID, ApprovalDigest: call.Status.ApprovalDigest}},
	}
}

// approve approves a call as it is shown.
func approve(t *testing.T, who client.Client, call *v1alpha1.ToolCall) *v1alpha1.ToolCallApproval {
	t.Helper()
	return says(t, who, approvalObject(call, v1alpha1.DecisionApprove))
}

func says(t *testing.T, who client.Client, a *v1alpha1.ToolCallApproval) *v1alpha1.ToolCallApproval {
	t.Helper()
	if err := who.Create(t.Context(), a); err != nil {
		t.Fatalf("create an approval: %v", err)
	}
	return a
}

// grantedTo waits until the rule of a policy lists exactly these persons.
func grantedTo(t *testing.T, call *v1alpha1.ToolCall, policy string, who ...string) *v1alpha1.ToolCall {
	t.Helper()
	return waitForCall(t, call, fmt.Sprintf("approvals of %v", who), func(c *v1alpha1.ToolCall) bool {
		for _, a := range c.Status.Approvals {
			if strings.HasSuffix(a.Policy, "/"+policy) || a.Policy == policy {
				return slices.Equal(a.Granted, who)
			}
		}
		return false
	})
}

// doesNotCount waits until the call says of an approval that it does not count,
// and why. It was then seen, together with all that was created before it.
func doesNotCount(t *testing.T, call *v1alpha1.ToolCall, a *v1alpha1.ToolCallApproval, why string) {
	t.Helper()
	waitForCall(t, call, "approval "+a.Name+" not counted: "+why, func(c *v1alpha1.ToolCall) bool {
		s := apimeta.FindStatusCondition(c.Status.Conditions, v1alpha1.ConditionSucceeded)
		if s == nil || s.Reason != v1alpha1.ReasonAwaitingApproval {
			return false
		}
		_, after, found := strings.Cut(s.Message, "ToolCallApproval "+a.Name+" of "+a.Spec.Approver.Username+" does not count: ")
		return found && strings.HasPrefix(after, why)
	})
}

func approvedIs(t *testing.T, call *v1alpha1.ToolCall, status metav1.ConditionStatus, reason string) {
	t.Helper()
	c := apimeta.FindStatusCondition(call.Status.Conditions, v1alpha1.ConditionApproved)
	if status == "" && c == nil {
		return
	}
	if c == nil || c.Status != status || c.Reason != reason {
		t.Errorf("condition Approved is %s, want %s (%s)", show(c), status, reason)
	}
}

func noSandbox(t *testing.T, call *v1alpha1.ToolCall) {
	t.Helper()
	if get(t, jobKey(toolNamespace(call), call), &jobType{}) {
		t.Error("the call has a sandbox before it was approved")
	}
}

// statesOf are the states of a call so far, the last one as it is stored.
func statesOf(t *testing.T, call *v1alpha1.ToolCall) (states []*v1alpha1.ToolCall) {
	t.Helper()
	stored := &v1alpha1.ToolCall{}
	if !get(t, keyOf(call), stored) {
		t.Fatal("no such call")
	}
	eventually(t, "the watch of calls up to date", func() (bool, any) {
		history.Lock()
		defer history.Unlock()
		states = slices.Clone(history.states[call.UID])
		return slices.ContainsFunc(states, func(s *v1alpha1.ToolCall) bool { return s.ResourceVersion == stored.ResourceVersion }), len(states)
	})
	return states
}
