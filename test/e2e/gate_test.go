package e2e

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"callgate.dev/callgate/api/v1alpha1"
	"callgate.dev/callgate/test/cluster"
)

// addRule lets a rule of its own speak of a Tool, and waits until it is in force.
func addRule(ctx context.Context, t *testing.T, tool *v1alpha1.Tool, rule v1alpha1.PolicyRule) {
	t.Helper()
	rule.Name, rule.Tools = "rule", v1alpha1.ToolSelector{Names: []string{tool.Name}}
	p := &v1alpha1.ToolPolicy{ObjectMeta: metav1.ObjectMeta{Namespace: tool.Namespace, Name: tool.Name}, Spec: v1alpha1.ToolPolicySpec{
		Subjects: []v1alpha1.Subject{{Kind: v1alpha1.SubjectGroup, Name: "system:authenticated"}}, Rules: []v1alpha1.PolicyRule{rule},
	}}
	if err := admin.Create(ctx, p); err != nil {
		t.Fatal(err)
	}
	waitFor(ctx, t, p, &v1alpha1.ToolPolicyList{}, func(p *v1alpha1.ToolPolicy) bool { return p.Status.ObservedGeneration == p.Generation },
		func(p *v1alpha1.ToolPolicy) string { return jsonOf(t, p.Status) })
}

// A call that needs an approval waits in no sandbox, runs when the right person
// has said yes to exactly this call, and never when that person says no.
func TestApproval(t *testing.T) {
	ctx := start(t)
	tool := shell(ctx, t, "wire-money", `echo '{"sent":true}'`)
	addRule(ctx, t, tool, v1alpha1.PolicyRule{Effect: v1alpha1.EffectRequireApproval,
		Approval: &v1alpha1.RuleApproval{Approvers: []v1alpha1.Subject{{Kind: v1alpha1.SubjectGroup, Name: "finance"}}}})
	binding := &rbacv1.RoleBinding{ObjectMeta: metav1.ObjectMeta{Namespace: agentsNS, Name: "finance"},
		RoleRef:  rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "callgate-approver"},
		Subjects: []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: "Group", Name: "finance"}}}
	if err := admin.Create(ctx, binding); err != nil {
		t.Fatal(err)
	}
	as := rest.CopyConfig(cluster.Config)
	as.Impersonate = rest.ImpersonationConfig{UserName: "frida", Groups: []string{"finance", "system:authenticated"}}
	frida, err := client.New(as, client.Options{Scheme: admin.Scheme()})
	if err != nil {
		t.Fatal(err)
	}
	say := func(call *v1alpha1.ToolCall, decision v1alpha1.ApprovalDecision) {
		t.Helper()
		waitReason(ctx, t, call, v1alpha1.ReasonAwaitingApproval)
		if err := admin.Get(ctx, client.ObjectKeyFromObject(call), call); err != nil {
			t.Fatal(err)
		}
		a := &v1alpha1.ToolCallApproval{ObjectMeta: metav1.ObjectMeta{Namespace: call.Namespace, GenerateName: call.Name + "-"},
			Spec: v1alpha1.ToolCallApprovalSpec{Decision: decision, Reason: "as agreed", ToolCallRef: v1alpha1.ApprovedCallReference{
				Name: call.Name, UID: call.UID, ApprovalDigest: call.Status.ApprovalDigest}}}
		if err := frida.Create(ctx, a); err != nil {
			t.Fatal(err)
		}
	}

	yes, no := propose(ctx, t, tool, `{}`), propose(ctx, t, tool, `{}`)
	waitReason(ctx, t, yes, v1alpha1.ReasonAwaitingApproval)
	var pods corev1.PodList
	if err := admin.List(ctx, &pods, client.InNamespace(tool.Namespace), client.MatchingLabels{v1alpha1.LabelToolUID: string(tool.UID)}); err != nil || len(pods.Items) > 0 {
		t.Errorf("a call that waits for a person has %d pods (%v)", len(pods.Items), err)
	}
	say(yes, v1alpha1.DecisionApprove)
	say(no, v1alpha1.DecisionDeny)
	if data := succeeded(t, finish(ctx, t, yes)); data != `{"sent":true}` {
		t.Errorf("the approved call answers %s", data)
	}
	failed(t, finish(ctx, t, no), v1alpha1.ErrorApprovalDenied, false, "frida", "as agreed")
}

// Of twenty calls with one key at once one runs, and all get its answer.
func TestDuplicateCalls(t *testing.T) {
	ctx := start(t)
	tool := shell(ctx, t, "charge-card", `cat /proc/sys/kernel/random/uuid`, text)
	calls := make([]*v1alpha1.ToolCall, 20)
	var group sync.WaitGroup
	for i := range calls {
		group.Go(func() {
			calls[i] = propose(ctx, t, tool, `{}`, func(s *v1alpha1.ToolCallSpec) { s.IdempotencyKey = "order-4821" })
		})
	}
	group.Wait()
	answers, ran := map[string]int{}, 0
	for _, call := range calls {
		call = finish(ctx, t, call)
		answers[succeeded(t, call)]++
		if len(call.Status.Attempts) > 0 {
			ran++
		} else if call.Status.DuplicateOfRef == nil {
			t.Errorf("call %s did not run and names no other", call.Name)
		}
	}
	if len(answers) != 1 || ran != 1 {
		t.Errorf("%d calls ran, and there are %d answers: %v", ran, len(answers), answers)
	}
	other := callOf(ctx, t, tool, `{"n":1}`, func(s *v1alpha1.ToolCallSpec) { s.IdempotencyKey = "order-4821" })
	failed(t, other, v1alpha1.ErrorIdempotencyConflict, false, "other arguments")
}

// Under a limit of two at once, six calls run two by two in the order in which
// they came, and a rate limit says when to come again.
func TestLimits(t *testing.T) {
	ctx := start(t)
	tool := shell(ctx, t, "slow-report", `cut -d' ' -f1 /proc/uptime; sleep 1; cut -d' ' -f1 /proc/uptime`, text)
	addRule(ctx, t, tool, v1alpha1.PolicyRule{Effect: v1alpha1.EffectLimit, Limit: &v1alpha1.RuleLimit{
		MaxConcurrent: 2, MaxWaitSeconds: ptr.To[int32](120), MaxCalls: 6, WindowSeconds: 3600}})
	var calls []*v1alpha1.ToolCall
	for range 6 {
		calls = append(calls, propose(ctx, t, tool, `{}`))
	}
	waitReason(ctx, t, calls[5], v1alpha1.ReasonQueued)
	over := callOf(ctx, t, tool, `{}`)
	failed(t, over, v1alpha1.ErrorRateLimited, true, "6 calls in 1h0m0s")
	if r := over.Status.RetryTime; r == nil || time.Until(r.Time) < 50*time.Minute {
		t.Errorf("retryTime is %v", r)
	}
	type span struct{ from, to float64 }
	var spans []span
	for _, call := range calls {
		var s span
		if _, err := fmt.Sscan(unquote(t, succeeded(t, finish(ctx, t, call))), &s.from, &s.to); err != nil {
			t.Fatal(err)
		}
		spans = append(spans, s)
	}
	for _, s := range spans {
		atOnce := 0
		for _, other := range spans {
			if other.from <= s.from && s.from < other.to {
				atOnce++
			}
		}
		if atOnce > 2 {
			t.Errorf("%d tools ran at once: %v", atOnce, spans)
		}
	}
}
