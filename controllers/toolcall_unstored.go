package controllers

import (
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"callgate.dev/callgate/internal/gate"
)

// unstored remembers since when something of a call cannot be stored, so that
// its wait for that is bounded: from the first failure on, whatever it waited
// for before. A restart begins anew.
type unstored struct {
	mu    sync.Mutex
	since map[types.NamespacedName]time.Time
}

// at is when the failures of a call began, now if this is the first one.
func (u *unstored) at(call types.NamespacedName, now time.Time) time.Time {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.since == nil {
		u.since = map[types.NamespacedName]time.Time{}
	}
	if _, ok := u.since[call]; !ok {
		u.since[call] = now
	}
	return u.since[call]
}

func (u *unstored) forget(call types.NamespacedName) {
	u.mu.Lock()
	defer u.mu.Unlock()
	delete(u.since, call)
}

// notStored is the wait of a call for which the API server refuses a write: a
// right is missing, a webhook is down, or it is slow. Time may cure it, within
// the call's bounds.
func (r *ToolCallReconciler) notStored(l *look, words string, err error) gate.Verdict {
	l.unstored = true
	now := time.Now()
	return gate.Unstored(l.call, l.admitted.Tool, r.unstored.at(client.ObjectKeyFromObject(l.call), now), now, words+": "+err.Error())
}
