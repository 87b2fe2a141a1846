package controllers

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	nodev1 "k8s.io/api/node/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	apimeta "k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"callgate.dev/callgate/api/v1alpha1"
	"callgate.dev/callgate/internal/jsonvalue"
	"callgate.dev/callgate/internal/policy"
	"callgate.dev/callgate/internal/sandbox"
	"callgate.dev/callgate/internal/template"
)

const (
	// maxConditionMessage bounds the cluster's own words in a condition; the API
	// server takes 32,768 bytes.
	maxConditionMessage = 4096
	// notReadyRetry is the pause before a Tool is looked at again whose cure no
	// watch shows, such as a RoleBinding.
	notReadyRetry = 3 * time.Second
	// lastSandbox is the pause between two looks whether the sandboxes of a
	// deleted Tool are gone.
	lastSandbox = 5 * time.Second
)

// ToolReconciler says on each Tool whether it can be called, and keeps its
// NetworkPolicy in place before the first sandbox.
type ToolReconciler struct {
	client.Client
	Options
	APIReader client.Reader

	schemas  *schemaCache
	policies *policyCache
	api      *apiServer
}

// problem is why a Tool is not Ready; the zero value means that it is.
type problem struct {
	reason, message string
	// retry: only time or a change that is not watched cures it.
	retry bool
}

// Reconcile writes the Ready condition of one Tool.
func (r *ToolReconciler) Reconcile(ctx context.Context, req ctrl.Request) (ctrl.Result, error) {
	t := &v1alpha1.Tool{}
	if err := r.Get(ctx, req.NamespacedName, t); apierrors.IsNotFound(err) {
		result, err := r.cleanUp(ctx, req)
		if err == nil && result.RequeueAfter == 0 {
			// Its last sandbox is gone, and nobody reads an output by it any more.
			r.schemas.forget(req.NamespacedName)
		}
		return result, err
	} else if err != nil {
		return ctrl.Result{}, err
	}
	p, is, err := r.check(ctx, t)
	if err != nil {
		return ctrl.Result{}, err
	}
	before := t.Status.DeepCopy()
	c := metav1.Condition{Type: v1alpha1.ConditionReady, Status: metav1.ConditionTrue, Reason: v1alpha1.ReasonReady, ObservedGeneration: t.Generation}
	if p.reason != "" {
		c.Status, c.Reason, c.Message = metav1.ConditionFalse, p.reason, jsonvalue.Cut(jsonvalue.Printable(p.message), maxConditionMessage)
	} else {
		words, err := r.approvalWords(ctx, t)
		if err != nil {
			return ctrl.Result{}, err
		}
		_, unproven, err := r.api.probe(ctx, t)
		if err != nil {
			return ctrl.Result{}, err
		}
		c.Message = is.words + words
		if unproven != "" {
			c.Message += "; " + unproven
		}
	}
	t.Status.ObservedGeneration = t.Generation
	apimeta.SetStatusCondition(&t.Status.Conditions, c)
	if !equality.Semantic.DeepEqual(before, &t.Status) {
		if result, err := ignoreConflict(r.Status().Update(ctx, t)); err != nil || result.RequeueAfter > 0 {
			return result, err
		}
	}
	// An older NetworkPolicy of a Tool that had this name goes, too.
	result, err := r.cleanUp(ctx, req)
	if p.retry {
		result.RequeueAfter = notReadyRetry
	}
	return result, err
}

// approvalWarning follows what a Ready Tool says of its isolation.
const approvalWarning = "; warning: calls need an approval"

// approvalWords warn if what was approved is not what runs for sure: an image
// without a digest can change between the two.
func (r *ToolReconciler) approvalWords(ctx context.Context, t *v1alpha1.Tool) (string, error) {
	if strings.Contains(t.Spec.Container.Image, "@sha256:") {
		return "", nil
	}
	needed := t.Spec.Approval == v1alpha1.ApprovalRequired
	if !needed {
		lists, err := listPolicies(ctx, r.Client, t.Namespace)
		if err != nil {
			return "", err
		}
		needed = slices.ContainsFunc(r.policies.compile(lists), func(p *policy.Policy) bool { return p.RequiresApproval(t) })
	}
	if !needed {
		return "", nil
	}
	return approvalWarning + ", and spec.container.image names no digest (@sha256:…), so another image may run than the one that was approved", nil
}

// check returns the first reason why a Tool cannot be called, else how its
// sandboxes are isolated.
func (r *ToolReconciler) check(ctx context.Context, t *v1alpha1.Tool) (p problem, is isolation, err error) {
	s := r.schemas.of(t)
	if s.err != nil {
		return problem{reason: v1alpha1.ReasonInvalidSchema, message: s.err.Error()}, is, nil
	}
	if err := template.Check(t.Spec.Container.Command, s.input.HasProperty); err != nil {
		return problem{reason: v1alpha1.ReasonInvalidCommand, message: "spec." + err.Error()}, is, nil
	}
	if err := sandbox.Check(t); err != nil {
		return problem{reason: v1alpha1.ReasonInvalidSandbox, message: err.Error()}, is, nil
	}
	for _, step := range []func(context.Context, *v1alpha1.Tool) (problem, error){
		r.checkFunctionName, r.checkNamespace,
		func(ctx context.Context, t *v1alpha1.Tool) (problem, error) {
			is, p, err = isolationOf(ctx, r.Client, r.RuntimeClasses, t)
			return p, err
		},
		r.ensureNetworkPolicies,
		func(ctx context.Context, t *v1alpha1.Tool) (problem, error) { return r.checkSandbox(ctx, t, is) },
	} {
		if p, err := step(ctx, t); err != nil || p.reason != "" {
			return p, is, err
		}
	}
	return problem{}, is, nil
}

func (r *ToolReconciler) checkFunctionName(ctx context.Context, t *v1alpha1.Tool) (problem, error) {
	var same v1alpha1.ToolList
	if err := r.List(ctx, &same, client.InNamespace(t.Namespace), client.MatchingFields{indexFunctionName: t.FunctionName()}); err != nil {
		return problem{}, err
	}
	for i := range same.Items {
		if other := &same.Items[i]; other.UID != t.UID && other.DeletionTimestamp == nil {
			return problem{reason: v1alpha1.ReasonDuplicateFunctionName, message: fmt.Sprintf(
				"Tool %s has the function name %q, too: give one of them another spec.functionName", other.Name, t.FunctionName())}, nil
		}
	}
	return problem{}, nil
}

func (r *ToolReconciler) checkNamespace(ctx context.Context, t *v1alpha1.Tool) (problem, error) {
	ns := &corev1.Namespace{}
	if err := r.Get(ctx, client.ObjectKey{Name: t.Namespace}, ns); err != nil {
		return problem{}, err
	}
	if ns.Labels[v1alpha1.LabelTools] != v1alpha1.LabelToolsEnabled {
		return problem{reason: v1alpha1.ReasonNamespaceNotOpen, message: fmt.Sprintf(
			"namespace %s is not opened for Tools: label it %s=%s and bind ClusterRole callgate-tool-namespace to ServiceAccount callgate-controller of namespace %s in it",
			t.Namespace, v1alpha1.LabelTools, v1alpha1.LabelToolsEnabled, r.Install)}, nil
	}
	return problem{}, nil
}

func (r *ToolReconciler) ensureNetworkPolicies(ctx context.Context, t *v1alpha1.Tool) (problem, error) {
	for _, want := range sandbox.NetworkPolicies(t, r.Install) {
		if p, err := r.ensureNetworkPolicy(ctx, t, want); err != nil || p.reason != "" {
			return p, err
		}
	}
	return problem{}, nil
}

func (r *ToolReconciler) ensureNetworkPolicy(ctx context.Context, t *v1alpha1.Tool, want *networkingv1.NetworkPolicy) (problem, error) {
	have, found := &networkingv1.NetworkPolicy{}, true
	err := r.Get(ctx, client.ObjectKeyFromObject(want), have)
	if apierrors.IsNotFound(err) {
		err = r.Create(ctx, want)
		if found = apierrors.IsAlreadyExists(err); found {
			// Somebody took our label off; the cache holds what has it.
			err = r.APIReader.Get(ctx, client.ObjectKeyFromObject(want), have)
		}
	}
	if err == nil && found && !sameNetworkPolicy(have, want) {
		have = have.DeepCopy()
		have.Spec, have.Labels, have.Annotations = want.Spec, want.Labels, want.Annotations
		err = r.Update(ctx, have)
	}
	switch {
	case apierrors.IsForbidden(err):
		return r.notBound(t, err), nil
	case apierrors.IsInvalid(err):
		return problem{reason: v1alpha1.ReasonNetworkPolicyFailed, message: "spec.isolation.network.egress: " + err.Error()}, nil
	case err != nil:
		return problem{}, fmt.Errorf("write NetworkPolicy %s: %w", want.Name, err)
	}
	return problem{}, nil
}

// sameNetworkPolicy compares what matters: the rules, and by what we find it.
func sameNetworkPolicy(have, want *networkingv1.NetworkPolicy) bool {
	return equality.Semantic.DeepEqual(have.Spec, want.Spec) &&
		equality.Semantic.DeepDerivative(want.Labels, have.Labels) &&
		equality.Semantic.DeepDerivative(want.Annotations, have.Annotations)
}

// checkSandbox lets the API server judge the Job that calls of this Tool would
// get, as a dry run.
func (r *ToolReconciler) checkSandbox(ctx context.Context, t *v1alpha1.Tool, is isolation) (problem, error) {
	probe, _, err := r.api.probe(ctx, t)
	if err != nil {
		return problem{}, err
	}
	job := sandbox.Job(sandbox.Input{
		Tool: t, Install: r.Install, RunnerImage: r.RunnerImage, Probe: probe,
		CallUID: t.UID, Call: client.ObjectKeyFromObject(t), Attempt: 1,
		DefaultRuntimeClass: r.RuntimeClasses.Default, NoUserNamespace: !is.userNamespace,
	})
	err = r.Create(ctx, job, client.DryRunAll)
	switch {
	case apierrors.IsForbidden(err) && strings.Contains(err.Error(), "exceeded quota"):
		return problem{}, nil // time cures it; each call waits for it by itself
	case apierrors.IsForbidden(err):
		return r.notBound(t, err), nil
	case apierrors.IsInvalid(err), apierrors.IsBadRequest(err):
		return problem{reason: v1alpha1.ReasonInvalidSandbox, message: "the API server refuses the sandbox of this Tool: " + err.Error()}, nil
	case err != nil && !apierrors.IsAlreadyExists(err):
		return problem{}, fmt.Errorf("try the sandbox of Tool %s: %w", t.Name, err)
	}
	return problem{}, nil
}

func (r *ToolReconciler) notBound(t *v1alpha1.Tool, err error) problem {
	return problem{reason: v1alpha1.ReasonNamespaceNotOpen, retry: true, message: fmt.Sprintf(
		"the API server refuses the controller in namespace %s: %v; bind ClusterRole callgate-tool-namespace to ServiceAccount callgate-controller of namespace %s in it",
		t.Namespace, err, r.Install)}
}

// cleanUp removes the NetworkPolicies of Tools that had this name and are gone,
// each after its last sandbox.
func (r *ToolReconciler) cleanUp(ctx context.Context, req ctrl.Request) (ctrl.Result, error) {
	var policies networkingv1.NetworkPolicyList
	if err := r.List(ctx, &policies, client.InNamespace(req.Namespace)); err != nil {
		return ctrl.Result{}, err
	}
	var live *v1alpha1.Tool
	var next ctrl.Result
	for i := range policies.Items {
		np := &policies.Items[i]
		uid := np.Labels[v1alpha1.LabelToolUID]
		if np.Annotations[v1alpha1.AnnotationTool] != req.Name || uid == "" {
			continue
		}
		if live == nil { // past the cache, which may be behind
			live = &v1alpha1.Tool{}
			if err := r.APIReader.Get(ctx, req.NamespacedName, live); client.IgnoreNotFound(err) != nil {
				return ctrl.Result{}, err
			}
		}
		if string(live.UID) == uid {
			continue
		}
		var jobs batchv1.JobList
		if err := r.APIReader.List(ctx, &jobs, client.InNamespace(req.Namespace), client.MatchingLabels{v1alpha1.LabelToolUID: uid}); err != nil {
			return ctrl.Result{}, err
		}
		var pods corev1.PodList
		if err := r.APIReader.List(ctx, &pods, client.InNamespace(req.Namespace), client.MatchingLabels{v1alpha1.LabelToolUID: uid}); err != nil {
			return ctrl.Result{}, err
		}
		if len(jobs.Items)+len(pods.Items) > 0 {
			next.RequeueAfter = lastSandbox
			continue
		}
		if err := r.Delete(ctx, np, client.Preconditions{UID: &np.UID}); client.IgnoreNotFound(err) != nil {
			return ctrl.Result{}, fmt.Errorf("delete NetworkPolicy %s: %w", np.Name, err)
		}
	}
	return next, nil
}

// ignoreConflict looks again soon, instead of reporting an error, when an
// object has changed since it was read.
func ignoreConflict(err error) (ctrl.Result, error) {
	if apierrors.IsConflict(err) {
		return ctrl.Result{RequeueAfter: retryPause}, nil
	}
	return ctrl.Result{}, client.IgnoreNotFound(err)
}

func (r *ToolReconciler) setup(mgr ctrl.Manager) error {
	return ctrl.NewControllerManagedBy(mgr).
		For(&v1alpha1.Tool{}, builder.WithPredicates(notOnlyWarmStatus)).
		Watches(&v1alpha1.Tool{}, handler.EnqueueRequestsFromMapFunc(r.siblings), builder.WithPredicates(notOnlyWarmStatus)).
		Watches(&v1alpha1.ToolPolicy{}, handler.EnqueueRequestsFromMapFunc(func(ctx context.Context, o client.Object) []reconcile.Request {
			return r.tools(ctx, client.InNamespace(o.GetNamespace()))
		}), builder.WithPredicates(predicate.GenerationChangedPredicate{})).
		Watches(&v1alpha1.ClusterToolPolicy{}, handler.EnqueueRequestsFromMapFunc(func(ctx context.Context, _ client.Object) []reconcile.Request {
			return r.tools(ctx, client.InNamespace(""))
		}), builder.WithPredicates(predicate.GenerationChangedPredicate{})).
		Watches(&corev1.Namespace{}, handler.EnqueueRequestsFromMapFunc(func(ctx context.Context, o client.Object) []reconcile.Request {
			return r.tools(ctx, client.InNamespace(o.GetName()))
		})).
		Watches(&nodev1.RuntimeClass{}, handler.EnqueueRequestsFromMapFunc(func(ctx context.Context, o client.Object) []reconcile.Request {
			return r.tools(ctx, client.MatchingFields{indexRuntimeClass: o.GetName()})
		})).
		Watches(&corev1.Node{}, handler.EnqueueRequestsFromMapFunc(r.otherwiseIsolated), builder.WithPredicates(handlersChanged)).
		Watches(&networkingv1.NetworkPolicy{}, handler.EnqueueRequestsFromMapFunc(func(_ context.Context, o client.Object) []reconcile.Request {
			return []reconcile.Request{{NamespacedName: client.ObjectKey{Namespace: o.GetNamespace(), Name: o.GetAnnotations()[v1alpha1.AnnotationTool]}}}
		})).
		Complete(r)
}

// siblings are the Tools whose readiness the function name of this one decides:
// those that have it, and those that had a conflict before.
func (r *ToolReconciler) siblings(ctx context.Context, o client.Object) []reconcile.Request {
	t, ok := o.(*v1alpha1.Tool)
	if !ok {
		return nil
	}
	var all v1alpha1.ToolList
	if err := r.List(ctx, &all, client.InNamespace(t.Namespace)); err != nil {
		return nil // only a cache that is not started fails
	}
	var requests []reconcile.Request
	for i := range all.Items {
		other := &all.Items[i]
		c := apimeta.FindStatusCondition(other.Status.Conditions, v1alpha1.ConditionReady)
		if other.FunctionName() == t.FunctionName() || c != nil && c.Reason == v1alpha1.ReasonDuplicateFunctionName {
			requests = append(requests, reconcile.Request{NamespacedName: client.ObjectKeyFromObject(other)})
		}
	}
	return requests
}

func (r *ToolReconciler) tools(ctx context.Context, option client.ListOption) []reconcile.Request {
	var list v1alpha1.ToolList
	if err := r.List(ctx, &list, option); err != nil {
		return nil // only a cache that is not started fails
	}
	requests := make([]reconcile.Request, 0, len(list.Items))
	for i := range list.Items {
		requests = append(requests, reconcile.Request{NamespacedName: client.ObjectKeyFromObject(&list.Items[i])})
	}
	return requests
}
