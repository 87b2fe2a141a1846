package controllers

import (
	"errors"
	"strings"
	"testing"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	nodev1 "k8s.io/api/node/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/tools/cache"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/event"

	"callgate.dev/callgate/api/v1alpha1"
	"callgate.dev/callgate/internal/gate"
	"callgate.dev/callgate/internal/sandbox"
)

// A call gets no sandbox that the rules or the cluster do not have, although its
// Tool's status, of a moment or a controller before, says Ready.
func TestNoSandboxAgainstTheRules(t *testing.T) {
	scheme := runtime.NewScheme()
	if err := errors.Join(clientgoscheme.AddToScheme(scheme), v1alpha1.AddToScheme(scheme)); err != nil {
		t.Fatal(err)
	}
	for _, tc := range []struct {
		reason, names string
		rules         sandbox.RuntimeClasses
		class         string // of the sandbox
		hostUsers     *bool
		refusal       string
	}{
		{"no rules", "", sandbox.RuntimeClasses{}, "", ptr.To(false), ""},
		{"its own class, whose handler has no user namespace", "gvisor", sandbox.RuntimeClasses{}, "gvisor", nil, ""},
		{"the default", "", sandbox.RuntimeClasses{Default: "gvisor"}, "gvisor", nil, ""},
		{"its class was deleted", "gone", sandbox.RuntimeClasses{}, "", nil, "RuntimeClassNotFound"},
		{"the default was deleted", "", sandbox.RuntimeClasses{Default: "gone"}, "", nil, "RuntimeClassNotFound"},
		{"a new minimum", "", sandbox.RuntimeClasses{Required: []string{"gvisor"}}, "", nil, "RuntimeClassNotAllowed"},
	} {
		t.Run(tc.reason, func(t *testing.T) {
			c := fake.NewClientBuilder().WithScheme(scheme).WithObjects(
				&nodev1.RuntimeClass{ObjectMeta: metav1.ObjectMeta{Name: "gvisor"}, Handler: "kata"},
				&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "a"}, Status: corev1.NodeStatus{RuntimeHandlers: []corev1.NodeRuntimeHandler{{Name: "kata"}}}},
			).Build()
			call := &v1alpha1.ToolCall{ObjectMeta: metav1.ObjectMeta{Namespace: "agents", Name: "call", UID: "call"}}
			tool := &v1alpha1.Tool{ObjectMeta: metav1.ObjectMeta{Namespace: "tools", Name: "tool", UID: "tool"}}
			tool.Spec.Isolation.RuntimeClassName = tc.names
			r := &ToolCallReconciler{Client: c, APIReader: c, Options: Options{Install: "callgate-system", RuntimeClasses: tc.rules}, api: &apiServer{}}
			verdict, err := r.start(t.Context(), &look{call: call, admitted: gate.Admitted{Tool: tool}, status: &v1alpha1.ToolCallStatus{}})
			if err != nil {
				t.Fatal(err)
			}
			var jobs batchv1.JobList
			if err := c.List(t.Context(), &jobs); err != nil {
				t.Fatal(err)
			}
			if tc.refusal != "" {
				if !verdict.Ended() || verdict.Result.ErrorCode != v1alpha1.ErrorToolUnavailable || !strings.Contains(verdict.Result.Message, tc.refusal) || len(jobs.Items) > 0 {
					t.Errorf("%d sandboxes, verdict %+v", len(jobs.Items), verdict)
				}
				return
			}
			if len(jobs.Items) != 1 {
				t.Fatalf("%d sandboxes, verdict %+v", len(jobs.Items), verdict)
			}
			if pod := jobs.Items[0].Spec.Template.Spec; ptr.Deref(pod.RuntimeClassName, "") != tc.class || !ptr.Equal(pod.HostUsers, tc.hostUsers) {
				t.Errorf("runtimeClassName %v, hostUsers %v", pod.RuntimeClassName, pod.HostUsers)
			}
		})
	}
}

// Of a node the cache keeps what decides, and what a node says all the time
// wakes nobody.
func TestNodesInTheCache(t *testing.T) {
	node := func(change func(*corev1.Node)) *corev1.Node {
		n := &corev1.Node{
			ObjectMeta: metav1.ObjectMeta{Name: "a", UID: "u", ResourceVersion: "1", Labels: map[string]string{"pool": "b"},
				Annotations: map[string]string{"large": "x"}, ManagedFields: []metav1.ManagedFieldsEntry{{Manager: "kubelet"}}},
			Status: corev1.NodeStatus{
				Images:          []corev1.ContainerImage{{Names: []string{"large"}}},
				RuntimeHandlers: []corev1.NodeRuntimeHandler{{Name: "", Features: &corev1.NodeRuntimeHandlerFeatures{UserNamespaces: ptr.To(true)}}},
			},
		}
		change(n)
		slim, err := slimNode(n)
		if err != nil {
			t.Fatal(err)
		}
		return slim.(*corev1.Node)
	}
	before := node(func(*corev1.Node) {})
	if len(before.Annotations)+len(before.ManagedFields)+len(before.Status.Images) > 0 || before.Labels["pool"] != "b" ||
		len(before.Status.RuntimeHandlers) != 1 || before.Name != "a" || before.UID != "u" || before.ResourceVersion != "1" {
		t.Errorf("kept %+v", before)
	}
	for _, tc := range []struct {
		reason string
		change func(*corev1.Node)
		wakes  bool
	}{
		{"a heartbeat", func(n *corev1.Node) {
			n.ResourceVersion = "2"
			n.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, LastHeartbeatTime: metav1.Now()}}
		}, false},
		{"a cordon", func(n *corev1.Node) { n.Spec.Unschedulable = true }, false},
		{"another label", func(n *corev1.Node) { n.Labels["pool"] = "c" }, true},
		{"another runtime", func(n *corev1.Node) { n.Status.RuntimeHandlers[0].Features.UserNamespaces = ptr.To(false) }, true},
	} {
		if got := handlersChanged.Update(event.UpdateEvent{ObjectOld: before, ObjectNew: node(tc.change)}); got != tc.wakes {
			t.Errorf("%s: wakes is %v", tc.reason, got)
		}
	}
	gone := cache.DeletedFinalStateUnknown{Key: "a"}
	if kept, err := slimNode(gone); err != nil || kept != any(gone) {
		t.Errorf("the mark of a deleted node became %v, %v", kept, err)
	}
}
