package controllers_test

import (
	"slices"
	"strconv"
	"testing"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	nodev1 "k8s.io/api/node/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"callgate.dev/callgate/api/v1alpha1"
	"callgate.dev/callgate/internal/sandbox"
)

func setSpec(t *testing.T, tool *v1alpha1.Tool, change func(*v1alpha1.ToolSpec)) {
	t.Helper()
	eventually(t, "Tool "+tool.Name+" changed", func() (bool, any) {
		if err := admin.Get(t.Context(), keyOf(tool), tool); err != nil {
			return false, err
		}
		change(&tool.Spec)
		err := admin.Update(t.Context(), tool)
		return err == nil, err
	})
}

func TestToolReady(t *testing.T) {
	t.Parallel()
	tools := openNamespace(t)
	allow(t, tools)
	healthy := newTool(t, tools, "healthy")
	for _, test := range []struct {
		reason  string
		name    string
		broken  func(*v1alpha1.ToolSpec)
		ready   string
		message []string
		cure    func(*testing.T, *v1alpha1.Tool)
	}{
		{
			reason: "a schema that does not compile is named with its pointer", name: "input-schema",
			broken: func(s *v1alpha1.ToolSpec) {
				s.InputSchema = rawJSON(`{"type":"object","properties":{"n":{"type":"integr"}}}`)
			},
			ready: v1alpha1.ReasonInvalidSchema, message: []string{"spec.inputSchema", "/properties/n/type"},
			cure: func(t *testing.T, tool *v1alpha1.Tool) {
				setSpec(t, tool, func(s *v1alpha1.ToolSpec) { s.InputSchema = rawJSON(`{"type":"object"}`) })
			},
		},
		{
			reason: "so is an output schema", name: "output-schema",
			broken: func(s *v1alpha1.ToolSpec) {
				out := rawJSON(`{"type":"object","required":"updated"}`)
				s.OutputSchema = &out
			},
			ready: v1alpha1.ReasonInvalidSchema, message: []string{"spec.outputSchema", "/required"},
			cure: func(t *testing.T, tool *v1alpha1.Tool) {
				setSpec(t, tool, func(s *v1alpha1.ToolSpec) { s.OutputSchema = nil })
			},
		},
		{
			reason: "an argument in the command that the schema lacks", name: "command",
			broken: func(s *v1alpha1.ToolSpec) { s.Container.Command = []string{"/tool", "$(args.missing)"} },
			ready:  v1alpha1.ReasonInvalidCommand, message: []string{"spec.container.command[1]", "missing"},
			cure: func(t *testing.T, tool *v1alpha1.Tool) {
				setSpec(t, tool, func(s *v1alpha1.ToolSpec) { s.Container.Command = []string{"/tool"} })
			},
		},
		{
			reason: "a RuntimeClass that does not exist; no silent fall-back", name: "runtime-class",
			broken: func(s *v1alpha1.ToolSpec) { s.Isolation.RuntimeClassName = "later" },
			ready:  v1alpha1.ReasonRuntimeClassNotFound, message: []string{"spec.isolation.runtimeClassName", `"later"`},
			cure: func(t *testing.T, _ *v1alpha1.Tool) {
				create(t, &nodev1.RuntimeClass{ObjectMeta: metav1.ObjectMeta{Name: "later"}, Handler: "runsc"})
			},
		},
		{
			reason: "requests above limits make no valid pod", name: "resources",
			broken: func(s *v1alpha1.ToolSpec) {
				s.Container.Resources.Requests = corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("2")}
			},
			ready: v1alpha1.ReasonInvalidSandbox, message: []string{"requests", "cpu"},
			cure: func(t *testing.T, tool *v1alpha1.Tool) {
				setSpec(t, tool, func(s *v1alpha1.ToolSpec) { s.Container.Resources.Requests = nil })
			},
		},
		{
			reason: "an address range that is none", name: "egress",
			broken: func(s *v1alpha1.ToolSpec) {
				s.Isolation.Network.Egress = []networkingv1.NetworkPolicyEgressRule{{To: []networkingv1.NetworkPolicyPeer{
					{IPBlock: &networkingv1.IPBlock{CIDR: "10.0.0.0/99"}}}}}
			},
			ready: v1alpha1.ReasonNetworkPolicyFailed, message: []string{"spec.isolation.network.egress", "10.0.0.0/99"},
			cure: func(t *testing.T, tool *v1alpha1.Tool) {
				// Everything, and names: the API server takes the policy with all its exceptions.
				setSpec(t, tool, func(s *v1alpha1.ToolSpec) {
					s.Isolation.Network = v1alpha1.ToolNetwork{DNS: v1alpha1.DNSCluster, Egress: []networkingv1.NetworkPolicyEgressRule{{}}}
				})
			},
		},
	} {
		t.Run(test.reason, func(t *testing.T) {
			t.Parallel()
			tool := toolObject(tools, test.name, test.broken)
			create(t, tool)
			message := waitForReady(t, tool, metav1.ConditionFalse, test.ready)
			for _, part := range test.message {
				if !contains(message, part) {
					t.Errorf("message %q does not say %q", message, part)
				}
			}
			call := waitForEnd(t, newCall(t, tools, test.name))
			want{code: v1alpha1.ErrorToolUnavailable, message: append(test.message, test.ready)}.check(t, call)

			// Others are not disturbed.
			if now := waitForReady(t, healthy.DeepCopy(), metav1.ConditionTrue, v1alpha1.ReasonReady); now == "" {
				t.Error("a Ready Tool does not say how its sandboxes are isolated")
			}
			jobOf(t, newCall(t, tools, "healthy"))

			test.cure(t, tool)
			waitForReady(t, tool, metav1.ConditionTrue, v1alpha1.ReasonReady)
		})
	}
}

func TestDuplicateFunctionName(t *testing.T) {
	t.Parallel()
	tools := openNamespace(t)
	allow(t, tools)
	named := func(name string) func(*v1alpha1.ToolSpec) {
		return func(s *v1alpha1.ToolSpec) { s.FunctionName = name }
	}
	first := newTool(t, tools, "first", named("same"))
	second := toolObject(tools, "second", named("same"))
	create(t, second)
	for tool, other := range map[*v1alpha1.Tool]string{first: "second", second: "first"} {
		if message := waitForReady(t, tool, metav1.ConditionFalse, v1alpha1.ReasonDuplicateFunctionName); !contains(message, other) {
			t.Errorf("Tool %s does not name the other one: %s", tool.Name, message)
		}
	}
	byFunction := func(s *v1alpha1.ToolCallSpec) {
		s.ToolRef = v1alpha1.ToolReference{Namespace: tools, FunctionName: "same"}
	}
	want{code: v1alpha1.ErrorToolUnavailable, message: []string{v1alpha1.ReasonDuplicateFunctionName}}.
		check(t, waitForEnd(t, newCall(t, tools, "first")))
	want{code: v1alpha1.ErrorToolUnavailable, message: []string{`"same"`}}.
		check(t, waitForEnd(t, newCall(t, tools, "", byFunction)))
	setSpec(t, second, named("other"))
	waitForReady(t, first, metav1.ConditionTrue, v1alpha1.ReasonReady)
	waitForReady(t, second, metav1.ConditionTrue, v1alpha1.ReasonReady)
	setSpec(t, second, named("same"))
	waitForReady(t, first, metav1.ConditionFalse, v1alpha1.ReasonDuplicateFunctionName)
	remove(t, second)
	waitForReady(t, first, metav1.ConditionTrue, v1alpha1.ReasonReady)
	jobOf(t, newCall(t, tools, "", byFunction))
}

func TestNamespaceNotOpen(t *testing.T) {
	t.Parallel()
	t.Run("by its label", func(t *testing.T) {
		t.Parallel()
		namespace := closedNamespace(t)
		create(t, toolsBinding(namespace))
		waitForBinding(t, namespace, true)
		tool := toolObject(namespace, "tool")
		create(t, tool)
		if message := waitForReady(t, tool, metav1.ConditionFalse, v1alpha1.ReasonNamespaceNotOpen); !contains(message, "callgate.dev/tools=enabled") {
			t.Errorf("the message does not say what to do: %s", message)
		}
		label(t, namespace, v1alpha1.LabelToolsEnabled)
		waitForReady(t, tool, metav1.ConditionTrue, v1alpha1.ReasonReady)
		label(t, namespace, "no")
		waitForReady(t, tool, metav1.ConditionFalse, v1alpha1.ReasonNamespaceNotOpen)
	})
	t.Run("by a RoleBinding", func(t *testing.T) {
		t.Parallel()
		namespace := closedNamespace(t)
		label(t, namespace, v1alpha1.LabelToolsEnabled)
		tool := toolObject(namespace, "tool")
		create(t, tool)
		if message := waitForReady(t, tool, metav1.ConditionFalse, v1alpha1.ReasonNamespaceNotOpen); !contains(message, "bind ClusterRole callgate-tool-namespace") {
			t.Errorf("the message does not say what to do: %s", message)
		}
		create(t, toolsBinding(namespace))
		waitForReady(t, tool, metav1.ConditionTrue, v1alpha1.ReasonReady)
	})
}

// A quota that is used up is cured by time. It says nothing about the Tool.
func TestToolReadyWithoutQuota(t *testing.T) {
	t.Parallel()
	tools := openNamespace(t)
	newQuota(t, tools, "count/jobs.batch")
	newTool(t, tools, "tool")
}

func newQuota(t *testing.T, namespace string, name corev1.ResourceName) *corev1.ResourceQuota {
	t.Helper()
	quota := &corev1.ResourceQuota{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "none"},
		Spec: corev1.ResourceQuotaSpec{Hard: corev1.ResourceList{name: resource.MustParse("0")}}}
	create(t, quota)
	eventually(t, "the quota in force", func() (bool, any) {
		return get(t, keyOf(quota), quota) && len(quota.Status.Hard) > 0, quota.Status
	})
	return quota
}

func networkPolicyOf(tool *v1alpha1.Tool) client.ObjectKey {
	return client.ObjectKey{Namespace: tool.Namespace, Name: sandbox.NetworkPolicyName(tool.UID)}
}

func TestNetworkPolicy(t *testing.T) {
	t.Parallel()
	tools := openNamespace(t)
	tool := newTool(t, tools, "tool")
	for suffix, direction := range map[string]networkingv1.PolicyType{"": networkingv1.PolicyTypeEgress, "-ingress": networkingv1.PolicyTypeIngress} {
		t.Run(string(direction), func(t *testing.T) {
			key := networkPolicyOf(tool)
			key.Name += suffix
			testNetworkPolicy(t, tool, key, direction)
		})
	}
}

func testNetworkPolicy(t *testing.T, tool *v1alpha1.Tool, key client.ObjectKey, direction networkingv1.PolicyType) {
	original := &networkingv1.NetworkPolicy{}
	if !get(t, key, original) {
		t.Fatal("a Ready Tool has no NetworkPolicy")
	}
	// Revisions of etcd: both objects were written once, or the Tool later.
	if made, ready := revision(t, original), revision(t, tool); made > ready {
		t.Errorf("the NetworkPolicy was written at %d, after Ready at %d", made, ready)
	}
	if len(original.Spec.Egress)+len(original.Spec.Ingress) > 0 || !slices.Equal(original.Spec.PolicyTypes, []networkingv1.PolicyType{direction}) {
		t.Errorf("not closed: %s", show(original.Spec))
	}
	// One after the other: they change the same object.
	for _, test := range []struct{ reason, patch string }{
		{"deleted", ""},
		{"opened", `{"spec":{"egress":[{}]}}`},
		{"made to select nothing", `{"spec":{"podSelector":{"matchLabels":{"a":"b"}}}}`},
		{"without the label by which we see it", `{"metadata":{"labels":{"callgate.dev/install":null}}}`},
		{"with another Tool's label", `{"metadata":{"labels":{"callgate.dev/tool-uid":"other"}}}`},
		{"without the name of its Tool", `{"metadata":{"annotations":null}}`},
	} {
		np := original.DeepCopy()
		if test.patch == "" {
			remove(t, np)
		} else {
			patch(t, admin, np, test.patch)
		}
		err := poll(t.Context(), "restored after it was "+test.reason, func() (bool, any) {
			now := &networkingv1.NetworkPolicy{}
			ok := get(t, key, now)
			return ok && equality.Semantic.DeepEqual(now.Spec, original.Spec) && equality.Semantic.DeepEqual(now.Labels, original.Labels) &&
				equality.Semantic.DeepEqual(now.Annotations, original.Annotations), now
		})
		if err != nil {
			t.Error(err)
		}
	}
}

func revision(t *testing.T, o client.Object) int64 {
	t.Helper()
	n, err := strconv.ParseInt(o.GetResourceVersion(), 10, 64)
	if err != nil {
		t.Fatal(err)
	}
	return n
}

func TestNetworkPolicyOutlivesTheTool(t *testing.T) {
	t.Parallel()
	tools := openNamespace(t)
	allow(t, tools)
	tool := newTool(t, tools, "tool")
	idle := newTool(t, tools, "idle")
	release := make(chan struct{})
	call := newCall(t, tools, "tool")
	startPod(t, call, func(c toolCall) toolResult { <-release; return prints(`"late"`, 0)(c) })
	waitForSend(t, call)
	remove(t, tool)
	remove(t, idle)
	eventually(t, "the NetworkPolicy of a Tool without sandboxes removed", func() (bool, any) {
		var left networkingv1.NetworkPolicyList
		err := admin.List(t.Context(), &left, client.InNamespace(tools), client.MatchingLabels{v1alpha1.LabelToolUID: string(idle.UID)})
		return err == nil && len(left.Items) == 0, left.Items
	})
	if !get(t, networkPolicyOf(tool), &networkingv1.NetworkPolicy{}) {
		t.Fatal("the NetworkPolicy went before the last sandbox")
	}
	close(release)
	// The Tool is gone; how its output is read is not.
	call = waitForEnd(t, call)
	want{}.check(t, call)
	if got := string(call.Status.Result.Data.Raw); got != `"late"` {
		t.Errorf("data is %s", got)
	}
	eventually(t, "the NetworkPolicy removed", func() (bool, any) {
		if get(t, networkPolicyOf(tool), &networkingv1.NetworkPolicy{}) {
			return false, "there"
		}
		if get(t, jobKey(tools, call), &jobType{}) {
			t.Fatal("the NetworkPolicy went before the last Job")
		}
		return true, nil
	})
	want{code: v1alpha1.ErrorToolNotFound}.check(t, waitForEnd(t, newCall(t, tools, "tool")))
}
