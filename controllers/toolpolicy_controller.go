package controllers

import (
	"context"

	"k8s.io/apimachinery/pkg/api/equality"
	apimeta "k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"callgate.dev/callgate/api/v1alpha1"
	"callgate.dev/callgate/internal/policy"
)

// ToolPolicyReconciler says on each policy whether its rules can be read. The
// decisions themselves read the policies directly.
type ToolPolicyReconciler struct {
	client.Client
}

// Reconcile writes the Ready condition of one policy.
func (r *ToolPolicyReconciler) Reconcile(ctx context.Context, req ctrl.Request) (ctrl.Result, error) {
	p := &v1alpha1.ToolPolicy{}
	if err := r.Get(ctx, req.NamespacedName, p); err != nil {
		return ctrl.Result{}, client.IgnoreNotFound(err)
	}
	before := p.Status.DeepCopy()
	c := metav1.Condition{Type: v1alpha1.ConditionReady, Status: metav1.ConditionTrue, Reason: v1alpha1.ReasonReady, ObservedGeneration: p.Generation}
	if err := policy.Check(p); err != nil {
		c.Status, c.Reason, c.Message = metav1.ConditionFalse, v1alpha1.ReasonInvalidRule, err.Error()
	}
	p.Status.ObservedGeneration = p.Generation
	apimeta.SetStatusCondition(&p.Status.Conditions, c)
	if equality.Semantic.DeepEqual(before, &p.Status) {
		return ctrl.Result{}, nil
	}
	return ignoreConflict(r.Status().Update(ctx, p))
}

func (r *ToolPolicyReconciler) setup(mgr ctrl.Manager) error {
	return ctrl.NewControllerManagedBy(mgr).For(&v1alpha1.ToolPolicy{}).Complete(r)
}
