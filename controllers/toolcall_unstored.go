package controllers

import (
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"callgate.dev/callgate/internal/gate"
)

// timesSince remembers since when something is so with a call, to bound it: from
// the first time that it is seen, whatever the call waited for before. A restart
// begins anew.
type timesSince struct {
	mu    sync.Mutex
	since map[types.NamespacedName]time.Time
}

// at is when it began, now if this is the first time.
func (u *timesSince) at(call types.NamespacedName, now time.Time) time.Time {
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

func (u *timesSince) forget(call types.NamespacedName) {
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
