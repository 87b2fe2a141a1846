package controllers

import (
	"context"
	"strings"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	"k8s.io/client-go/util/workqueue"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"callgate.dev/callgate/api/v1alpha1"
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
	return ignoreConflict(client.IgnoreNotFound(r.Delete(ctx, lease, client.Preconditions{UID: &lease.UID, ResourceVersion: &lease.ResourceVersion})))
}

// orphan looks after the key of a call that has not ended: if the call is gone,
// nobody else will.
func (r *LeaseReconciler) orphan(ctx context.Context, lease *coordinationv1.Lease, record idempotency.Record, now time.Time) (ctrl.Result, error) {
	call, err := holder(ctx, record, r.Client, r.APIReader)
	switch {
	case err != nil:
		return ctrl.Result{}, err
	case call != nil:
		return ctrl.Result{RequeueAfter: orphanPause}, nil
	case !record.Sent:
		return ignoreConflict(client.IgnoreNotFound(r.Delete(ctx, lease, client.Preconditions{UID: &lease.UID, ResourceVersion: &lease.ResourceVersion})))
	}
	lease = lease.DeepCopy()
	if err := idempotency.End(lease, nil, now); err != nil {
		return ctrl.Result{}, err
	}
	return ignoreConflict(client.IgnoreNotFound(r.Update(ctx, lease)))
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
