package controllers

import (
	"context"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"callgate.dev/callgate/api/v1alpha1"
	"callgate.dev/callgate/internal/fault"
	"callgate.dev/callgate/internal/gate"
	"callgate.dev/callgate/internal/sandbox"
)

// look is one look at a call that was not sent: what was found on its way, and
// the status as it will be written.
type look struct {
	call     *v1alpha1.ToolCall
	admitted gate.Admitted
	status   *v1alpha1.ToolCallStatus
	// keys are the Leases that the call holds.
	keys []*coordinationv1.Lease
	// unstored: something of the call cannot be stored.
	unstored bool
	// asked: the call came as far as asking for its turn.
	asked bool
	// plan is set if the call is to be sent.
	plan *dispatchPlan
}

// admit decides about a call of which no byte was sent: each check either lets
// it pass to the next one, or says what it waits for or how it ends.
func (r *ToolCallReconciler) admit(ctx context.Context, call *v1alpha1.ToolCall) (time.Duration, error) {
	if s, known := r.dispatcher.Get(call.UID, nextAttempt(call)); known && (!s.Done || time.Since(s.EndTime) < quiet) {
		// This process has sent it: the cache is behind the write of that, which would
		// only be tried again, with another sandbox.
		return retryPause, nil
	}
	admitted, err := r.decide(ctx, call)
	if err != nil {
		return 0, err
	}
	l := &look{call: call, admitted: admitted, status: call.Status.DeepCopy()}
	// Whether it waits for another call, or ends as that one, is found anew: a
	// call that is cancelled meanwhile has an end of its own.
	l.status.DuplicateOfRef = nil
	l.found()
	verdict := admitted.Verdict
	if admitted.Command != nil {
		for _, check := range []func(context.Context, *look) (gate.Verdict, error){
			r.firstOfItsKeys, r.withinRates, r.approved, r.inTurn, r.start,
		} {
			if verdict, err = check(ctx, l); err != nil {
				return 0, err
			}
			if !verdict.Passed() {
				break
			}
		}
	}
	if !l.asked && !r.queue.Holds(call.UID) {
		// It waits for something else, and must not stand in front of others.
		r.wakeAll(r.queue.Release(call.UID))
	}
	verdict = gate.AfterAttempts(call.Status.Attempts, admitted.Tool, verdict)
	if l.plan != nil {
		switch err := r.noteSent(ctx, l); {
		case apierrors.IsConflict(err) || apierrors.IsNotFound(err):
			// Somebody wrote to its key or deleted it, which the next look finds.
			return retryPause, nil
		case err != nil:
			l.plan, verdict = nil, r.notStored(l, "its idempotency key cannot be stored", err)
		default:
			l.status.Attempts = append(l.status.Attempts, l.plan.attempt)
		}
	}
	if !l.unstored {
		r.unstored.forget(client.ObjectKeyFromObject(call))
	}
	next, err := r.write(ctx, call, l.status, verdict)
	if err != nil || l.plan == nil {
		return next, err
	}
	fault.At("entry-written")
	r.dispatched(l)
	// Only now, with the pod's UID in the status, may a byte go to it.
	r.dispatcher.Send(l.plan.target, l.plan.call)
	return time.Until(l.plan.overdue), nil
}

// found brings what the decision found into the status. What was found once
// stays, also if a later look ends before it gets there.
func (l *look) found() {
	if l.admitted.ArgsDigest != "" {
		l.status.ArgsDigest = l.admitted.ArgsDigest
	}
	if l.admitted.Decision != nil {
		l.status.Decision = l.admitted.Decision
	}
	if t := l.admitted.Tool; t != nil {
		l.status.ToolUID, l.status.ToolGeneration = t.UID, t.Generation
	}
}

// approved lets a call pass that has the approvals it needs.
func (r *ToolCallReconciler) approved(ctx context.Context, l *look) (gate.Verdict, error) {
	a := gate.Approving{
		Now: time.Now(), Call: l.call, Tool: l.admitted.Tool, ArgsDigest: l.admitted.ArgsDigest,
		Rules: l.admitted.Approvals, StampedSince: r.Stamping().Since(),
	}
	if len(a.Rules) > 0 {
		var approvals v1alpha1.ToolCallApprovalList
		if err := r.List(ctx, &approvals, client.InNamespace(l.call.Namespace), client.MatchingFields{indexApprovedCall: string(l.call.UID)}); err != nil {
			return gate.Verdict{}, err
		}
		a.Approvals = approvals.Items
	}
	approved := gate.Approve(a)
	l.status.Approvals, l.status.ApprovalDigest = approved.Status, approved.Digest
	if approved.Passed() || approved.Ended() {
		return approved.Verdict, nil
	}
	l.status.StartingTime, l.status.QueueTime = nil, nil
	// It may have been on its way already, before a rule or the Tool changed: what
	// it holds is for those that can run.
	r.wakeAll(r.queue.Release(l.call.UID))
	l.status.QueueTime = nil // it will wait for its turn anew
	return approved.Verdict, r.deleteSandbox(ctx, l)
}

// deleteSandbox removes the sandbox that waits for a call which has to wait itself.
func (r *ToolCallReconciler) deleteSandbox(ctx context.Context, l *look) error {
	job := &batchv1.Job{}
	err := r.Get(ctx, client.ObjectKey{Namespace: l.admitted.Tool.Namespace, Name: sandbox.JobName(l.call.UID, nextAttempt(l.call))}, job)
	if err != nil || job.DeletionTimestamp != nil {
		return client.IgnoreNotFound(err)
	}
	return r.deleteJob(ctx, l.call, job)
}

// approvedCall is the call that an approval speaks of.
func approvedCall(_ context.Context, o client.Object) []reconcile.Request {
	a, ok := o.(*v1alpha1.ToolCallApproval)
	if !ok {
		return nil
	}
	return []reconcile.Request{{NamespacedName: client.ObjectKey{Namespace: a.Namespace, Name: a.Spec.ToolCallRef.Name}}}
}
