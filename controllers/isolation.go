package controllers

import (
	"context"
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"
	nodev1 "k8s.io/api/node/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	apimeta "k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"callgate.dev/callgate/api/v1alpha1"
	"callgate.dev/callgate/internal/sandbox"
)

// isolation is what the cluster adds to what a Tool says of its sandboxes.
type isolation struct {
	userNamespace bool
	words         string
}

// isolationOf finds the isolation of a Tool's sandboxes, or why it can have none
// that is allowed: there is no fall-back.
func isolationOf(ctx context.Context, c client.Reader, classes sandbox.RuntimeClasses, t *v1alpha1.Tool) (isolation, problem, error) {
	if refusal := classes.Refuse(t); refusal != "" {
		return isolation{}, problem{reason: v1alpha1.ReasonRuntimeClassNotAllowed, message: refusal}, nil
	}
	var class *nodev1.RuntimeClass
	if name := classes.Of(t); name != "" {
		class = &nodev1.RuntimeClass{}
		if err := c.Get(ctx, client.ObjectKey{Name: name}, class); apierrors.IsNotFound(err) {
			return isolation{}, problem{reason: v1alpha1.ReasonRuntimeClassNotFound, message: classes.Missing(t)}, nil
		} else if err != nil {
			return isolation{}, problem{}, fmt.Errorf("read RuntimeClass %s: %w", name, err)
		}
	}
	var nodes corev1.NodeList
	if err := c.List(ctx, &nodes, client.UnsafeDisableDeepCopy); err != nil {
		return isolation{}, problem{}, fmt.Errorf("list the nodes: %w", err)
	}
	var i isolation
	i.userNamespace, i.words = sandbox.Users(class, nodes.Items)
	return i, problem{}, nil
}

// slimNode keeps of a node in the cache what [sandbox.Users] looks at, and whether
// it is cordoned.
func slimNode(o any) (any, error) {
	node, ok := o.(*corev1.Node)
	if !ok {
		return o, nil // the mark of an object that was deleted unseen
	}
	return &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: node.Name, UID: node.UID, ResourceVersion: node.ResourceVersion, Labels: node.Labels},
		Spec:       corev1.NodeSpec{Unschedulable: node.Spec.Unschedulable},
		Status:     corev1.NodeStatus{RuntimeHandlers: node.Status.RuntimeHandlers},
	}, nil
}

// handlersChanged leaves out what a node says of itself all the time.
var handlersChanged = predicate.Funcs{UpdateFunc: func(e event.UpdateEvent) bool {
	before, ok := e.ObjectOld.(*corev1.Node)
	after, ok2 := e.ObjectNew.(*corev1.Node)
	return !ok || !ok2 || !equality.Semantic.DeepEqual(before.Labels, after.Labels) ||
		!equality.Semantic.DeepEqual(before.Status.RuntimeHandlers, after.Status.RuntimeHandlers)
}}

// otherwiseIsolated are the Tools whose status says something else of their
// isolation than the nodes do now. Nodes come and go, and few make a difference.
func (r *ToolReconciler) otherwiseIsolated(ctx context.Context, _ client.Object) []reconcile.Request {
	var tools v1alpha1.ToolList
	if err := r.List(ctx, &tools, client.UnsafeDisableDeepCopy); err != nil {
		return nil // only a cache that is not started fails
	}
	now := map[string]isolation{} // by RuntimeClass
	var requests []reconcile.Request
	for i := range tools.Items {
		t := &tools.Items[i]
		name := r.RuntimeClasses.Of(t)
		is, known := now[name]
		if !known {
			var err error
			if is, _, err = isolationOf(ctx, r.Client, r.RuntimeClasses, t); err != nil {
				return nil
			}
			now[name] = is
		}
		c := apimeta.FindStatusCondition(t.Status.Conditions, v1alpha1.ConditionReady)
		if c != nil && c.Status == metav1.ConditionTrue {
			if words, _, _ := strings.Cut(c.Message, approvalWarning); words == is.words {
				continue
			}
		}
		requests = append(requests, reconcile.Request{NamespacedName: client.ObjectKeyFromObject(t)})
	}
	return requests
}
