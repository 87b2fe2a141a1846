package controllers

import (
	"context"
	"fmt"
	"strings"

	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	apimeta "k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"callgate.dev/callgate/api/v1alpha1"
	"callgate.dev/callgate/internal/jsonvalue"
)

const (
	// maxFindings bounds the arguments that one condition message names.
	maxFindings = 10
	// maxFindingBytes bounds what a condition quotes of rules: names and texts in
	// them may be long, and a condition's message has at most 32 KiB.
	maxFindingBytes = 8 << 10
)

// ToolPolicyReconciler says on each policy of both kinds whether its rules can
// be read, and whether they read arguments that the Tools declare. The
// decisions themselves read the policies directly.
type ToolPolicyReconciler struct {
	client.Client

	schemas  *schemaCache
	policies *policyCache
}

// reconcileNamespaced writes the conditions of one ToolPolicy.
func (r *ToolPolicyReconciler) reconcileNamespaced(ctx context.Context, req ctrl.Request) (ctrl.Result, error) {
	p := &v1alpha1.ToolPolicy{}
	if err := r.Get(ctx, req.NamespacedName, p); err != nil {
		return r.gone(req, err)
	}
	return r.update(ctx, p, &p.Spec, &p.Status)
}

// reconcileCluster writes the conditions of one ClusterToolPolicy.
func (r *ToolPolicyReconciler) reconcileCluster(ctx context.Context, req ctrl.Request) (ctrl.Result, error) {
	p := &v1alpha1.ClusterToolPolicy{}
	if err := r.Get(ctx, req.NamespacedName, p); err != nil {
		return r.gone(req, err)
	}
	return r.update(ctx, p, &p.Spec, &p.Status)
}

func (r *ToolPolicyReconciler) gone(req ctrl.Request, err error) (ctrl.Result, error) {
	if apierrors.IsNotFound(err) {
		r.policies.forget(req.NamespacedName)
	}
	return ctrl.Result{}, client.IgnoreNotFound(err)
}

func (r *ToolPolicyReconciler) update(ctx context.Context, o client.Object, spec *v1alpha1.ToolPolicySpec, status *v1alpha1.ToolPolicyStatus) (ctrl.Result, error) {
	compiled := r.policies.of(o, spec)
	var tools v1alpha1.ToolList
	if err := r.List(ctx, &tools, client.InNamespace(o.GetNamespace()), client.UnsafeDisableDeepCopy); err != nil {
		return ctrl.Result{}, err
	}
	unknown, unguarded := compiled.Arguments(tools.Items, r.declares, r.requires)

	before := status.DeepCopy()
	status.ObservedGeneration = o.GetGeneration()
	set := func(kind, reason, message string, ok bool) {
		c := metav1.Condition{Type: kind, Status: metav1.ConditionTrue, Reason: reason, Message: message, ObservedGeneration: o.GetGeneration()}
		if !ok {
			c.Status = metav1.ConditionFalse
		}
		apimeta.SetStatusCondition(&status.Conditions, c)
	}
	if err := compiled.Err(); err != nil {
		set(v1alpha1.ConditionReady, v1alpha1.ReasonInvalidRule, finding(strings.ReplaceAll(err.Error(), "\n", "; "))+"; until it is mended the rule counts against every call it selects", false)
	} else {
		set(v1alpha1.ConditionReady, v1alpha1.ReasonReady, "", true)
	}
	switch {
	case len(unknown) > 0:
		set(v1alpha1.ConditionArgumentsKnown, v1alpha1.ReasonUnknownArgument, "no selected Tool declares "+findings(unknown), false)
	case len(unguarded) > 0:
		set(v1alpha1.ConditionArgumentsKnown, v1alpha1.ReasonUnguardedArgument, "read without has(): "+findings(unguarded)+
			"; a call without it counts as not matched by an Allow and as matched by a rule of any other effect", false)
	default:
		set(v1alpha1.ConditionArgumentsKnown, v1alpha1.ReasonArgumentsDeclared, "", true)
	}
	if equality.Semantic.DeepEqual(before, status) {
		return ctrl.Result{}, nil
	}
	return ignoreConflict(r.Status().Update(ctx, o))
}

func findings(all []string) string {
	text := strings.Join(all[:min(len(all), maxFindings)], "; ")
	if n := len(all) - maxFindings; n > 0 {
		text += fmt.Sprintf("; and %d more", n)
	}
	return finding(text)
}

func finding(text string) string {
	return jsonvalue.Cut(jsonvalue.Printable(text), maxFindingBytes)
}

func (r *ToolPolicyReconciler) declares(t *v1alpha1.Tool, name string) bool {
	s := r.schemas.of(t)
	return s.input != nil && s.input.HasProperty(name)
}

func (r *ToolPolicyReconciler) requires(t *v1alpha1.Tool, name string) bool {
	s := r.schemas.of(t)
	return s.input != nil && s.input.RequiresProperty(name)
}

func (r *ToolPolicyReconciler) setup(mgr ctrl.Manager) error {
	if err := ctrl.NewControllerManagedBy(mgr).
		For(&v1alpha1.ToolPolicy{}).
		Watches(&v1alpha1.Tool{}, handler.EnqueueRequestsFromMapFunc(func(ctx context.Context, o client.Object) []reconcile.Request {
			return r.all(ctx, &v1alpha1.ToolPolicyList{}, client.InNamespace(o.GetNamespace()))
		})).
		Complete(reconcile.Func(r.reconcileNamespaced)); err != nil {
		return err
	}
	return ctrl.NewControllerManagedBy(mgr).
		For(&v1alpha1.ClusterToolPolicy{}).
		Watches(&v1alpha1.Tool{}, handler.EnqueueRequestsFromMapFunc(func(ctx context.Context, _ client.Object) []reconcile.Request {
			return r.all(ctx, &v1alpha1.ClusterToolPolicyList{})
		})).
		Complete(reconcile.Func(r.reconcileCluster))
}

// all are the policies whose conditions a change of a Tool may change.
func (r *ToolPolicyReconciler) all(ctx context.Context, list client.ObjectList, where ...client.ListOption) []reconcile.Request {
	if err := r.List(ctx, list, where...); err != nil {
		return nil // only a cache that is not started fails
	}
	var requests []reconcile.Request
	_ = apimeta.EachListItem(list, func(o runtime.Object) error {
		if object, ok := o.(client.Object); ok {
			requests = append(requests, reconcile.Request{NamespacedName: client.ObjectKeyFromObject(object)})
		}
		return nil
	})
	return requests
}
