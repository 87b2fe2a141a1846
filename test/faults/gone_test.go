package faults

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"callgate.dev/callgate/api/v1alpha1"
	"callgate.dev/callgate/internal/idempotency"
	"callgate.dev/callgate/test/cluster"
)

// C032: calls that are cancelled or deleted at any moment after they were made
// end or are gone, and leave nothing behind.
func TestCancelledOrDeletedAtAnyMoment(t *testing.T) {
	ctx := cluster.Start(t)
	const calls = 100
	seed := fromEnv(t, "SEED", time.Now().UnixNano())
	t.Logf("SEED=%d", seed)
	random := rand.New(rand.NewPCG(uint64(seed), 0))
	waits := make([]time.Duration, calls)
	for i := range waits {
		waits[i] = time.Duration(random.Int64N(int64(1500 * time.Millisecond)))
	}
	namespace := cluster.NewToolsNamespace(ctx, t, "any-moment")
	tool := cluster.NewToolIn(ctx, t, namespace, "short", []string{"sh", "-c", "sleep 0.3; echo 1"}, func(s *v1alpha1.ToolSpec) { s.MaxConcurrentCalls = 4 })
	cancelled := make([]*v1alpha1.ToolCall, calls)
	errs := make([]error, calls)
	inParallel(calls, 8, func(i int) {
		call := &v1alpha1.ToolCall{
			ObjectMeta: metav1.ObjectMeta{Namespace: cluster.AgentsNS, GenerateName: "any-moment-"},
			Spec: v1alpha1.ToolCallSpec{ToolRef: v1alpha1.ToolReference{Name: tool.Name, Namespace: namespace},
				IdempotencyKey: fmt.Sprint("any-moment-", i)},
		}
		if errs[i] = cluster.Agent.Create(ctx, call); errs[i] != nil {
			return
		}
		time.Sleep(waits[i])
		if i%2 == 0 {
			errs[i] = cluster.Agent.Delete(ctx, call)
			return
		}
		cancelled[i] = call
		errs[i] = cluster.Agent.Patch(ctx, call, client.RawPatch("application/merge-patch+json", []byte(`{"spec":{"cancel":true}}`)))
	})
	codes := map[string]int{}
	for i, call := range cancelled {
		if errs[i] != nil {
			t.Fatalf("call %d: %v", i, errs[i])
		}
		if call == nil {
			continue
		}
		r := cluster.Finish(ctx, t, call).Status.Result
		if !*r.OK && r.ErrorCode != v1alpha1.ErrorCancelled {
			t.Errorf("call %d, cancelled after %s, ended %s: %s", i, waits[i], r.ErrorCode, r.Message)
		}
		codes[string(r.ErrorCode)]++
		// Its log may be read for a while; a call that is gone needs none.
		if err := cluster.Agent.Delete(ctx, call); err != nil {
			t.Error(err)
		}
	}
	t.Logf("codes of the cancelled calls: %v", codes)
	nothingLeft(ctx, t, namespace)
	policies(ctx, t, namespace, tool)
	onlySentKeys(ctx, t, namespace)
}

// onlySentKeys waits until the only keys left in a namespace are those of calls
// that may have run: they are remembered, so that those are not run again.
func onlySentKeys(ctx context.Context, t *testing.T, namespace string) {
	t.Helper()
	var left []string
	if err := until(ctx, func() (bool, error) {
		var leases coordinationv1.LeaseList
		err := cluster.Admin.List(ctx, &leases, client.InNamespace(namespace))
		left = nil
		for i := range leases.Items {
			l := &leases.Items[i]
			if r := idempotency.Read(l); !strings.HasPrefix(l.Name, idempotency.LeasePrefix) || !r.Sent {
				left = append(left, fmt.Sprintf("%s %v %+v", l.Name, l.Annotations, l.Spec))
			}
		}
		return len(left) == 0, err
	}); err != nil {
		t.Errorf("Leases of calls that never ran: %v %s", err, strings.Join(left, "\n"))
	}
}

// policies waits until the NetworkPolicies of a namespace are those of the Tools.
func policies(ctx context.Context, t *testing.T, namespace string, tools ...*v1alpha1.Tool) {
	t.Helper()
	var list networkingv1.NetworkPolicyList
	if err := until(ctx, func() (bool, error) {
		err := cluster.Admin.List(ctx, &list, client.InNamespace(namespace))
		return err == nil && samePolicies(list.Items, tools), err
	}); err != nil {
		t.Errorf("%d NetworkPolicies, want two for each of %d Tools: %v: %s", len(list.Items), len(tools), err, cluster.JSONOf(t, list.Items))
	}
}

// policiesOfTool is how many NetworkPolicies a Tool has: one for each direction.
const policiesOfTool = 2

func samePolicies(have []networkingv1.NetworkPolicy, tools []*v1alpha1.Tool) bool {
	for _, tool := range tools {
		found := 0
		for i := range have {
			if have[i].Labels[v1alpha1.LabelToolUID] == string(tool.UID) {
				found++
			}
		}
		if found != policiesOfTool {
			return false
		}
	}
	return len(have) == policiesOfTool*len(tools)
}

// C043: namespaces with unfinished calls go away. Those of agents take the
// sandboxes of their calls with them. Those of Tools go when the tools that run
// have come to their end, at their time limit at the latest; as in a drain,
// Kubernetes asks them to leave and gives them that time.
func TestNamespaceDeleted(t *testing.T) {
	ctx := cluster.Start(t)
	const calls, atOnce = 50, 20
	tools := cluster.NewToolsNamespace(ctx, t, "namespace-deleted")
	long := cluster.NewToolIn(ctx, t, tools, "long", []string{"sleep", "1000"}, cluster.Timeout(900), func(s *v1alpha1.ToolSpec) {
		s.MaxConcurrentCalls = atOnce
		s.StartDeadlineSeconds = 900
	})
	t.Run("agents", func(t *testing.T) {
		agents, agent := newAgentsNamespace(ctx, t, "agents", tools)
		made := callsRunning(ctx, t, agent, agents, long, calls, atOnce)
		deleteNamespace(ctx, t, agents)
		nothingLeft(ctx, t, tools)
		if err := cluster.Admin.Get(ctx, client.ObjectKeyFromObject(made[0]), made[0]); !apierrors.IsNotFound(err) {
			t.Errorf("the call is still there: %v", err)
		}
	})
	t.Run("tools", func(t *testing.T) {
		agents, agent := newAgentsNamespace(ctx, t, "callers", tools)
		short := cluster.NewToolIn(ctx, t, tools, "short", []string{"sleep", "1000"}, cluster.Timeout(25), func(s *v1alpha1.ToolSpec) {
			s.MaxConcurrentCalls = atOnce / 2
			s.StartDeadlineSeconds = 900
		})
		made := callsRunning(ctx, t, agent, agents, short, calls, atOnce/2)
		deleteNamespace(ctx, t, tools)
		codes := map[v1alpha1.ErrorCode]int{}
		for _, call := range made {
			r := cluster.Finish(ctx, t, call).Status.Result
			ran := len(call.Status.Attempts) > 0
			never := r.ErrorCode == v1alpha1.ErrorToolNotFound || r.ErrorCode == v1alpha1.ErrorToolUnavailable || r.ErrorCode == v1alpha1.ErrorToolNotAllowed
			if ran && r.ErrorCode != v1alpha1.ErrorToolTimeout || !ran && !never {
				t.Errorf("a call with %d attempts ended %s: %s", len(call.Status.Attempts), r.ErrorCode, r.Message)
			}
			codes[r.ErrorCode]++
		}
		t.Logf("codes of the calls: %v", codes)
		deleteNamespace(ctx, t, agents)
	})
}

// newAgentsNamespace makes a namespace with an agent that may call all Tools of
// another one, and a client of that agent.
func newAgentsNamespace(ctx context.Context, t *testing.T, name, tools string) (namespace string, agent client.Client) {
	t.Helper()
	namespace = cluster.AgentsNS + "-" + name
	group := "system:serviceaccounts:" + namespace
	for _, o := range []client.Object{
		&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: namespace}},
		&rbacv1.RoleBinding{
			ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "agents"},
			RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "callgate-agent"},
			Subjects:   []rbacv1.Subject{{Kind: rbacv1.GroupKind, APIGroup: rbacv1.GroupName, Name: group}},
		},
		&v1alpha1.ToolPolicy{ObjectMeta: metav1.ObjectMeta{Namespace: tools, Name: "of-" + name}, Spec: v1alpha1.ToolPolicySpec{
			Subjects: []v1alpha1.Subject{{Kind: v1alpha1.SubjectGroup, Name: group}},
			Rules:    []v1alpha1.PolicyRule{{Name: "all", Effect: v1alpha1.EffectAllow, Tools: v1alpha1.ToolSelector{Names: []string{"*"}}}},
		}},
	} {
		if err := cluster.Admin.Create(ctx, o); err != nil {
			t.Fatal(err)
		}
	}
	t.Cleanup(func() {
		err := cluster.Admin.Delete(context.WithoutCancel(ctx), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: namespace}})
		if err != nil && !apierrors.IsNotFound(err) && !apierrors.IsConflict(err) {
			t.Error(err)
		}
	})
	return namespace, clientAs(t, namespace, cluster.AgentName)
}

// callsRunning makes calls and waits until so many of them run.
func callsRunning(ctx context.Context, t *testing.T, agent client.Client, namespace string, tool *v1alpha1.Tool, calls, running int) []*v1alpha1.ToolCall {
	t.Helper()
	made := make([]*v1alpha1.ToolCall, calls)
	for i := range made {
		made[i] = &v1alpha1.ToolCall{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: fmt.Sprint("call-", i)},
			Spec: v1alpha1.ToolCallSpec{ToolRef: v1alpha1.ToolReference{Name: tool.Name, Namespace: tool.Namespace}}}
		if err := agent.Create(ctx, made[i]); err != nil {
			t.Fatal(err)
		}
	}
	n := 0
	if err := until(ctx, func() (bool, error) {
		var list v1alpha1.ToolCallList
		err := cluster.Admin.List(ctx, &list, client.InNamespace(namespace))
		n = 0
		for i := range list.Items {
			if len(list.Items[i].Status.Attempts) > 0 {
				n++
			}
		}
		return n >= running, err
	}); err != nil {
		t.Fatalf("%d calls run, want %d: %v", n, running, err)
	}
	return made
}

// deleteNamespace deletes one and waits until it is gone.
func deleteNamespace(ctx context.Context, t *testing.T, name string) {
	t.Helper()
	begin := time.Now()
	namespace := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}}
	if err := cluster.Admin.Delete(ctx, namespace); err != nil {
		t.Fatal(err)
	}
	if err := until(ctx, func() (bool, error) {
		err := cluster.Admin.Get(ctx, client.ObjectKeyFromObject(namespace), namespace)
		return apierrors.IsNotFound(err), client.IgnoreNotFound(err)
	}); err != nil {
		t.Fatalf("namespace %s is not gone: %v: %s", name, err, cluster.JSONOf(t, namespace.Status))
	}
	t.Logf("namespace %s was gone after %s", name, time.Since(begin).Round(100*time.Millisecond))
}

// A Tool that is deleted, or deleted and made again, takes no new calls under
// its old form; those that run end with the answer they would have had, and
// their network stays shut until the last sandbox is gone.
func TestToolDeletedOrReplaced(t *testing.T) {
	for _, tc := range []struct {
		name     string
		replaced bool
	}{{"tool-deleted", false}, {"tool-replaced", true}} {
		t.Run(tc.name, func(t *testing.T) {
			ctx := cluster.Start(t)
			namespace := cluster.NewToolsNamespace(ctx, t, tc.name)
			// By the output rules of the other Tool its answer would be no JSON.
			old := cluster.NewToolIn(ctx, t, namespace, "tool", []string{"sh", "-c", "sleep 5; echo old"}, cluster.Text, cluster.Timeout(20))
			call := cluster.Propose(ctx, t, old, "")
			cluster.WaitReason(ctx, t, call, v1alpha1.ReasonRunning)
			if err := cluster.Admin.Delete(ctx, old); err != nil {
				t.Fatal(err)
			}
			left := []*v1alpha1.Tool{old}
			if tc.replaced {
				left = append(left, cluster.NewToolIn(ctx, t, namespace, "tool", []string{"echo", "2"}))
				if got := cluster.Succeeded(t, cluster.CallOf(ctx, t, left[1], "")); got != "2" {
					t.Errorf("the new Tool answered %s", got)
				}
			} else {
				cluster.Failed(t, cluster.CallOf(ctx, t, old, ""), v1alpha1.ErrorToolNotFound, false)
			}
			if err := cluster.Admin.Get(ctx, client.ObjectKeyFromObject(call), call); err != nil || call.Status.Result != nil {
				t.Fatalf("the first call does not run any more: %v %+v", err, call.Status.Result)
			}
			var list networkingv1.NetworkPolicyList
			if err := cluster.Admin.List(ctx, &list, client.InNamespace(namespace)); err != nil || !samePolicies(list.Items, left) {
				t.Errorf("while a sandbox of the Tool runs, the NetworkPolicies are %v %s", err, cluster.JSONOf(t, list.Items))
			}
			if got := cluster.Unquote(t, cluster.Succeeded(t, cluster.Finish(ctx, t, call))); got != "old\n" {
				t.Errorf("the running call answered %q", got)
			}
			// The sandbox stays a while for its log; not without its call.
			if err := cluster.Agent.Delete(ctx, call); err != nil {
				t.Fatal(err)
			}
			watchPolicyOutlives(ctx, t, call, old)
			policies(ctx, t, namespace, left[1:]...)
		})
	}
}

// watchPolicyOutlives waits until no sandbox of a call is left, and fails the
// test if the Tool's NetworkPolicy is gone before.
func watchPolicyOutlives(ctx context.Context, t *testing.T, call *v1alpha1.ToolCall, tool *v1alpha1.Tool) {
	t.Helper()
	of := []client.ListOption{client.InNamespace(tool.Namespace), client.MatchingLabels{v1alpha1.LabelToolUID: string(tool.UID)}}
	if err := until(ctx, func() (bool, error) {
		// In this order: what is seen to be there is there after the policy was not.
		var policies networkingv1.NetworkPolicyList
		if err := cluster.Admin.List(ctx, &policies, of...); err != nil {
			return false, err
		}
		var jobs batchv1.JobList
		var pods corev1.PodList
		if err := cluster.Admin.List(ctx, &jobs, of...); err != nil {
			return false, err
		}
		if err := cluster.Admin.List(ctx, &pods, of...); err != nil {
			return false, err
		}
		left := len(jobs.Items) + len(pods.Items)
		if left > 0 && len(policies.Items) < policiesOfTool {
			return false, fmt.Errorf("a NetworkPolicy is gone before the last sandbox of call %s", call.Name)
		}
		return left == 0, nil
	}); err != nil {
		t.Error(err)
	}
}
