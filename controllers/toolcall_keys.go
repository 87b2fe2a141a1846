package controllers

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"callgate.dev/callgate/api/v1alpha1"
	"callgate.dev/callgate/internal/fault"
	"callgate.dev/callgate/internal/gate"
	"callgate.dev/callgate/internal/idempotency"
)

// maxTakes bounds how often a look tries to take one key: somebody else may
// take it or free it in between.
const maxTakes = 3

// firstOfItsKeys makes a call the holder of its keys, or finds that another one
// is and what became of that.
func (r *ToolCallReconciler) firstOfItsKeys(ctx context.Context, l *look) (gate.Verdict, error) {
	for _, key := range idempotency.Keys(l.call, l.admitted.Tool, l.admitted.ArgsDigest) {
		lease, verdict, err := r.takeKey(ctx, l, key)
		if err == nil && verdict.Reason != v1alpha1.ReasonAwaitingFirstCall {
			// Its Lease may stay as it is for a day, and this call waits for nothing.
			r.waiters.remove(client.ObjectKey{Namespace: l.admitted.Tool.Namespace, Name: key.Lease}, client.ObjectKeyFromObject(l.call))
		}
		if err != nil || !verdict.Passed() {
			return verdict, err
		}
		l.keys = append(l.keys, lease)
	}
	return gate.Verdict{}, nil
}

func (r *ToolCallReconciler) takeKey(ctx context.Context, l *look, key idempotency.Key) (*coordinationv1.Lease, gate.Verdict, error) {
	name := client.ObjectKey{Namespace: l.admitted.Tool.Namespace, Name: key.Lease}
	lease, err := r.readKey(ctx, r.Client, name, l)
	if err != nil {
		return nil, gate.Verdict{}, err
	}
	for range maxTakes {
		verdict, err := r.lookAtKey(ctx, l, key, lease)
		if err != nil || verdict.Act != gate.ActTakeKey {
			return lease, verdict, err
		}
		now := time.Now()
		if lease == nil {
			lease = idempotency.New(key, l.admitted.Tool, l.call, l.admitted.ArgsDigest, r.Install, now)
			err = r.Create(ctx, lease)
		} else {
			lease = lease.DeepCopy()
			idempotency.Take(lease, key, l.admitted.Tool, l.call, l.admitted.ArgsDigest, r.Install, now)
			err = r.Update(ctx, lease)
		}
		fault.At("key-taken")
		switch {
		case err == nil:
			return lease, gate.Verdict{}, nil
		case !apierrors.IsAlreadyExists(err) && !apierrors.IsConflict(err) && !apierrors.IsNotFound(err):
			return nil, r.notStored(l, "its idempotency key cannot be stored", err), nil
		}
		if lease, err = r.readKey(ctx, r.APIReader, name, l); err != nil {
			return nil, gate.Verdict{}, err
		}
	}
	// Many calls want the key at once, and one of them has it now.
	return nil, gate.Verdict{Reason: v1alpha1.ReasonPending, After: retryPause}, nil
}

// settleLimit bounds how long the end of a call waits until it is brought to its
// keys.
const settleLimit = 10 * time.Second

// readKey reads the Lease of a key for a call that may have to wait for it, and
// that is told of what happens to it from before the read on.
func (r *ToolCallReconciler) readKey(ctx context.Context, reader client.Reader, name client.ObjectKey, l *look) (*coordinationv1.Lease, error) {
	r.waiters.add(name, client.ObjectKeyFromObject(l.call))
	return getLease(ctx, reader, name)
}

// lookAtKey decides about a key by its Lease, nil if there is none.
func (r *ToolCallReconciler) lookAtKey(ctx context.Context, l *look, key idempotency.Key, lease *coordinationv1.Lease) (gate.Verdict, error) {
	k := gate.Keyed{Now: time.Now(), Call: l.call, Tool: l.admitted.Tool, ArgsDigest: l.admitted.ArgsDigest, Key: key}
	if lease != nil {
		k.Record = ptr.To(idempotency.Read(lease))
		if k.Record.Holder != l.call.UID {
			var err error
			if k.Holder, err = holder(ctx, *k.Record, r.Client, r.APIReader); err != nil {
				return gate.Verdict{}, err
			}
		}
	}
	verdict, first := gate.Duplicate(k)
	if first != nil {
		l.status.DuplicateOfRef = first
	}
	return verdict, nil
}

// holder is the call that holds a key, nil if it is gone, for which the cache
// is no proof.
func holder(ctx context.Context, record idempotency.Record, cached, past client.Reader) (*v1alpha1.ToolCall, error) {
	if record.Call.Name == "" || record.Call.Namespace == "" {
		return nil, nil // damaged: no call, and no request for one, has such a name
	}
	for _, reader := range []client.Reader{cached, past} {
		call := &v1alpha1.ToolCall{}
		err := reader.Get(ctx, record.Call, call)
		if err == nil && call.UID == record.Holder {
			return call, nil
		}
		if client.IgnoreNotFound(err) != nil {
			return nil, err
		}
	}
	return nil, nil
}

func getLease(ctx context.Context, reader client.Reader, name client.ObjectKey) (*coordinationv1.Lease, error) {
	lease := &coordinationv1.Lease{}
	if err := reader.Get(ctx, name, lease); err != nil {
		return nil, client.IgnoreNotFound(err)
	}
	return lease, nil
}

// noteSent says on the Leases of a call that it may have run from now on. Should
// the call be deleted, its keys are not given to another one.
func (r *ToolCallReconciler) noteSent(ctx context.Context, l *look) error {
	for i, lease := range l.keys {
		lease = lease.DeepCopy()
		idempotency.Send(lease, l.plan.attempt.Number)
		if err := r.Update(ctx, lease); err != nil {
			return fmt.Errorf("note on an idempotency key that the call is sent: %w", err)
		}
		l.keys[i] = lease
	}
	return nil
}

// settleKeys brings the end of a call to its keys, before anybody can see it in
// the call's status and delete the call: they keep the result, or are free.
func (r *ToolCallReconciler) settleKeys(ctx context.Context, call *v1alpha1.ToolCall, status *v1alpha1.ToolCallStatus) error {
	if call.Spec.Requester == nil {
		return nil // it never came to its keys
	}
	var held coordinationv1.LeaseList
	if err := r.List(ctx, &held, client.InNamespace(gate.ToolNamespace(call)), client.MatchingFields{indexHolder: string(call.UID)}); err != nil {
		return err
	}
	// Anybody can name the call as the holder of a Lease of another name, and would
	// read its result there: an admission policy protects ours only.
	held.Items = slices.DeleteFunc(held.Items, func(l coordinationv1.Lease) bool { return !strings.HasPrefix(l.Name, idempotency.LeasePrefix) })
	// The cache may not have those that were taken a moment ago.
	tool, err := r.toolWithUID(ctx, status.ToolUID)
	if err != nil {
		return err
	}
	if tool != nil {
		for _, key := range idempotency.Keys(call, tool, status.ArgsDigest) {
			name := client.ObjectKey{Namespace: tool.Namespace, Name: key.Lease}
			if slices.ContainsFunc(held.Items, func(l coordinationv1.Lease) bool { return client.ObjectKeyFromObject(&l) == name }) {
				continue
			}
			lease, err := getLease(ctx, r.APIReader, name)
			if err != nil {
				return err
			}
			if lease != nil {
				held.Items = append(held.Items, *lease)
			}
		}
	}
	for i := range held.Items {
		err := r.settleKey(ctx, &held.Items[i], call, status)
		now := time.Now()
		if err != nil && !apierrors.IsConflict(err) &&
			(apierrors.IsForbidden(err) || now.Sub(r.unstored.at(client.ObjectKeyFromObject(call), now)) > settleLimit) {
			// Its namespace is closed, or a webhook is down. The call ends all the same: a
			// key that says sent and has no end is never given to another call, and
			// LeaseReconciler brings the end to it later.
			log.FromContext(ctx).Error(err, "bring the end of the call to its idempotency key")
			continue
		}
		if err != nil {
			return fmt.Errorf("bring the end of the call to its idempotency key: %w", err)
		}
	}
	return nil
}

func (r *ToolCallReconciler) settleKey(ctx context.Context, lease *coordinationv1.Lease, call *v1alpha1.ToolCall, status *v1alpha1.ToolCallStatus) error {
	record := idempotency.Read(lease)
	if record.Holder != call.UID || !record.Ended.IsZero() {
		return nil // another call's, or settled before a restart
	}
	if gate.Frees(status) {
		if record.Sent {
			// It would be another call's, which runs.
			if err := r.sameAttempts(ctx, call); err != nil {
				return err
			}
		}
		return client.IgnoreNotFound(r.Delete(ctx, lease, client.Preconditions{UID: &lease.UID, ResourceVersion: &lease.ResourceVersion}))
	}
	lease = lease.DeepCopy()
	if err := idempotency.End(lease, status.Result, time.Now()); err != nil {
		return err
	}
	return client.IgnoreNotFound(r.Update(ctx, lease))
}

// waiters are the calls that wait for a key, by its Lease. They are woken by
// what happens to the Lease, and look again after a while should that be lost.
type waiters struct {
	mu    sync.Mutex
	calls map[types.NamespacedName]map[types.NamespacedName]struct{}
}

func (w *waiters) add(lease, call types.NamespacedName) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.calls == nil {
		w.calls = map[types.NamespacedName]map[types.NamespacedName]struct{}{}
	}
	if w.calls[lease] == nil {
		w.calls[lease] = map[types.NamespacedName]struct{}{}
	}
	w.calls[lease][call] = struct{}{}
}

func (w *waiters) remove(lease, call types.NamespacedName) {
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.calls[lease], call)
	if len(w.calls[lease]) == 0 {
		delete(w.calls, lease)
	}
}

// wake returns the calls that waited; those that still have to will say so again.
func (w *waiters) wake(_ context.Context, lease client.Object) []reconcile.Request {
	name := client.ObjectKeyFromObject(lease)
	w.mu.Lock()
	defer w.mu.Unlock()
	requests := make([]reconcile.Request, 0, len(w.calls[name]))
	for call := range w.calls[name] {
		requests = append(requests, reconcile.Request{NamespacedName: call})
	}
	delete(w.calls, name)
	return requests
}
