package controllers

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"slices"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	apimeta "k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"callgate.dev/callgate/api/v1alpha1"
	"callgate.dev/callgate/internal/gate"
	"callgate.dev/callgate/internal/limit"
	"callgate.dev/callgate/internal/policy"
)

const (
	// ratePrefix begins the name of every Lease that counts for a rate limit.
	ratePrefix = "callgate-rate-"
	// annotationWindow of such a Lease holds the calls that were counted.
	annotationWindow = "callgate.dev/window"
	// maxCounts is what status.limits holds; as many Limit rules match at most.
	maxCounts = 64
)

// withinRates counts a call in each rate limit that matches it, once, or ends it.
// First all are asked, so that a call that one of them refuses uses up no other.
func (r *ToolCallReconciler) withinRates(ctx context.Context, l *look) (gate.Verdict, error) {
	rates := slices.DeleteFunc(slices.Clone(l.admitted.Limits), func(p policy.Limit) bool { return p.MaxCalls == 0 })
	for _, rate := range rates {
		lease, err := getLease(ctx, r.Client, r.rateLease(rate, l.call))
		if err != nil {
			return gate.Verdict{}, err
		}
		if v := gate.Rate(l.rated(rate, lease)); v.Ended() {
			return v, nil
		}
	}
	for _, rate := range rates {
		if v, err := r.count(ctx, l, rate); err != nil || !v.Passed() {
			return v, err
		}
	}
	return gate.Verdict{}, nil
}

func (l *look) rated(rate policy.Limit, lease *coordinationv1.Lease) gate.Rated {
	rated := gate.Rated{Now: time.Now(), Call: l.call, Limit: rate}
	if lease != nil {
		// A record that cannot be read counts anew: only an administrator can have
		// written it, and a caller could do nothing about it.
		rated.Window, _ = limit.ParseWindow(lease.Annotations[annotationWindow])
	}
	return rated
}

// count brings a call into the window of one rate limit. Its Lease is written by
// one call at a time, and by one controller: who was overtaken looks again.
func (r *ToolCallReconciler) count(ctx context.Context, l *look, rate policy.Limit) (gate.Verdict, error) {
	name := r.rateLease(rate, l.call)
	r.rateLocks.LockKey(name.Name)
	defer func() { _ = r.rateLocks.UnlockKey(name.Name) }() // it is locked
	for range maxTakes {
		// Not from the cache, which may be behind the write of the call before.
		lease, err := getLease(ctx, r.APIReader, name)
		if err != nil {
			return gate.Verdict{}, err
		}
		rated := l.rated(rate, lease)
		verdict := gate.Rate(rated)
		if verdict.Act != gate.ActCount {
			if verdict.Passed() {
				l.counted(rate, rated.Now)
			}
			return verdict, nil
		}
		after, _, _ := rated.Window.Take(l.call.UID, rated.Now, int(rate.MaxCalls), rate.Window)
		if lease == nil {
			lease = &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Namespace: name.Namespace, Name: name.Name}}
		} else {
			lease = lease.DeepCopy()
		}
		lease.Labels = map[string]string{v1alpha1.LabelInstall: r.Install}
		lease.Annotations = map[string]string{annotationWindow: after.String()}
		lease.Spec.RenewTime, lease.Spec.LeaseDurationSeconds = ptr.To(metav1.NewMicroTime(rated.Now)), ptr.To(int32(rate.Window.Seconds()))
		if lease.ResourceVersion == "" {
			err = r.Create(ctx, lease)
		} else {
			err = r.Update(ctx, lease)
		}
		switch {
		case err == nil:
			l.counted(rate, rated.Now)
			return gate.Verdict{}, nil
		case !apierrors.IsAlreadyExists(err) && !apierrors.IsConflict(err) && !apierrors.IsNotFound(err):
			return r.notStored(l, "the call cannot be counted", err), nil
		}
	}
	return gate.Verdict{Reason: v1alpha1.ReasonPending, After: retryPause}, nil
}

func (l *look) counted(rate policy.Limit, now time.Time) {
	for _, c := range l.status.Limits {
		if c.Policy == rate.Rule.Policy && c.Rule == rate.Rule.Rule {
			return
		}
	}
	if len(l.status.Limits) >= maxCounts {
		// It has waited for long, and rules have come and gone; a status that the API
		// server refuses would keep it from any end.
		l.status.Limits = slices.DeleteFunc(l.status.Limits, func(c v1alpha1.LimitCount) bool {
			return !slices.ContainsFunc(l.admitted.Limits, func(p policy.Limit) bool { return p.Rule.Policy == c.Policy && p.Rule.Rule == c.Rule })
		})
	}
	l.status.Limits = append(l.status.Limits, v1alpha1.LimitCount{Policy: rate.Rule.Policy, Rule: rate.Rule.Rule, CountTime: metav1.NewMicroTime(now)})
}

// rateLease is where a rule counts the calls of one caller, or of all. It is in
// the controller's own namespace: no caller can shorten what is remembered of it.
func (r *ToolCallReconciler) rateLease(rate policy.Limit, call *v1alpha1.ToolCall) types.NamespacedName {
	caller := ""
	if rate.PerCaller {
		caller = call.Spec.Requester.Username
	}
	sum := sha256.Sum256(fmt.Appendf(nil, "%q %q %t %q", rate.Rule.Policy, rate.Rule.Rule, rate.PerCaller, caller))
	return types.NamespacedName{Namespace: r.Install, Name: ratePrefix + hex.EncodeToString(sum[:20])}
}

// inTurn lets a call pass if every limit of concurrent calls has a place for it.
func (r *ToolCallReconciler) inTurn(_ context.Context, l *look) (gate.Verdict, error) {
	places := gate.Places(l.call, l.admitted.Tool, l.admitted.Limits)
	claim := limit.Claim{UID: l.call.UID, Name: client.ObjectKeyFromObject(l.call), Since: l.call.CreationTimestamp.Time}
	for _, p := range places {
		claim.Places = append(claim.Places, p.Place)
	}
	l.asked = true
	blocked, next := r.queue.Take(claim)
	r.wakeAll(next)
	if blocked == nil {
		return gate.Verdict{}, nil
	}
	now := time.Now()
	l.status.StartingTime = nil
	if l.status.QueueTime == nil {
		l.status.QueueTime = ptr.To(metav1.NewMicroTime(now))
	}
	q := gate.Queued{Now: now, Call: l.call, Since: l.status.QueueTime.Time}
	for _, p := range places {
		if p.Key == blocked.Place.Key {
			q.At = p
		}
	}
	return gate.Queue(q), nil
}

func (r *ToolCallReconciler) wakeAll(calls []types.NamespacedName) {
	for _, call := range calls {
		r.wakeUp(call)
	}
}

// holdPlaces makes sure that what a call holds is known: it may have been sent
// by another process, and not been seen by restore.
func (r *ToolCallReconciler) holdPlaces(call *v1alpha1.ToolCall) {
	if !r.queue.Holds(call.UID) {
		r.queue.Restore(claimOf(call), true)
	}
}

// claimOf is the claim of a call by its status alone.
func claimOf(call *v1alpha1.ToolCall) limit.Claim {
	return limit.Claim{UID: call.UID, Name: client.ObjectKeyFromObject(call), Since: call.CreationTimestamp.Time, Places: gate.PlacesHeld(call)}
}

// betweenAttempts says whether a call has a place from an attempt before.
func betweenAttempts(call *v1alpha1.ToolCall) bool {
	c := apimeta.FindStatusCondition(call.Status.Conditions, v1alpha1.ConditionSucceeded)
	return c != nil && c.Reason == v1alpha1.ReasonRetrying
}

// restore brings the places into memory, once, that calls hold by their status.
func (r *ToolCallReconciler) restore(ctx context.Context) error {
	if r.restored.Load() {
		return nil
	}
	r.restoring.Lock()
	defer r.restoring.Unlock()
	if r.restored.Load() {
		return nil
	}
	var calls v1alpha1.ToolCallList
	if err := r.List(ctx, &calls, client.MatchingFields{indexUnfinished: allNamespaces}); err != nil {
		return fmt.Errorf("read the unfinished calls: %w", err)
	}
	for i := range calls.Items {
		call := &calls.Items[i]
		holds := openAttempt(call) != nil || call.Status.StartingTime != nil || betweenAttempts(call)
		if call.Status.ToolUID == "" || !holds && call.Status.QueueTime == nil {
			continue
		}
		r.queue.Restore(claimOf(call), holds)
	}
	r.restored.Store(true)
	return nil
}
