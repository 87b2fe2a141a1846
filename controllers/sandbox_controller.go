package controllers

import (
	"context"
	"fmt"
	"strings"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"callgate.dev/callgate/api/v1alpha1"
	"callgate.dev/callgate/internal/fault"
	"callgate.dev/callgate/internal/gate"
	"callgate.dev/callgate/internal/sandbox"
)

// SandboxReconciler removes the sandboxes of calls that are complete or gone.
// Without ownerReferences nobody else does.
type SandboxReconciler struct {
	client.Client
	Options
	APIReader client.Reader

	warm *warmPools
}

// Reconcile looks at one Job.
func (r *SandboxReconciler) Reconcile(ctx context.Context, req ctrl.Request) (ctrl.Result, error) {
	job := &batchv1.Job{}
	if err := r.Get(ctx, req.NamespacedName, job); apierrors.IsNotFound(err) {
		r.warm.gone(req.NamespacedName)
		return ctrl.Result{}, nil
	} else if err != nil {
		return ctrl.Result{}, err
	}
	key, uid, err := r.warm.owner(ctx, job)
	if err != nil || key.Name == "" || job.DeletionTimestamp != nil {
		return ctrl.Result{}, err // no call's: of a pool, or none of ours
	}
	call := &v1alpha1.ToolCall{}
	err = r.Get(ctx, key, call)
	if err == nil && call.UID == uid {
		return r.ofCall(ctx, job, call)
	}
	if client.IgnoreNotFound(err) != nil {
		return ctrl.Result{}, err
	}
	// The cache may be behind; an orphan is removed only on proof.
	switch err := r.APIReader.Get(ctx, key, call); {
	case err == nil && call.UID == uid:
		return ctrl.Result{RequeueAfter: quiet}, nil
	case client.IgnoreNotFound(err) != nil:
		return ctrl.Result{}, err
	}
	return r.remove(ctx, job, false)
}

// ofCall removes the sandbox of an attempt that is over. One whose tool has
// answered stays a while, so that its log can be read.
func (r *SandboxReconciler) ofCall(ctx context.Context, job *batchv1.Job, call *v1alpha1.ToolCall) (ctrl.Result, error) {
	attempt := attemptIn(call, job.Name)
	if attempt == nil || attempt.Outcome == "" {
		if !complete(call) {
			return ctrl.Result{}, nil
		}
		return r.remove(ctx, job, false)
	}
	reported := attempt.Outcome == v1alpha1.OutcomeReported
	if reported && attempt.EndTime != nil {
		if left := r.KeepSandboxes - time.Since(attempt.EndTime.Time); left > 0 {
			return ctrl.Result{RequeueAfter: min(left, r.KeepSandboxes)}, nil
		}
	}
	return r.remove(ctx, job, reported)
}

// attemptIn is the attempt that was sent to a sandbox, nil if there is none.
func attemptIn(call *v1alpha1.ToolCall, sandbox string) *v1alpha1.Attempt {
	for i := range call.Status.Attempts {
		if call.Status.Attempts[i].Sandbox == sandbox {
			return &call.Status.Attempts[i]
		}
	}
	return nil
}

// forbiddenPause is the pause after a sandbox was not to be removed.
const forbiddenPause = time.Minute

func (r *SandboxReconciler) remove(ctx context.Context, job *batchv1.Job, exits bool) (ctrl.Result, error) {
	err := r.delete(ctx, job, exits)
	if apierrors.IsForbidden(err) {
		// Its namespace is closed, or never was opened: anybody can make a Job there
		// that looks like ours, which must not keep us busy.
		return ctrl.Result{RequeueAfter: forbiddenPause}, nil
	}
	return ctrl.Result{}, err
}

// delete deletes the pod of a sandbox that may still work, then the Job.
func (r *SandboxReconciler) delete(ctx context.Context, job *batchv1.Job, exits bool) error {
	if !exits {
		var pods corev1.PodList
		if err := r.List(ctx, &pods, client.InNamespace(job.Namespace), client.MatchingFields{indexJob: job.Name}); err != nil {
			return err
		}
		for i := range pods.Items {
			pod := &pods.Items[i]
			if pod.DeletionTimestamp != nil || !metav1.IsControlledBy(pod, job) {
				continue
			}
			// Never 0: a forced deletion would forget a container that still runs.
			if err := r.Delete(ctx, pod, client.GracePeriodSeconds(1), client.Preconditions{UID: &pod.UID}); client.IgnoreNotFound(err) != nil {
				return fmt.Errorf("delete the sandbox's pod: %w", err)
			}
		}
	}
	fault.At("sandbox-removal")
	// A conflict, too, is looked at again: that it is another Job by now is not the
	// only cause of one, and nothing else may come to look at this one.
	err := r.Delete(ctx, job, client.PropagationPolicy(metav1.DeletePropagationBackground), client.Preconditions{UID: &job.UID})
	if client.IgnoreNotFound(err) != nil {
		return fmt.Errorf("delete the sandbox: %w", err)
	}
	return nil
}

func (r *SandboxReconciler) setup(mgr ctrl.Manager) error {
	return ctrl.NewControllerManagedBy(mgr).
		Named("sandbox").
		For(&batchv1.Job{}).
		WithOptions(controller.Options{RateLimiter: retries()}).
		Watches(&v1alpha1.ToolCall{}, handler.EnqueueRequestsFromMapFunc(sandboxesOfCall)).
		Complete(r)
}

// sandboxesOfCall are the sandboxes that a call may have: of its last attempt,
// and of the one that is being prepared.
func sandboxesOfCall(_ context.Context, o client.Object) []reconcile.Request {
	call, ok := o.(*v1alpha1.ToolCall)
	if !ok {
		return nil
	}
	namespace, next := gate.ToolNamespace(call), nextAttempt(call)
	var requests []reconcile.Request
	if n := len(call.Status.Attempts); n > 0 && sandbox.IsWarm(call.Status.Attempts[n-1].Sandbox) {
		requests = append(requests, reconcile.Request{NamespacedName: types.NamespacedName{Namespace: namespace, Name: call.Status.Attempts[n-1].Sandbox}})
	}
	for n := max(next-1, 1); n <= next; n++ {
		requests = append(requests, reconcile.Request{NamespacedName: types.NamespacedName{Namespace: namespace, Name: sandbox.JobName(call.UID, n)}})
	}
	return requests
}

// callKey reads the annotation that names a sandbox's call.
func callKey(o client.Object) (types.NamespacedName, bool) {
	namespace, name, ok := strings.Cut(o.GetAnnotations()[v1alpha1.AnnotationCall], "/")
	return types.NamespacedName{Namespace: namespace, Name: name}, ok && namespace != "" && name != ""
}
