package faults

import (
	"cmp"
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"callgate.dev/callgate/api/v1alpha1"
	"callgate.dev/callgate/test/cluster"
)

// Whatever a call waits for, its own deadline ends the wait, with the code of
// the wait.
func TestDeadlineOverEveryWait(t *testing.T) {
	const deadline = 4 // seconds, but for a row that says otherwise
	rule := func(name string, r v1alpha1.PolicyRule) func(namespace string) client.Object {
		r.Name, r.Tools = name, v1alpha1.ToolSelector{Names: []string{"tool"}}
		return func(namespace string) client.Object {
			return &v1alpha1.ToolPolicy{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}, Spec: v1alpha1.ToolPolicySpec{
				Subjects: []v1alpha1.Subject{{Kind: v1alpha1.SubjectGroup, Name: "system:authenticated"}}, Rules: []v1alpha1.PolicyRule{r}}}
		}
	}
	long := []string{"sleep", "1000"}
	for _, tc := range []struct {
		name, reason string
		command      []string
		tool         func(*v1alpha1.ToolSpec)
		policy       func(string) client.Object
		// first is made before the call, with the same key, and runs.
		first     bool
		waits     string
		deadline  int32
		code      v1alpha1.ErrorCode
		retryable bool
		parts     []string
	}{
		{name: "awaiting-first-call", reason: "of the same key", command: long, first: true, waits: v1alpha1.ReasonAwaitingFirstCall,
			code: v1alpha1.ErrorToolUnavailable, retryable: true, parts: []string{"deadlineSeconds (4)", "AwaitingFirstCall"}},
		{name: "awaiting-approval", reason: "that nobody gives", command: long, waits: v1alpha1.ReasonAwaitingApproval,
			policy: rule("ask", v1alpha1.PolicyRule{Effect: v1alpha1.EffectRequireApproval, Approval: &v1alpha1.RuleApproval{
				Approvers: []v1alpha1.Subject{{Kind: v1alpha1.SubjectUser, Name: "nobody"}}, ExpireAfterSeconds: 3600}}),
			code: v1alpha1.ErrorApprovalExpired, retryable: true, parts: []string{"deadlineSeconds (4)", "nobody"}},
		{name: "queued", reason: "for the place of another call", command: long, tool: func(s *v1alpha1.ToolSpec) { s.MaxConcurrentCalls = 1 }, first: true,
			waits: v1alpha1.ReasonQueued, code: v1alpha1.ErrorRateLimited, retryable: true, parts: []string{"deadlineSeconds (4)", "maxConcurrentCalls"}},
		{name: "starting", reason: "for a node that has room", command: long, waits: v1alpha1.ReasonStarting,
			tool: func(s *v1alpha1.ToolSpec) {
				s.Container.Resources.Requests = corev1.ResourceList{corev1.ResourceCPU: cluster.Quantity("1000")}
				s.Container.Resources.Limits = s.Container.Resources.Requests
			},
			code: v1alpha1.ErrorToolUnavailable, retryable: true, parts: []string{"deadlineSeconds (4)", "Starting"}},
		{name: "running", reason: "for the tool itself", command: long, waits: v1alpha1.ReasonRunning, code: v1alpha1.ErrorToolTimeout, parts: []string{"it may have taken effect"}},
		{name: "retrying", reason: "for a second attempt that would be too late", command: []string{"sh", "-c", "exit 75"}, deadline: 10,
			tool: func(s *v1alpha1.ToolSpec) { s.MaxRetries = ptr.To[int32](10) }, waits: v1alpha1.ReasonRetrying,
			code: v1alpha1.ErrorToolFailed, retryable: true, parts: []string{"exit code 75"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			ctx := cluster.Start(t)
			namespace := cluster.NewToolsNamespace(ctx, t, "deadline-"+tc.name)
			if tc.policy != nil {
				policy := tc.policy(namespace).(*v1alpha1.ToolPolicy)
				if err := cluster.Admin.Create(ctx, policy); err != nil {
					t.Fatal(err)
				}
				cluster.WaitFor(ctx, t, policy, &v1alpha1.ToolPolicyList{}, func(p *v1alpha1.ToolPolicy) bool { return p.Status.ObservedGeneration == p.Generation },
					func(p *v1alpha1.ToolPolicy) string { return cluster.JSONOf(t, p.Status) })
			}
			tool := cluster.NewToolIn(ctx, t, namespace, "tool", tc.command, cluster.Timeout(60), func(s *v1alpha1.ToolSpec) {
				s.StartDeadlineSeconds = 900
				if tc.tool != nil {
					tc.tool(s)
				}
			})
			key := ""
			if tc.waits == v1alpha1.ReasonAwaitingFirstCall {
				key = "the-key"
			}
			if tc.first {
				first := cluster.Propose(ctx, t, tool, "", func(s *v1alpha1.ToolCallSpec) { s.IdempotencyKey = key })
				cluster.WaitReason(ctx, t, first, v1alpha1.ReasonRunning)
				t.Cleanup(func() {
					// Its namespace could not go before it has ended.
					ctx := context.WithoutCancel(ctx)
					if err := cluster.Agent.Delete(ctx, first); err != nil {
						t.Error(err)
					}
					cluster.WaitGone(ctx, t, first)
				})
			}
			call := cluster.Propose(ctx, t, tool, "", func(s *v1alpha1.ToolCallSpec) {
				s.IdempotencyKey, s.DeadlineSeconds = key, cmp.Or(tc.deadline, deadline)
			})
			waited := map[string]bool{}
			cluster.WaitFor(ctx, t, call, &v1alpha1.ToolCallList{}, func(c *v1alpha1.ToolCall) bool {
				waited[cluster.SucceededReason(c)] = true
				return c.Status.Result != nil
			}, func(c *v1alpha1.ToolCall) string { return cluster.JSONOf(t, c.Status) })
			cluster.Failed(t, call, tc.code, tc.retryable, tc.parts...)
			if !waited[tc.waits] {
				t.Errorf("it did not wait %s: %v", tc.reason, waited)
			}
			// Times are whole seconds; a tool that runs has a second more to end by itself. What cannot be tried again in time
			// ends at once.
			took, end := call.Status.CompletionTime.Sub(call.CreationTimestamp.Time), time.Duration(cmp.Or(tc.deadline, deadline))*time.Second
			if took < end-2*time.Second && tc.waits != v1alpha1.ReasonRetrying || took > end+4*time.Second {
				t.Errorf("it ended after %s: %s", took, call.Status.Result.Message)
			}
		})
	}
}

// C037, C039, C041: calls and Tools of any name that Kubernetes takes are told
// apart, also those that differ only at their end, and those of one name that
// come after one another.
func TestNames(t *testing.T) {
	ctx := cluster.Start(t)
	namespace := cluster.NewToolsNamespace(ctx, t, "names")
	long := func(tail string) string { // 253 characters, with dots: what a name may be
		return strings.Repeat("abcdefghi.", 25) + tail
	}
	var calls []*v1alpha1.ToolCall
	for i, name := range []string{"says", "a.dotted.tool", long("abc")[:253]} {
		tool := cluster.NewToolIn(ctx, t, namespace, name, []string{"cat"}, func(s *v1alpha1.ToolSpec) { s.FunctionName = fmt.Sprint("function_", i) })
		for _, name := range []string{"7", "a.b-c.d", long("one"), long("two"), strings.Repeat("x", 200) + "-1", strings.Repeat("x", 200) + "-2"} {
			if i > 0 && !strings.HasPrefix(name, "abc") {
				continue // the others tell nothing new
			}
			calls = append(calls, &v1alpha1.ToolCall{ObjectMeta: metav1.ObjectMeta{Namespace: cluster.AgentsNS, Name: name[i:]},
				Spec: v1alpha1.ToolCallSpec{ToolRef: v1alpha1.ToolReference{Name: tool.Name, Namespace: namespace}}})
		}
	}
	answers := func(mark int) {
		t.Helper()
		for i, call := range calls {
			args := cluster.Raw(fmt.Sprintf(`{"call":%d}`, mark+i))
			*call = v1alpha1.ToolCall{ObjectMeta: metav1.ObjectMeta{Namespace: call.Namespace, Name: call.Name}, Spec: call.Spec}
			call.Spec.Args, call.Spec.Requester = &args, nil
			if err := cluster.Agent.Create(ctx, call); err != nil {
				t.Fatal(err)
			}
		}
		for i, call := range calls {
			if got, want := cluster.Succeeded(t, cluster.Finish(ctx, t, call)), fmt.Sprintf(`{"call":%d}`, mark+i); got != want {
				t.Errorf("call %s answered %s, want %s", call.Name, got, want)
			}
		}
	}
	remove := func() {
		t.Helper()
		for _, call := range calls {
			if err := cluster.Agent.Delete(ctx, call); err != nil {
				t.Fatal(err)
			}
		}
	}
	answers(100)
	remove()
	answers(200) // the same names, while the sandboxes of those before are there
	remove()
	// Once more, gone in the middle of their way.
	for _, call := range calls {
		*call = v1alpha1.ToolCall{ObjectMeta: metav1.ObjectMeta{Namespace: call.Namespace, Name: call.Name}, Spec: call.Spec}
		call.Spec.Requester = nil
		if err := cluster.Agent.Create(ctx, call); err != nil {
			t.Fatal(err)
		}
	}
	remove()
	answers(300)
	remove()
	nothingLeft(ctx, t, namespace)
}
