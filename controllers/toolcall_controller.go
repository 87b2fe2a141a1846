package controllers

import (
	"context"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/tools/events"
	"k8s.io/client-go/util/workqueue"
	"k8s.io/utils/keymutex"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	"sigs.k8s.io/controller-runtime/pkg/source"

	"callgate.dev/callgate/api/v1alpha1"
	"callgate.dev/callgate/internal/dispatch"
	"callgate.dev/callgate/internal/gate"
	"callgate.dev/callgate/internal/limit"
)

const (
	// apiTimeout bounds one request to the API server that is not a stream.
	apiTimeout = 30 * time.Second
	// quiet is how long a call may wait before its status says so: most waits
	// are shorter, and a write would cost them time.
	quiet = time.Second
	// retryPause is the pause before a decision is made again whose write was
	// overtaken by another one.
	retryPause = 20 * time.Millisecond
	// parallelCalls is how many calls are looked at at once. A look only reads
	// the cache and writes one or two objects.
	parallelCalls = 16
)

// ToolCallReconciler takes each call through its life: it gathers what is
// known, lets package gate decide, and does what the verdict says.
type ToolCallReconciler struct {
	client.Client
	Options
	APIReader client.Reader
	Events    typedcorev1.EventsGetter
	Recorder  events.EventRecorder
	Stamping  func() gate.Stamping

	schemas    *schemaCache
	policies   *policyCache
	api        *apiServer
	dispatcher *dispatch.Dispatcher
	warm       *warmPools
	results    *resultKey
	confirm    confirmer
	waiters    waiters
	// unstored calls wait for something of them to be stored; leaving ones were
	// deleted while their tools ran.
	unstored, leaving timesSince
	rateLocks         keymutex.KeyMutex
	// queue holds the places of this process's calls; restored says that those
	// of an earlier process are in it.
	queue     *limit.Queue
	restored  atomic.Bool
	restoring sync.Mutex
	wakeUp    func(types.NamespacedName)
}

// Reconcile looks at one call: finished? sent? else may it run?
func (r *ToolCallReconciler) Reconcile(ctx context.Context, req ctrl.Request) (ctrl.Result, error) {
	if err := r.restore(ctx); err != nil {
		return ctrl.Result{}, err
	}
	call := &v1alpha1.ToolCall{}
	if err := r.Get(ctx, req.NamespacedName, call); err != nil {
		if apierrors.IsNotFound(err) {
			pause, err := r.forget(ctx, req.NamespacedName, "")
			return ctrl.Result{RequeueAfter: pause}, err
		}
		return ctrl.Result{}, err
	}
	pause, err := r.forget(ctx, req.NamespacedName, call.UID)
	if err != nil {
		return ctrl.Result{}, err
	}
	if complete(call) {
		r.ended(call)
		result, err := ignoreConflict(r.observe(ctx, call))
		if result.RequeueAfter == 0 {
			result.RequeueAfter = pause
		}
		return result, err
	}

	var next time.Duration
	if v := gate.Restored(call, r.UnfinishedBefore); v.Ended() {
		status := call.Status.DeepCopy()
		if n := len(status.Attempts); n > 0 && status.Attempts[n-1].Outcome == "" {
			gate.Close(&status.Attempts[n-1], v, time.Now())
		}
		next, err = r.write(ctx, call, status, v)
	} else if attempt := openAttempt(call); attempt != nil {
		r.holdPlaces(call)
		next, err = r.run(ctx, call, attempt)
	} else if call.Status.ArgsDigest != "" && !r.Stamping().Tried() {
		// This process has just begun, and does not know yet whether what people
		// said to the call counts: an earlier one did.
		next = retryPause
	} else {
		next, err = r.admit(ctx, call)
	}
	if apierrors.IsNotFound(err) {
		err = nil // deleted meanwhile
	}
	if apierrors.IsConflict(err) {
		// Decided on an old state; the newer one is on its way into the cache.
		return ctrl.Result{RequeueAfter: retryPause}, nil
	}
	if pause > 0 && (next == 0 || pause < next) {
		next = pause
	}
	return ctrl.Result{RequeueAfter: next}, err
}

// forget drops what this process remembers of calls of a name that were deleted,
// and perhaps created again: of all but the one with the UID keep. The place of
// one whose tool still runs stays taken, or who deletes calls would have more of
// them run at once; pause is when to look again.
func (r *ToolCallReconciler) forget(ctx context.Context, call types.NamespacedName, keep types.UID) (pause time.Duration, err error) {
	r.dispatcher.Forget(call, keep)
	r.warm.claims.forget(call, keep)
	if keep == "" {
		r.unstored.forget(call)
	}
	now := time.Now()
	for _, uid := range r.queue.Named(call) {
		if uid == keep {
			continue
		}
		runs, err := r.stillRuns(ctx, uid)
		if err != nil {
			return 0, err
		}
		if runs && now.Sub(r.leaving.at(call, now)) < leavingLimit {
			return quiet, nil
		}
	}
	r.leaving.forget(call)
	r.wakeAll(r.queue.ReleaseNamed(call, keep))
	return 0, nil
}

// leavingLimit bounds how long the place of a deleted call stays taken: its node
// may be lost.
const leavingLimit = 30 * time.Second

// stillRuns says whether a container of a call runs.
func (r *ToolCallReconciler) stillRuns(ctx context.Context, callUID types.UID) (bool, error) {
	var pods corev1.PodList
	if err := r.List(ctx, &pods, client.MatchingFields{indexCallUID: string(callUID)}); err != nil {
		return false, err
	}
	if slices.ContainsFunc(pods.Items, func(p corev1.Pod) bool { return p.Status.Phase == corev1.PodRunning }) {
		return true, nil
	}
	return r.warm.runs(ctx, callUID)
}

// ended drops what this process remembers of a call that has its end.
func (r *ToolCallReconciler) ended(call *v1alpha1.ToolCall) {
	name := client.ObjectKeyFromObject(call)
	r.dispatcher.Forget(name, "")
	r.warm.claims.forget(name, "")
	r.unstored.forget(name)
	r.wakeAll(r.queue.Release(call.UID))
}

// openAttempt is the attempt that was sent and has no outcome yet.
func openAttempt(call *v1alpha1.ToolCall) *v1alpha1.Attempt {
	if n := len(call.Status.Attempts); n > 0 && call.Status.Attempts[n-1].Outcome == "" {
		return &call.Status.Attempts[n-1]
	}
	return nil
}

// decide gathers what Admit looks at, from the cache and, if the verdict asks
// for it, past the cache.
func (r *ToolCallReconciler) decide(ctx context.Context, call *v1alpha1.ToolCall) (gate.Admitted, error) {
	namespace := gate.ToolNamespace(call)
	var tools v1alpha1.ToolList
	if err := r.List(ctx, &tools, client.InNamespace(namespace), toolsNamed(call.Spec.ToolRef)); err != nil {
		return gate.Admitted{}, err
	}
	policies, err := listPolicies(ctx, r.Client, namespace)
	if err != nil {
		return gate.Admitted{}, err
	}
	a := gate.Admission{Now: time.Now(), Call: call, Stamping: r.Stamping(), Tools: tools.Items, Policies: r.policies.compile(policies)}
	admitted := r.judge(a)
	if admitted.Act != gate.ActConfirm {
		return admitted, nil
	}
	all, confirmed, err := r.confirm.get(ctx, namespace)
	if err != nil {
		return gate.Admitted{}, err
	}
	a.Confirmed, a.Policies, a.Tools = true, r.policies.compile(confirmed), nil
	for i := range all {
		if refersTo(call.Spec.ToolRef, &all[i]) {
			a.Tools = append(a.Tools, all[i])
		}
	}
	return r.judge(a), nil
}

func (r *ToolCallReconciler) judge(a gate.Admission) gate.Admitted {
	if len(a.Tools) > 0 {
		s := r.schemas.of(&a.Tools[0])
		a.InputSchema, a.ToolSeen = s.input, s.seen
	}
	return gate.Admit(a)
}

func toolsNamed(ref v1alpha1.ToolReference) client.ListOption {
	if ref.Name != "" {
		return client.MatchingFields{indexName: ref.Name}
	}
	return client.MatchingFields{indexFunctionName: ref.FunctionName}
}

func refersTo(ref v1alpha1.ToolReference, t *v1alpha1.Tool) bool {
	if ref.Name != "" {
		return t.Name == ref.Name
	}
	return t.FunctionName() == ref.FunctionName
}

func (r *ToolCallReconciler) setup(mgr ctrl.Manager, woken <-chan event.TypedGenericEvent[types.NamespacedName]) error {
	r.confirm.reader = r.APIReader
	enqueueNamed := handler.TypedFuncs[types.NamespacedName, reconcile.Request]{
		GenericFunc: func(_ context.Context, e event.TypedGenericEvent[types.NamespacedName], q workqueue.TypedRateLimitingInterface[reconcile.Request]) {
			q.Add(reconcile.Request{NamespacedName: e.Object})
		},
	}
	return ctrl.NewControllerManagedBy(mgr).
		For(&v1alpha1.ToolCall{}).
		Watches(&v1alpha1.Tool{}, handler.EnqueueRequestsFromMapFunc(r.unfinishedCalls), builder.WithPredicates(notOnlyWarmStatus)).
		Watches(&v1alpha1.ToolPolicy{}, handler.EnqueueRequestsFromMapFunc(r.unfinishedCalls)).
		Watches(&v1alpha1.ClusterToolPolicy{}, handler.EnqueueRequestsFromMapFunc(r.unfinishedCalls)).
		Watches(&v1alpha1.ToolCallApproval{}, handler.EnqueueRequestsFromMapFunc(approvedCall)).
		Watches(&coordinationv1.Lease{}, handler.EnqueueRequestsFromMapFunc(r.waiters.wake)).
		Watches(&corev1.Pod{}, handler.EnqueueRequestsFromMapFunc(r.callsOfPod)).
		WatchesRawSource(source.TypedChannel(woken, enqueueNamed)).
		WithOptions(controller.Options{MaxConcurrentReconciles: parallelCalls, RateLimiter: retries()}).
		Complete(r)
}

// unfinishedCalls are the calls that a change of a Tool or policy may matter to.
func (r *ToolCallReconciler) unfinishedCalls(ctx context.Context, o client.Object) []reconcile.Request {
	var calls v1alpha1.ToolCallList
	where := o.GetNamespace()
	if where == "" {
		where = allNamespaces
	}
	if err := r.List(ctx, &calls, client.MatchingFields{indexUnfinished: where}); err != nil {
		return nil // only a cache that is not started fails
	}
	requests := make([]reconcile.Request, 0, len(calls.Items))
	for i := range calls.Items {
		requests = append(requests, reconcile.Request{NamespacedName: client.ObjectKeyFromObject(&calls.Items[i])})
	}
	return requests
}

// callsOfPod are the call that a pod was made for, or those that name its sandbox.
func (r *ToolCallReconciler) callsOfPod(ctx context.Context, o client.Object) []reconcile.Request {
	if key, ok := callKey(o); ok {
		return []reconcile.Request{{NamespacedName: key}}
	}
	owner := metav1.GetControllerOf(o)
	if owner == nil {
		return nil
	}
	calls, err := r.warm.callsIn(ctx, types.NamespacedName{Namespace: o.GetNamespace(), Name: owner.Name})
	if err != nil {
		return nil // only a cache that is not started fails
	}
	var requests []reconcile.Request
	for i := range calls {
		requests = append(requests, reconcile.Request{NamespacedName: client.ObjectKeyFromObject(&calls[i])})
	}
	return requests
}
