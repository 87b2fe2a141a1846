package controllers

import (
	"context"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"callgate.dev/callgate/api/v1alpha1"
	"callgate.dev/callgate/internal/gate"
	"callgate.dev/callgate/internal/sandbox"
	"callgate.dev/callgate/internal/warm"
)

// takeWarm takes a sandbox that waits for a call which has none yet; nil if
// there is none. Only the write of the call's status makes it the call's: until
// then no other call of this process takes it.
func (r *ToolCallReconciler) takeWarm(ctx context.Context, s *gate.Starting) (*corev1.Pod, error) {
	if sandbox.WarmReplicas(s.Tool) == 0 {
		return nil, nil
	}
	want, err := r.warm.template(ctx, s.Want, s.Tool)
	if err != nil || want == nil {
		return nil, err
	}
	sandboxes, err := r.warm.sandboxes(ctx, client.ObjectKeyFromObject(s.Tool), s.Call.UID)
	if err != nil {
		return nil, err
	}
	for _, w := range warm.Choose(s.Now, want, sandbox.CallTime(s.Tool), sandboxes) {
		name := client.ObjectKeyFromObject(w.Job)
		if !r.warm.claims.take(name, client.ObjectKeyFromObject(s.Call), s.Call.UID, s.Now) {
			continue
		}
		if w.Unproven {
			// The pool, which finds it out as well, is not waited for.
			if err := r.warm.prove(ctx, &w); err != nil {
				log.FromContext(ctx).Error(err, "The call does without it", "sandbox", w.Job.Name)
			}
			if w.Used || w.Unproven {
				r.warm.claims.giveBack(name, s.Call.UID)
				continue
			}
		}
		return w.Pod, nil
	}
	return nil, nil
}

// dispatched notes that a call's status names its sandbox now.
func (r *ToolCallReconciler) dispatched(l *look) {
	a := &l.plan.attempt
	kind := "cold"
	switch {
	case sandbox.IsWarm(a.Sandbox):
		kind = "warm"
		r.warm.claims.sent(types.NamespacedName{Namespace: a.Namespace, Name: a.Sandbox}, client.ObjectKeyFromObject(l.call), l.call.UID, time.Now())
		r.warm.woken(client.ObjectKeyFromObject(l.admitted.Tool))
	case sandbox.WarmReplicas(l.admitted.Tool) > 0:
		kind = "miss"
	}
	dispatchesTotal.WithLabelValues(kind).Inc()
}

const (
	// adoptAfter is how long a call may run before the Job of its warm sandbox says
	// so: most have ended by then, and a write would be in their way.
	adoptAfter = 250 * time.Millisecond
	// adoptPause is the pause before that is tried again.
	adoptPause = 2 * time.Second
)

// adopt writes on the Job of a warm sandbox which call has it, once that has
// accepted the call, and brings its deadline down to that of a call. It returns
// when to look again. What it cannot write stands in the call's status.
func (r *ToolCallReconciler) adopt(ctx context.Context, run gate.Running, tool *v1alpha1.Tool, v gate.Verdict) time.Duration {
	if !sandbox.IsWarm(run.Attempt.Sandbox) {
		return 0
	}
	name := types.NamespacedName{Namespace: run.Attempt.Namespace, Name: run.Attempt.Sandbox}
	key := client.ObjectKeyFromObject(run.Call)
	r.warm.claims.sent(name, key, run.Call.UID, run.Attempt.SendTime.Time)
	if v.Ended() || run.Pod == nil || run.State.Ended() {
		return 0
	}
	job := &batchv1.Job{}
	if err := r.Get(ctx, name, job); err != nil || job.Labels[v1alpha1.LabelCallUID] != "" || !metav1.IsControlledBy(run.Pod, job) {
		return 0
	}
	if left := adoptAfter - run.Now.Sub(run.Attempt.SendTime.Time); left > 0 {
		return min(left, adoptAfter)
	}
	if s := run.Session; s == nil || s.Accepted == nil || s.Accepted.CallUID != string(run.Call.UID) {
		return adoptPause // it may be another call's
	}
	before := job.DeepCopy()
	sandbox.Adopt(job, tool, key, run.Call.UID, run.Attempt.Number, run.Now)
	if err := r.Patch(ctx, job, client.MergeFromWithOptions(before, client.MergeFromWithOptimisticLock{})); client.IgnoreNotFound(err) != nil {
		log.FromContext(ctx).Error(err, "The Job of a warm sandbox does not say which call has it", "sandbox", job.Name)
		return adoptPause
	}
	return 0
}
