package controllers

import (
	"context"
	"fmt"
	"sync"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	nodev1 "k8s.io/api/node/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	apimeta "k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/rand"
	"k8s.io/client-go/util/workqueue"
	"k8s.io/utils/ptr"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/log"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	"sigs.k8s.io/controller-runtime/pkg/source"

	"callgate.dev/callgate/api/v1alpha1"
	"callgate.dev/callgate/internal/sandbox"
	"callgate.dev/callgate/internal/warm"
)

const (
	// statusPause is how long the number of waiting sandboxes is another one than
	// the status says before it is written: most are made up for by then.
	statusPause = time.Second
	// unseenLimit is how long a sandbox that was made here counts although the cache
	// does not have it.
	unseenLimit = 30 * time.Second
)

// WarmReconciler keeps as many sandboxes waiting as each Tool wants.
type WarmReconciler struct {
	client.Client
	Options
	APIReader client.Reader

	api  *apiServer
	warm *warmPools

	mu    sync.Mutex
	pools map[types.NamespacedName]*poolMemory // by Tool
}

// poolMemory is what is remembered of a pool between two looks at it.
type poolMemory struct {
	// created sandboxes that the cache does not have yet.
	created []*batchv1.Job
	// differs is since when the status says something else than is so.
	differs time.Time
	// target, ready and starting are for the metrics.
	target, ready, starting int
}

// Reconcile looks at the pool of one Tool.
func (r *WarmReconciler) Reconcile(ctx context.Context, req ctrl.Request) (ctrl.Result, error) {
	tool := &v1alpha1.Tool{}
	if err := r.Get(ctx, req.NamespacedName, tool); apierrors.IsNotFound(err) {
		tool = nil
	} else if err != nil {
		return ctrl.Result{}, err
	}
	sandboxes, err := r.warm.sandboxes(ctx, req.NamespacedName, removal)
	if err != nil {
		return ctrl.Result{}, err
	}
	memory := r.memory(req.NamespacedName)
	sandboxes = memory.withUnseen(sandboxes, time.Now())
	if len(sandboxes) == 0 && (tool == nil || tool.Spec.Warm == nil && tool.Status.Warm == nil) {
		r.forget(req.NamespacedName)
		return ctrl.Result{}, nil
	}
	var result ctrl.Result
	soon := func(after time.Duration) {
		if after > 0 && (result.RequeueAfter == 0 || after < result.RequeueAfter) {
			result.RequeueAfter = after
		}
	}
	soon(r.prove(ctx, sandboxes))
	pool, err := r.observe(ctx, tool, sandboxes)
	if err != nil {
		return ctrl.Result{}, err
	}
	plan := warm.Decide(pool)
	soon(plan.After)
	if len(plan.Delete) > 0 {
		pause, err := r.remove(ctx, req.NamespacedName, tool, plan.Delete)
		if err != nil {
			return ctrl.Result{}, err
		}
		soon(pause)
	}
	var failed error
	for range plan.Create {
		if failed = r.create(ctx, memory, pool.Want, plan.Failures); failed != nil {
			break
		}
	}
	r.count(memory, pool.Replicas, plan.Ready, plan.Starting)
	if tool != nil {
		pause, err := r.writeStatus(ctx, tool, memory, plan)
		if err != nil {
			return ctrl.Result{}, err
		}
		soon(pause)
	}
	if failed != nil {
		// A quota, a webhook, a missing right. Calls do without: each makes its own.
		return ctrl.Result{}, fmt.Errorf("make a sandbox that waits: %w", failed)
	}
	return result, nil
}

// observe gathers what Decide looks at. tool is nil if it is gone.
func (r *WarmReconciler) observe(ctx context.Context, tool *v1alpha1.Tool, sandboxes []warm.Sandbox) (warm.Pool, error) {
	pool := warm.Pool{Now: time.Now(), Sandboxes: sandboxes}
	if tool == nil || tool.DeletionTimestamp != nil || sandbox.WarmReplicas(tool) == 0 {
		return pool, nil
	}
	pool.Replicas, pool.MaxIdle, pool.CallTime = sandbox.WarmReplicas(tool), sandbox.MaxIdle(tool), sandbox.CallTime(tool)
	pool.StartDeadline = time.Duration(sandbox.StartDeadlineSeconds(tool)) * time.Second
	// Its NetworkPolicy is in place before its first sandbox.
	ready := apimeta.FindStatusCondition(tool.Status.Conditions, v1alpha1.ConditionReady)
	pool.Hold = ready == nil || ready.Status != metav1.ConditionTrue || ready.ObservedGeneration != tool.Generation
	probe, _, err := r.api.probe(ctx, tool)
	if err != nil {
		return pool, err
	}
	is, refused, err := isolationOf(ctx, r.Client, r.RuntimeClasses, tool)
	if err != nil || refused.reason != "" {
		return pool, err
	}
	cold := sandbox.Job(sandbox.Input{
		Tool: tool, Install: r.Install, RunnerImage: r.RunnerImage, Probe: probe,
		DefaultRuntimeClass: r.RuntimeClasses.Default, NoUserNamespace: !is.userNamespace,
	})
	pool.Want, err = r.warm.template(ctx, cold, tool)
	return pool, err
}

// create makes one sandbox that waits.
func (r *WarmReconciler) create(ctx context.Context, memory *poolMemory, want *batchv1.Job, failures int) error {
	job := sandbox.Named(want, sandbox.WarmPrefix+rand.String(12))
	warm.Failed(job, failures)
	// Before it is there: the look that finds it in the cache trusts it.
	r.warm.trust.add(client.ObjectKeyFromObject(job))
	if err := r.Create(ctx, job); err != nil {
		r.warm.trust.drop(client.ObjectKeyFromObject(job))
		return err
	}
	memory.created = append(memory.created, job)
	return nil
}

// remove removes sandboxes that wait. The runner in one leaves at once, unless it
// has just accepted a call: then that has the time it may take.
func (r *WarmReconciler) remove(ctx context.Context, name types.NamespacedName, tool *v1alpha1.Tool, jobs []*batchv1.Job) (pause time.Duration, err error) {
	for _, job := range jobs {
		if tool != nil && job.Labels[v1alpha1.LabelToolUID] == string(tool.UID) {
			continue
		}
		// The cache may be behind; those of another Tool are removed only on proof.
		live := &v1alpha1.Tool{}
		if err := r.APIReader.Get(ctx, name, live); client.IgnoreNotFound(err) != nil {
			return 0, err
		}
		if string(live.UID) == job.Labels[v1alpha1.LabelToolUID] {
			return quiet, nil
		}
		break
	}
	for _, job := range jobs {
		if !r.warm.claims.take(client.ObjectKeyFromObject(job), types.NamespacedName{}, removal, time.Now()) {
			continue // a call was faster
		}
		err := r.Delete(ctx, job, client.PropagationPolicy(metav1.DeletePropagationBackground), client.Preconditions{UID: &job.UID})
		switch {
		case apierrors.IsForbidden(err):
			pause = forbiddenPause // the namespace is closed
		case apierrors.IsConflict(err): // another Job by now
		case client.IgnoreNotFound(err) != nil:
			return 0, fmt.Errorf("remove a sandbox that waits: %w", err)
		}
	}
	return pause, nil
}

// writeStatus says in the Tool's status how many sandboxes wait, and returns when
// to look again for it.
func (r *WarmReconciler) writeStatus(ctx context.Context, tool *v1alpha1.Tool, memory *poolMemory, plan warm.Plan) (time.Duration, error) {
	var want *v1alpha1.WarmPoolStatus
	if tool.Spec.Warm != nil {
		want = &v1alpha1.WarmPoolStatus{Replicas: ptr.To(int32(sandbox.WarmReplicas(tool))), Ready: ptr.To(int32(plan.Ready))}
	}
	if equality.Semantic.DeepEqual(tool.Status.Warm, want) {
		memory.differs = time.Time{}
		return 0, nil
	}
	now := time.Now()
	if memory.differs.IsZero() {
		memory.differs = now
	}
	if left := memory.differs.Add(statusPause).Sub(now); left > 0 {
		return left, nil
	}
	tool.Status.Warm = want
	result, err := ignoreConflict(r.Status().Update(ctx, tool))
	if err == nil && result.RequeueAfter == 0 {
		memory.differs = time.Time{}
	}
	return result.RequeueAfter, err
}

func (r *WarmReconciler) memory(tool types.NamespacedName) *poolMemory {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.pools == nil {
		r.pools = map[types.NamespacedName]*poolMemory{}
	}
	if r.pools[tool] == nil {
		r.pools[tool] = &poolMemory{}
	}
	return r.pools[tool]
}

func (r *WarmReconciler) forget(tool types.NamespacedName) {
	r.count(r.memory(tool), 0, 0, 0)
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.pools, tool)
}

// count brings a pool to the metrics, which have the sum of all.
func (r *WarmReconciler) count(m *poolMemory, target, ready, starting int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	m.target, m.ready, m.starting = target, ready, starting
	target, ready, starting = 0, 0, 0
	for _, m := range r.pools {
		target, ready, starting = target+m.target, ready+m.ready, starting+m.starting
	}
	warmSandboxes.WithLabelValues("target").Set(float64(target))
	warmSandboxes.WithLabelValues("ready").Set(float64(ready))
	warmSandboxes.WithLabelValues("starting").Set(float64(starting))
}

// withUnseen adds the sandboxes that were made a moment ago and are not in the
// cache yet.
func (m *poolMemory) withUnseen(seen []warm.Sandbox, now time.Time) []warm.Sandbox {
	names := make(map[types.UID]struct{}, len(seen))
	for _, s := range seen {
		names[s.Job.UID] = struct{}{}
	}
	var unseen []*batchv1.Job
	for _, job := range m.created {
		if _, ok := names[job.UID]; !ok && now.Sub(job.CreationTimestamp.Time) < unseenLimit {
			unseen = append(unseen, job)
			seen = append(seen, warm.Sandbox{Job: job})
		}
	}
	m.created = unseen
	return seen
}

// proofPause is the pause before a sandbox is looked at again of which it could
// not be found out whether it was used.
const proofPause = 2 * time.Second

// prove finds out whether sandboxes that an earlier process has made were used, and
// returns when to look again.
func (r *WarmReconciler) prove(ctx context.Context, sandboxes []warm.Sandbox) (pause time.Duration) {
	for i := range sandboxes {
		s := &sandboxes[i]
		if s.Taken || !s.Unproven || sandbox.Observe(s.Job, s.Pod, nil).Phase != sandbox.PhaseRunning {
			continue
		}
		if err := r.warm.prove(ctx, s); err != nil {
			// A kubelet that does not answer would be asked once for each sandbox.
			log.FromContext(ctx).Error(err, "Whether a sandbox that waits was used is not known", "pod", s.Pod.Name)
			return proofPause
		}
		if s.Unproven {
			pause = proofPause
		}
	}
	return pause
}

func (r *WarmReconciler) setup(mgr ctrl.Manager, taken <-chan event.TypedGenericEvent[types.NamespacedName]) error {
	refill := handler.TypedFuncs[types.NamespacedName, reconcile.Request]{
		GenericFunc: func(_ context.Context, e event.TypedGenericEvent[types.NamespacedName], q workqueue.TypedRateLimitingInterface[reconcile.Request]) {
			q.AddAfter(reconcile.Request{NamespacedName: e.Object}, warm.RefillPause)
		},
	}
	return ctrl.NewControllerManagedBy(mgr).
		Named("warm").
		For(&v1alpha1.Tool{}, builder.WithPredicates(notOnlyWarmStatus)).
		Watches(&batchv1.Job{}, handler.EnqueueRequestsFromMapFunc(poolOfJob)).
		Watches(&corev1.Pod{}, handler.EnqueueRequestsFromMapFunc(r.poolOfPod)).
		Watches(&nodev1.RuntimeClass{}, handler.EnqueueRequestsFromMapFunc(func(ctx context.Context, o client.Object) []reconcile.Request {
			return r.pooled(ctx, client.MatchingFields{indexRuntimeClass: o.GetName()})
		})).
		Watches(&corev1.Node{}, handler.EnqueueRequestsFromMapFunc(func(ctx context.Context, _ client.Object) []reconcile.Request {
			return r.pooled(ctx, client.InNamespace(""))
		}), builder.WithPredicates(cordoned)).
		WatchesRawSource(source.TypedChannel(taken, refill)).
		WithOptions(controller.Options{
			MaxConcurrentReconciles: 4,
			// What cannot be made now is not asked for all the time.
			RateLimiter: workqueue.NewTypedItemExponentialFailureRateLimiter[reconcile.Request](time.Second, 5*time.Minute),
		}).
		Complete(r)
}

// poolOfJob is the Tool of a sandbox that was made before its call.
func poolOfJob(_ context.Context, o client.Object) []reconcile.Request {
	name := o.GetAnnotations()[v1alpha1.AnnotationTool]
	if o.GetLabels()[v1alpha1.LabelPool] == "" || name == "" {
		return nil
	}
	return []reconcile.Request{{NamespacedName: types.NamespacedName{Namespace: o.GetNamespace(), Name: name}}}
}

func (r *WarmReconciler) poolOfPod(ctx context.Context, o client.Object) []reconcile.Request {
	if o.GetLabels()[v1alpha1.LabelPool] == "" {
		return nil
	}
	return r.pooled(ctx, client.MatchingFields{indexUID: o.GetLabels()[v1alpha1.LabelToolUID]})
}

// pooled are the Tools of a list that want sandboxes to wait.
func (r *WarmReconciler) pooled(ctx context.Context, of client.ListOption) []reconcile.Request {
	var tools v1alpha1.ToolList
	if err := r.List(ctx, &tools, of, client.UnsafeDisableDeepCopy); err != nil {
		return nil // only a cache that is not started fails
	}
	var requests []reconcile.Request
	for i := range tools.Items {
		if tools.Items[i].Spec.Warm != nil {
			requests = append(requests, reconcile.Request{NamespacedName: client.ObjectKeyFromObject(&tools.Items[i])})
		}
	}
	return requests
}

// cordoned leaves out what a node says of itself all the time.
var cordoned = predicate.Funcs{UpdateFunc: func(e event.UpdateEvent) bool {
	before, ok := e.ObjectOld.(*corev1.Node)
	after, ok2 := e.ObjectNew.(*corev1.Node)
	return !ok || !ok2 || before.Spec.Unschedulable != after.Spec.Unschedulable
}}

// notOnlyWarmStatus leaves out changes of a Tool that only say how many sandboxes
// wait: they come with the calls, and nothing else depends on them.
var notOnlyWarmStatus = predicate.Funcs{UpdateFunc: func(e event.UpdateEvent) bool {
	before, ok := e.ObjectOld.(*v1alpha1.Tool)
	after, ok2 := e.ObjectNew.(*v1alpha1.Tool)
	if !ok || !ok2 || before.ResourceVersion == after.ResourceVersion {
		return true
	}
	b, a := before.Status, after.Status
	b.Warm, a.Warm = nil, nil
	return before.Generation != after.Generation || !equality.Semantic.DeepEqual(b, a) ||
		!equality.Semantic.DeepEqual(before.Labels, after.Labels) || !equality.Semantic.DeepEqual(before.Annotations, after.Annotations) ||
		!before.DeletionTimestamp.Equal(after.DeletionTimestamp)
}}
