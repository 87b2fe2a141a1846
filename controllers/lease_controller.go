package controllers

import (
	"context"
	"strings"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/client-go/util/workqueue"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"callgate.dev/callgate/api/v1alpha1"
	"callgate.dev/callgate/internal/gate"
	"callgate.dev/callgate/internal/idempotency"
)

// orphanPause is the pause between two looks whether a call that holds a key is
// still there, should the news of its deletion be lost.
const orphanPause = 10 * time.Minute

// LeaseReconciler removes the Leases that are not needed any more: of keys and
// rate limits whose time is over, and of calls that were deleted before they
// could have run.
type LeaseReconciler struct {
	client.Client
	APIReader client.Reader
}

// Reconcile looks at one Lease.
func (r *LeaseReconciler) Reconcile(ctx context.Context, req ctrl.Request) (ctrl.Result, error) {
	lease, err := getLease(ctx, r.Client, req.NamespacedName)
	if err != nil || lease == nil {
		return ctrl.Result{}, err
	}
	key := strings.HasPrefix(lease.Name, idempotency.LeasePrefix)
	if !key && !strings.HasPrefix(lease.Name, ratePrefix) {
		return ctrl.Result{}, nil
	}
	record := idempotency.Read(lease)
	now := time.Now()
	switch left := record.Expires.Sub(now); {
	case key && record.Ended.IsZero():
		return r.orphan(ctx, lease, record, now)
	case left > 0:
		return ctrl.Result{RequeueAfter: min(left+time.Second, time.Hour)}, nil
	}
	return r.remove(ctx, lease)
}

func (r *LeaseReconciler) remove(ctx context.Context, lease *coordinationv1.Lease) (ctrl.Result, error) {
	return r.written(r.Delete(ctx, lease, client.Preconditions{UID: &lease.UID, ResourceVersion: &lease.ResourceVersion}))
}

// written is what follows from the answer to a write.
func (r *LeaseReconciler) written(err error) (ctrl.Result, error) {
	if apierrors.IsForbidden(err) {
		// Its namespace is closed, or never was opened: anybody can make a Lease of
		// that name there, which must not keep us busy.
		return ctrl.Result{RequeueAfter: orphanPause}, nil
	}
	return ignoreConflict(client.IgnoreNotFound(err))
}

// orphan looks after the key that has no end: if its call is gone, nobody else
// will, nor if the call has ended and could not say so here.
func (r *LeaseReconciler) orphan(ctx context.Context, lease *coordinationv1.Lease, record idempotency.Record, now time.Time) (ctrl.Result, error) {
	call, err := holder(ctx, record, r.Client, r.APIReader)
	var result *v1alpha1.Result
	switch {
	case err != nil:
		return ctrl.Result{}, err
	case call != nil && (call.Status.Result == nil || lease.Namespace != gate.ToolNamespace(call)):
		// Under way. Or not its Lease, which would tell its result to somebody else.
		return ctrl.Result{RequeueAfter: orphanPause}, nil
	case call != nil && gate.Frees(&call.Status), call == nil && !record.Sent:
		return r.remove(ctx, lease)
	case call != nil:
		result = call.Status.Result
	}
	lease = lease.DeepCopy()
	if err := idempotency.End(lease, result, now); err != nil {
		return ctrl.Result{}, err
	}
	return r.written(r.Update(ctx, lease))
}

func (r *LeaseReconciler) setup(mgr ctrl.Manager) error {
	return ctrl.NewControllerManagedBy(mgr).
		Named("lease").
		For(&coordinationv1.Lease{}).
		Watches(&v1alpha1.ToolCall{}, handler.Funcs{DeleteFunc: func(ctx context.Context, e event.DeleteEvent, q workqueue.TypedRateLimitingInterface[reconcile.Request]) {
			var held coordinationv1.LeaseList
			// Only a cache that is not started fails.
			_ = r.List(ctx, &held, client.MatchingFields{indexHolder: string(e.Object.GetUID())})
			for i := range held.Items {
				// Of one that was sent there is nothing to remove, and no hurry to note its end.
				if !idempotency.Read(&held.Items[i]).Sent {
					q.Add(reconcile.Request{NamespacedName: client.ObjectKeyFromObject(&held.Items[i])})
				}
			}
		}}).
		WithOptions(controller.Options{RateLimiter: retries()}).
		Complete(r)
}
