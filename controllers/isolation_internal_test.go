package controllers

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/event"
)

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
