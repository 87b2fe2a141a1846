package limit

import (
	"slices"
	"strings"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"
)

// Place is one limit of concurrent calls that a call comes under.
type Place struct {
	// Key names the limit: "tool/<uid>", "rule/<policy>/<rule>", with the caller if
	// it is per caller.
	Key string
	// Limit is how many calls may hold the key at once, at least 1. The one given
	// last holds for all calls. 0 is for Restore: not known.
	Limit int
}

// Claim is a call that wants a place at every one of its keys.
type Claim struct {
	UID  types.UID
	Name types.NamespacedName
	// Since, the creation of the call, gives its turn; of one time, the UID does.
	Since time.Time
	// Places of which each key counts once.
	Places []Place
}

// Blocked says where a call waits.
type Blocked struct {
	// Place is the first one, in the order of the claim, that has no room.
	Place Place
	// Held is how many calls hold it.
	Held int
	// Ahead is how many calls wait for it in front of this one. Some of them may be
	// held up elsewhere and be passed.
	Ahead int
}

// Queue says which calls run now under limits of concurrent calls, first come
// first served: no call takes a place that an older waiting one could take. A
// call takes all its places at once or none, so one that is held up at another
// key holds up nobody; the price is that a call of several contended keys may be
// passed for as long as it waits.
//
// A call that could take its places is not given them but is named, to be woken
// (next), and has a turn until it asks: it counts in front of younger calls. So
// who was named must ask (Take) or be forgotten (Release, ReleaseNamed), or what
// it would take stays free; and every call that leaves the queue, for whatever
// reason, must be released.
//
// The zero value is an empty queue. It is safe for concurrent use. Memory is what
// the calls take that it knows, a few hundred bytes each.
type Queue struct {
	mu    sync.Mutex
	calls map[types.UID]*call
	names map[types.NamespacedName][]*call // one, but for a call that was re-created
	lanes map[string]*lane
}

// lane is the state of one key.
type lane struct {
	key     string
	limit   int // 0: not known yet
	held    int
	turns   []*call // oldest first
	waiting []*call // oldest first
}

// call is one that the queue knows. It is counted in all its lanes alike, by its
// state.
type call struct {
	uid   types.UID
	name  types.NamespacedName
	since time.Time
	lanes []*lane
	state state
}

type state int

const (
	waiting state = iota // cannot take its places
	turn                 // may take its places when it asks
	holding
)

// Take gives the call its places, or says where it waits (blocked). A call that
// has its places keeps them, whatever the limits became; keys that are new are
// added to what it holds. One that waits may ask at any time, with the claim that
// it has then; that changes nothing about its turn.
//
// next are other calls that could take their places now, oldest first: this one
// no longer waits for what it waited for, or brought a higher limit.
func (q *Queue) Take(c Claim) (blocked *Blocked, next []types.NamespacedName) {
	q.mu.Lock()
	defer q.mu.Unlock()
	known := q.calls[c.UID]
	if known != nil && known.state == holding {
		return nil, names(settle(q.extend(known, c.Places)))
	}
	var roomier []*lane
	if known != nil {
		roomier = q.forget(known)
	}
	asking := q.add(c, waiting)
	if roomier = append(roomier, q.extend(asking, c.Places)...); len(roomier) > 0 {
		// The oldest comes first, who may be another than the one that asks.
		for _, l := range asking.lanes {
			if !slices.Contains(roomier, l) {
				roomier = append(roomier, l)
			}
		}
		woken := settle(roomier)
		next = names(slices.DeleteFunc(woken, func(other *call) bool { return other == asking }))
	}
	full := asking.full()
	if full == nil {
		asking.move(holding)
		return nil, next
	}
	return &Blocked{
		Place: Place{Key: full.key, Limit: full.limit},
		Held:  full.held,
		Ahead: before(full.turns, asking) + before(full.waiting, asking),
	}, next
}

// Restore brings back what a call held, or that it waited, before the process
// started; it goes before the first Take. One that waited has a turn until it
// asks: until then, which limits hold it up is not known. A call that the queue
// has may become a holder, nothing else changes.
func (q *Queue) Restore(c Claim, holds bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	known := q.calls[c.UID]
	switch {
	case known == nil && holds:
		known = q.add(c, holding)
	case known == nil:
		known = q.add(c, turn)
	case !holds:
		return
	default:
		known.move(holding)
	}
	q.extend(known, c.Places)
}

// Release forgets a call, whether it holds its places, waits or is not known.
// next are the calls that could take their places now, oldest first.
func (q *Queue) Release(uid types.UID) (next []types.NamespacedName) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if known := q.calls[uid]; known != nil {
		next = names(settle(q.forget(known)))
	}
	return next
}

// ReleaseNamed is Release for every call of that name but the one with the UID
// keep: for calls of which only the name is known since they are deleted (no
// keep), or that were created anew.
func (q *Queue) ReleaseNamed(name types.NamespacedName, keep types.UID) (next []types.NamespacedName) {
	q.mu.Lock()
	defer q.mu.Unlock()
	var roomier []*lane
	for _, known := range slices.Clone(q.names[name]) {
		if known.uid != keep {
			roomier = append(roomier, q.forget(known)...)
		}
	}
	return names(settle(roomier))
}

// Named are the calls of a name that the queue knows: one, but for a call that was
// deleted and created anew.
func (q *Queue) Named(name types.NamespacedName) []types.UID {
	q.mu.Lock()
	defer q.mu.Unlock()
	var uids []types.UID
	for _, known := range q.names[name] {
		uids = append(uids, known.uid)
	}
	return uids
}

// Holds says whether the call has its places.
func (q *Queue) Holds(uid types.UID) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	known := q.calls[uid]
	return known != nil && known.state == holding
}

// add makes a call known, without lanes.
func (q *Queue) add(c Claim, s state) *call {
	if q.calls == nil {
		q.calls, q.names, q.lanes = map[types.UID]*call{}, map[types.NamespacedName][]*call{}, map[string]*lane{}
	}
	added := &call{uid: c.UID, name: c.Name, since: c.Since, state: s}
	q.calls[c.UID] = added
	q.names[c.Name] = append(q.names[c.Name], added)
	return added
}

// extend adds the lanes of places that the call does not have, and returns the
// lanes of which the limit became higher while others wait.
func (q *Queue) extend(c *call, places []Place) (raised []*lane) {
	for _, p := range places {
		l := q.lanes[p.Key]
		if l == nil {
			l = &lane{key: p.Key}
			q.lanes[p.Key] = l
		}
		if p.Limit > 0 {
			if p.Limit > l.limit && len(l.waiting) > 0 {
				raised = append(raised, l)
			}
			l.limit = p.Limit
		}
		if !slices.Contains(c.lanes, l) {
			c.lanes = append(c.lanes, l)
			l.enter(c)
		}
	}
	return raised
}

// forget removes a call, and returns the lanes that have more room by that.
func (q *Queue) forget(c *call) (roomier []*lane) {
	delete(q.calls, c.uid)
	if q.names[c.name] = slices.DeleteFunc(q.names[c.name], func(other *call) bool { return other == c }); len(q.names[c.name]) == 0 {
		delete(q.names, c.name)
	}
	for _, l := range c.lanes {
		l.leave(c)
		if l.held+len(l.turns)+len(l.waiting) == 0 {
			delete(q.lanes, l.key)
		}
	}
	if c.state == waiting {
		return nil // it was in nobody's way
	}
	return c.lanes
}

// settle gives a turn to the waiting calls of lanes that have more room now, and
// returns them, oldest first. Before and after it, no waiting call of other lanes
// could take its places. It ends when the lanes have no more room: only calls that
// are held up at other lanes make it walk far.
func settle(lanes []*lane) (woken []*call) {
	at := make([]int, len(lanes)) // the next waiting call of each lane
	for {
		var first *call
		for i, l := range lanes {
			switch {
			case at[i] >= len(l.waiting):
			case !l.room(l.waiting[at[i]]):
				at[i] = len(l.waiting) // nor for any younger one
			case first == nil || compare(l.waiting[at[i]], first) < 0:
				first = l.waiting[at[i]]
			}
		}
		if first == nil {
			return woken
		}
		if first.full() == nil {
			first.move(turn) // no longer in l.waiting: at is the next one's
			woken = append(woken, first)
			continue
		}
		for i, l := range lanes {
			if at[i] < len(l.waiting) && l.waiting[at[i]] == first {
				at[i]++
			}
		}
	}
}

// full is the first lane that has no room for the call, nil if all have.
func (c *call) full() *lane {
	for _, l := range c.lanes {
		if !l.room(c) {
			return l
		}
	}
	return nil
}

// move counts the call elsewhere in all its lanes.
func (c *call) move(to state) {
	for _, l := range c.lanes {
		l.leave(c)
	}
	c.state = to
	for _, l := range c.lanes {
		l.enter(c)
	}
}

// room says whether a call that does not hold the key could. Who has a turn comes
// before those that are younger, and only before them.
func (l *lane) room(c *call) bool {
	switch free := l.limit - l.held; {
	case free <= 0:
		return false
	case free > len(l.turns):
		return true
	default: // are as many turns as there are free places before c?
		return compare(l.turns[free-1], c) >= 0
	}
}

func (l *lane) enter(c *call) {
	switch c.state {
	case holding:
		l.held++
	case turn:
		l.turns = slices.Insert(l.turns, before(l.turns, c), c)
	case waiting:
		l.waiting = slices.Insert(l.waiting, before(l.waiting, c), c)
	}
}

func (l *lane) leave(c *call) {
	switch c.state {
	case holding:
		l.held--
	case turn:
		i := before(l.turns, c)
		l.turns = slices.Delete(l.turns, i, i+1)
	case waiting:
		i := before(l.waiting, c)
		l.waiting = slices.Delete(l.waiting, i, i+1)
	}
}

// before counts the calls of a list, oldest first, that are older than c.
func before(list []*call, c *call) int {
	i, _ := slices.BinarySearchFunc(list, c, compare)
	return i
}

// compare orders calls by their turn.
func compare(a, b *call) int {
	if order := a.since.Compare(b.since); order != 0 {
		return order
	}
	return strings.Compare(string(a.uid), string(b.uid))
}

func names(calls []*call) []types.NamespacedName {
	var out []types.NamespacedName
	for _, c := range calls {
		out = append(out, c.name)
	}
	return out
}
