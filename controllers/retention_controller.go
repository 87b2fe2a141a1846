package controllers

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/workqueue"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"callgate.dev/callgate/api/v1alpha1"
)

const (
	// sweepPause is the least time between two looks at the finished calls of a
	// namespace: one look reads all of them.
	sweepPause = 10 * time.Second
	// sweepSize bounds the calls that one look deletes.
	sweepSize = 500
)

// Retention says how long finished calls are kept.
type Retention struct {
	// DefaultTTL is for calls that do not ask for one, MaxTTL for those that ask
	// for more.
	DefaultTTL, MaxTTL time.Duration
	// MaxFinished bounds the finished calls of one namespace; the oldest go first.
	MaxFinished int
}

// ttl is how long a call is kept after its end: what it asks for, within bounds.
func (r Retention) ttl(call *v1alpha1.ToolCall) time.Duration {
	if wish := call.Spec.TTLSecondsAfterFinished; wish != nil {
		return min(time.Duration(*wish)*time.Second, r.MaxTTL)
	}
	return min(r.DefaultTTL, r.MaxTTL)
}

// end is when a finished call is not kept any longer.
func (r Retention) end(call *v1alpha1.ToolCall) time.Time {
	return call.Status.CompletionTime.Add(r.ttl(call))
}

// due returns the calls that are not kept any longer, oldest end first, and when
// the next one is due; zero if there is none.
func (r Retention) due(calls []v1alpha1.ToolCall, now time.Time) (due []*v1alpha1.ToolCall, next time.Time) {
	finished := make([]*v1alpha1.ToolCall, 0, len(calls))
	for i := range calls {
		if calls[i].Status.CompletionTime != nil && calls[i].DeletionTimestamp == nil {
			finished = append(finished, &calls[i])
		}
	}
	slices.SortFunc(finished, func(a, b *v1alpha1.ToolCall) int {
		return cmp.Or(a.Status.CompletionTime.Compare(b.Status.CompletionTime.Time), cmp.Compare(a.UID, b.UID))
	})
	over := -r.MaxFinished
	for _, call := range finished {
		if r.end(call).After(now) {
			over++
		}
	}
	for _, call := range finished {
		switch end := r.end(call); {
		case !end.After(now):
			due = append(due, call)
		case over > 0:
			over--
			due = append(due, call)
		case next.IsZero() || end.Before(next):
			next = end
		}
	}
	return due, next
}

// RetentionReconciler deletes finished calls whose time is over. Its requests
// name namespaces.
type RetentionReconciler struct {
	client.Client
	Options
}

// Reconcile looks at the finished calls of one namespace.
func (r *RetentionReconciler) Reconcile(ctx context.Context, req ctrl.Request) (ctrl.Result, error) {
	var calls v1alpha1.ToolCallList
	// They are only read.
	if err := r.List(ctx, &calls, client.InNamespace(req.Name), client.MatchingFields{indexFinished: "true"}, client.UnsafeDisableDeepCopy); err != nil {
		return ctrl.Result{}, err
	}
	now := time.Now()
	due, next := r.due(calls.Items, now)
	for _, call := range due[:min(len(due), sweepSize)] {
		err := r.Delete(ctx, call, client.Preconditions{UID: &call.UID})
		if client.IgnoreNotFound(err) != nil {
			return ctrl.Result{}, fmt.Errorf("delete finished call %s: %w", client.ObjectKeyFromObject(call), err)
		}
	}
	switch {
	case len(due) > 0:
		return ctrl.Result{RequeueAfter: sweepPause}, nil
	case next.IsZero():
		return ctrl.Result{}, nil
	}
	return ctrl.Result{RequeueAfter: max(next.Sub(now), sweepPause)}, nil
}

func (r *RetentionReconciler) setup(mgr ctrl.Manager) error {
	type queue = workqueue.TypedRateLimitingInterface[reconcile.Request]
	look := func(o client.Object, q queue) {
		if call, ok := o.(*v1alpha1.ToolCall); ok && complete(call) {
			// Not at once: many calls end together, and one look is for all of them.
			q.AddAfter(reconcile.Request{NamespacedName: types.NamespacedName{Name: call.Namespace}}, sweepPause)
		}
	}
	return ctrl.NewControllerManagedBy(mgr).
		Named("retention").
		WithOptions(controller.Options{RateLimiter: retries()}).
		Watches(&v1alpha1.ToolCall{}, handler.Funcs{
			CreateFunc: func(_ context.Context, e event.CreateEvent, q queue) { look(e.Object, q) },
			UpdateFunc: func(_ context.Context, e event.UpdateEvent, q queue) { look(e.ObjectNew, q) },
		}).
		Complete(r)
}
