package controllers_test

import (
	"fmt"
	"testing"
	"time"

	apimeta "k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"callgate.dev/callgate/api/v1alpha1"
)

// changeTool changes what a Tool runs, and nothing else.
func changeTool(t *testing.T, namespace, image string) {
	t.Helper()
	patch(t, admin, &v1alpha1.Tool{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "tool"}},
		fmt.Sprintf(`{"spec":{"container":{"image":%q}}}`, image))
}

// asksAgain waits until a call waits for the approval of another state of its Tool.
func asksAgain(t *testing.T, before *v1alpha1.ToolCall) *v1alpha1.ToolCall {
	t.Helper()
	return waitForCall(t, before, "asked again", func(c *v1alpha1.ToolCall) bool {
		return reasonOf(c) == v1alpha1.ReasonAwaitingApproval && c.Status.ApprovalDigest != before.Status.ApprovalDigest
	})
}

// An approval is for one call only: not for another one that has its name later.
func TestApprovalOfACallDeletedAndCreatedAgain(t *testing.T) {
	t.Parallel()
	tools := guarded(t, required(2))
	frida, gustav, hanna := approver(t, "frida", finance), approver(t, "gustav", finance), approver(t, "hanna", finance)
	named := func() *v1alpha1.ToolCall {
		call := callObject(tools, "tool")
		call.GenerateName, call.Name = "", "again-"+tools
		return awaiting(t, propose(t, agent, call))
	}
	first := named()
	approve(t, frida, first)
	grantedTo(t, first, "ask", "frida")
	remove(t, first.DeepCopy())
	second := named()
	if second.Status.ApprovalDigest == first.Status.ApprovalDigest {
		t.Error("two calls have one approvalDigest")
	}
	// One who looked at the second one, and still names the first one's state.
	mixed := approvalObject(second, v1alpha1.DecisionApprove)
	mixed.Spec.ToolCallRef.ApprovalDigest = first.Status.ApprovalDigest
	says(t, gustav, mixed)
	doesNotCount(t, second, mixed, "it is for another state of the Tool")
	approve(t, hanna, second)
	grantedTo(t, second, "ask", "hanna")
	approve(t, gustav, second)
	second = runs(t, second)
	if got := show(second.Status.Approvals[0].Granted); got != show([]string{"gustav", "hanna"}) {
		t.Errorf("granted is %s", got)
	}
}

// A Tool that changes while people are asked is another Tool: they are asked
// again, however long they took, with their whole time.
func TestToolChangesWhileAwaitingApproval(t *testing.T) {
	t.Parallel()
	tools := openNamespace(t)
	allow(t, tools)
	newTool(t, tools, "tool", func(s *v1alpha1.ToolSpec) { s.StartDeadlineSeconds = 20 })
	ask(t, tools, "ask", required(2))
	frida, gustav := approver(t, "frida", finance), approver(t, "gustav", finance)
	call := awaiting(t, newCall(t, tools, "tool"))
	old := approve(t, frida, call)
	call = grantedTo(t, call, "ask", "frida")
	// Longer than the sandbox may take to start: that time has not begun.
	eventually(t, "startDeadlineSeconds gone", func() (bool, any) { return time.Since(call.CreationTimestamp.Time) > 21*time.Second, nil })
	changeTool(t, tools, "registry.example/tool:2")
	again := asksAgain(t, call)
	doesNotCount(t, again, old, "it is for another state of the Tool: approve again with the call's status.approvalDigest")
	again = grantedTo(t, again, "ask")
	if !again.Status.Approvals[0].ExpireTime.After(call.Status.Approvals[0].ExpireTime.Time) {
		t.Errorf("it expires at %s, as before the change (%s)", again.Status.Approvals[0].ExpireTime, call.Status.Approvals[0].ExpireTime)
	}
	// Of a changed Tool, an approval must say which state of it was seen.
	blind := approvalObject(again, v1alpha1.DecisionApprove)
	blind.Spec.ToolCallRef.ApprovalDigest = ""
	says(t, gustav, blind)
	doesNotCount(t, again, blind, "it may be for another state of the Tool")
	noSandbox(t, again)
	approve(t, frida, again)
	approve(t, gustav, again)
	// From here on the time to start counts.
	again = waitForCall(t, again, "past the approval", func(c *v1alpha1.ToolCall) bool {
		return apimeta.IsStatusConditionTrue(c.Status.Conditions, v1alpha1.ConditionApproved)
	})
	if pod := podOf(t, again); pod.Spec.Containers[0].Image != "registry.example/tool:2" {
		t.Errorf("the sandbox has image %s", pod.Spec.Containers[0].Image)
	}
}

// What changes between approval and dispatch takes the call back, with all that
// it held: its sandbox, and its place.
func TestChangesBeforeDispatch(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		reason string
		change func(t *testing.T, tools string, given *v1alpha1.ToolCallApproval)
		// then gets the call past the change; it waits for approval.
		then func(t *testing.T, tools string, call *v1alpha1.ToolCall)
	}{
		{reason: "the Tool changes", change: func(t *testing.T, tools string, _ *v1alpha1.ToolCallApproval) {
			changeTool(t, tools, "registry.example/tool:2")
		}, then: func(t *testing.T, _ string, call *v1alpha1.ToolCall) {
			approve(t, approver(t, "frida", finance), call)
		}},
		{reason: "another rule asks", change: func(t *testing.T, tools string, _ *v1alpha1.ToolCallApproval) {
			create(t, askObject(tools, "late", by(groups(onCall)...)))
		}, then: func(t *testing.T, _ string, call *v1alpha1.ToolCall) {
			approve(t, approver(t, "olga", onCall), call)
		}},
		{reason: "the rule wants one more", change: func(t *testing.T, tools string, _ *v1alpha1.ToolCallApproval) {
			patch(t, admin, askObject(tools, "ask"), fmt.Sprintf(
				`{"spec":{"rules":[{"name":"rule","effect":"RequireApproval","tools":{"names":["*"]},"approval":{"approvers":[{"kind":"Group","name":%q}],"requiredApprovals":2}}]}}`, finance))
		}, then: func(t *testing.T, _ string, call *v1alpha1.ToolCall) {
			approve(t, approver(t, "gustav", finance), call)
		}},
		{reason: "the approval is taken back", change: func(t *testing.T, _ string, given *v1alpha1.ToolCallApproval) {
			if err := approver(t, "frida", finance).Delete(t.Context(), given); err != nil {
				t.Fatal(err)
			}
		}, then: func(t *testing.T, _ string, call *v1alpha1.ToolCall) {
			approve(t, approver(t, "gustav", finance), call)
		}},
		{reason: "another rule asks, and goes", change: func(t *testing.T, tools string, _ *v1alpha1.ToolCallApproval) {
			create(t, askObject(tools, "late", by(groups(onCall)...)))
		}, then: func(t *testing.T, tools string, _ *v1alpha1.ToolCall) {
			remove(t, askObject(tools, "late"))
		}},
	} {
		t.Run(test.reason, func(t *testing.T) {
			t.Parallel()
			tools := openNamespace(t)
			everybody := policyObject(tools, "all", v1alpha1.EffectAllow, "*")
			everybody.Spec.Subjects = groups("system:authenticated")
			create(t, everybody)
			newTool(t, tools, "tool", func(s *v1alpha1.ToolSpec) { s.MaxConcurrentCalls = 1 })
			ask(t, tools, "ask")
			call := awaiting(t, newCall(t, tools, "tool"))
			given := approve(t, approver(t, "frida", finance), call)
			starting(t, call)
			// Nobody is asked about calls of worker; this one wants the place.
			next := propose(t, worker, callObject(tools, "tool"))
			waitForReason(t, next, v1alpha1.ReasonQueued)

			test.change(t, tools, given)
			call = awaiting(t, call)
			approvedIs(t, call, metav1.ConditionUnknown, v1alpha1.ReasonAwaitingApproval)
			waitForNoSandbox(t, call)
			runs(t, next)
			test.then(t, tools, call)
			approvedIs(t, runs(t, call), metav1.ConditionTrue, v1alpha1.ReasonApproved)
		})
	}
}

// The same for one that stands in the queue: it goes back to the people, and its
// wait for a place begins anew after that.
func TestToolChangesWhileQueued(t *testing.T) {
	t.Parallel()
	tools := guarded(t)
	patch(t, admin, &v1alpha1.Tool{ObjectMeta: metav1.ObjectMeta{Namespace: tools, Name: "tool"}}, `{"spec":{"maxConcurrentCalls":1}}`)
	frida := approver(t, "frida", finance)
	front := awaiting(t, newCall(t, tools, "tool"))
	approve(t, frida, front)
	tool, release := blocked(t)
	startPod(t, front, tool)
	waitForSend(t, front)
	call := awaiting(t, newCall(t, tools, "tool"))
	approve(t, frida, call)
	waitForReason(t, call, v1alpha1.ReasonQueued)

	changeTool(t, tools, "registry.example/tool:2")
	call = asksAgain(t, call)
	if call.Status.QueueTime != nil {
		t.Errorf("the call waits for people, and status.queueTime is %s: its wait for a place would be over before it begins", call.Status.QueueTime)
	}
	noSandbox(t, call)
	// What runs already is no longer asked about.
	release()
	want{}.check(t, waitForEnd(t, front))
	approve(t, frida, call)
	runs(t, call)
}

// Ready warns as long as a call of the Tool needs approval and its image has no
// digest.
func TestReadyWarnsOfImagesWithoutDigest(t *testing.T) {
	t.Parallel()
	tools := openNamespace(t)
	const warning = "names no digest"
	const digest = "@sha256:0000000000000000000000000000000000000000000000000000000000000000"
	tool := newTool(t, tools, "tool")
	pinned := newTool(t, tools, "pinned", func(s *v1alpha1.ToolSpec) { s.Container.Image += digest })
	always := newTool(t, tools, "always", func(s *v1alpha1.ToolSpec) { s.Approval = v1alpha1.ApprovalRequired })
	warns := func(tool *v1alpha1.Tool, want bool) {
		t.Helper()
		eventually(t, fmt.Sprintf("Tool %s warns: %t", tool.Name, want), func() (bool, any) {
			message := waitForReady(t, tool, metav1.ConditionTrue, v1alpha1.ReasonReady)
			return contains(message, warning) == want, message
		})
	}
	warns(tool, false)
	warns(always, true)

	ask := askObject(tools, "ask")
	create(t, ask)
	warns(tool, true)
	warns(pinned, false)
	patch(t, admin, ask, `{"spec":{"mode":"Audit"}}`)
	warns(tool, false)
	patch(t, admin, ask, `{"spec":{"mode":"Enforce"}}`)
	warns(tool, true)
	remove(t, ask)
	warns(tool, false)

	cluster := clusterPolicyObject(tools, v1alpha1.EffectRequireApproval)
	cluster.Spec.Rules[0].Approval = &v1alpha1.RuleApproval{Approvers: groups(finance)}
	createCluster(t, cluster)
	warns(tool, true)
	patch(t, admin, tool, `{"spec":{"container":{"image":"registry.example/tool:1`+digest+`"}}}`)
	warns(tool, false)
	remove(t, cluster)
	patch(t, admin, always, `{"spec":{"approval":"NotRequired"}}`)
	warns(always, false)
}

// A restart changes nothing for calls that wait for people or were approved;
// what people said meanwhile counts, and what changed meanwhile is asked again.
// It is not parallel, since it stops the controller of all.
func TestApprovalsAcrossARestart(t *testing.T) {
	tools := guarded(t, required(2))
	other := guarded(t) // another Tool, which is deleted and created again
	soon := guarded(t, expireAfter(3))
	frida, gustav, hanna := approver(t, "frida", finance), approver(t, "gustav", finance), approver(t, "hanna", finance)

	// One of two approved; both approved, and its sandbox is being started.
	half := awaiting(t, newCall(t, tools, "tool"))
	approve(t, frida, half)
	half = grantedTo(t, half, "ask", "frida")
	full := awaiting(t, newCall(t, tools, "tool"))
	approve(t, frida, full)
	approve(t, gustav, full)
	job := jobOf(t, full)
	starting(t, full)
	denied := awaiting(t, newCall(t, tools, "tool"))
	recreated := awaiting(t, newCall(t, other, "tool"))
	late, inTime := awaiting(t, newCall(t, soon, "tool")), awaiting(t, newCall(t, soon, "tool"))
	states := map[types.UID]*v1alpha1.ToolCall{}
	for _, call := range []*v1alpha1.ToolCall{half, full} {
		now := &v1alpha1.ToolCall{}
		if !get(t, keyOf(call), now) {
			t.Fatal("no call")
		}
		states[call.UID] = now
	}
	var before float64
	restartController(t, func() {
		before = reconciles(t, "toolcall")
		says(t, gustav, approvalObject(denied, v1alpha1.DecisionDeny))
		approve(t, gustav, recreated)
		approve(t, gustav, inTime)
		tool := &v1alpha1.Tool{ObjectMeta: metav1.ObjectMeta{Namespace: other, Name: "tool"}}
		remove(t, tool)
		create(t, toolObject(other, "tool"))
		// The API server's clock has whole seconds: only then the next approval is too late.
		eventually(t, "the time of an approval over", func() (bool, any) {
			return time.Now().After(late.Status.Approvals[0].ExpireTime.Add(time.Second)), nil
		})
		approve(t, gustav, late)
	})
	eventually(t, "every call looked at", func() (bool, any) {
		n := reconciles(t, "toolcall") - before
		return n >= 6, n
	})
	want{code: v1alpha1.ErrorApprovalDenied, message: []string{"denied by gustav"}}.check(t, waitForEnd(t, denied))
	want{code: v1alpha1.ErrorApprovalExpired, retryable: true, message: []string{"too late"}}.check(t, waitForEnd(t, late))
	runs(t, inTime)

	again := asksAgain(t, recreated)
	grantedTo(t, again, "ask")
	approve(t, gustav, again)
	runs(t, again)

	for uid, state := range states {
		now := &v1alpha1.ToolCall{}
		if !get(t, client.ObjectKeyFromObject(state), now) || now.ResourceVersion != state.ResourceVersion {
			t.Errorf("the restart changed call %s: from %s to %s", uid, show(state.Status), show(now.Status))
		}
	}
	if now := jobOf(t, full); now.UID != job.UID {
		t.Error("the restart made another sandbox")
	}
	runs(t, full)
	approve(t, hanna, half)
	half = runs(t, half)
	if got := show(half.Status.Approvals[0].Granted); got != show([]string{"frida", "hanna"}) {
		t.Errorf("granted is %s", got)
	}
}

// A call that is being deleted, and stays for somebody's finalizer, does not begin.
func TestCallBeingDeletedIsNotStarted(t *testing.T) {
	t.Parallel()
	tools := guarded(t)
	call := callObject(tools, "tool")
	call.Finalizers = []string{"example.com/keep"}
	propose(t, agent, call)
	call = awaiting(t, call)
	if err := agent.Delete(t.Context(), call.DeepCopy()); err != nil {
		t.Fatal(err)
	}
	approve(t, approver(t, "frida", finance), call)
	ended := waitForEnd(t, call)
	want{code: v1alpha1.ErrorCancelled, message: []string{"deletion of the call", "before the tool was started"}}.check(t, ended)
	noSandbox(t, ended)
	patch(t, admin, ended.DeepCopy(), `{"metadata":{"finalizers":null}}`)
}
