package limit

import (
	"cmp"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"testing"

	"k8s.io/apimachinery/pkg/types"
)

// model is the queue as its rules say it, slowly: after every step it walks all
// calls in order.
type model struct {
	calls  map[types.UID]*modelCall
	limits map[string]int
}

type modelCall struct {
	Claim
	holds, expected bool // expected: has a turn, and was not heard of since
}

// walk gives turns to the waiting calls, in order, and returns those that are
// new, and what was taken in front of the call asked about when it came to it.
func (m *model) walk(stop types.UID) (woken []types.NamespacedName, used map[string]int) {
	used = map[string]int{}
	for _, c := range m.calls {
		if c.holds {
			for _, p := range c.Places {
				used[p.Key]++
			}
		}
	}
	var front map[string]int
	for _, c := range m.inOrder() {
		switch {
		case c.holds:
			continue
		case c.UID == stop:
			front = maps.Clone(used)
			if !m.fits(c, used) {
				continue
			}
		case c.expected:
		case m.fits(c, used):
			c.expected = true
			woken = append(woken, c.Name)
		default:
			continue
		}
		for _, p := range c.Places {
			used[p.Key]++
		}
	}
	return woken, front
}

func (m *model) inOrder() []*modelCall {
	return slices.SortedFunc(maps.Values(m.calls), func(a, b *modelCall) int {
		return cmp.Or(a.Since.Compare(b.Since), cmp.Compare(a.UID, b.UID))
	})
}

func (m *model) fits(c *modelCall, used map[string]int) bool {
	return !slices.ContainsFunc(c.Places, func(p Place) bool { return used[p.Key] >= m.limits[p.Key] })
}

func (m *model) take(c Claim) (*Blocked, []types.NamespacedName) {
	for _, p := range c.Places {
		m.limits[p.Key] = p.Limit
	}
	known := m.calls[c.UID]
	if known != nil && known.holds {
		m.extend(known, c.Places)
		woken, _ := m.walk("")
		return nil, woken
	}
	known = &modelCall{Claim: c}
	m.calls[c.UID] = known
	woken, front := m.walk(c.UID)
	if known.holds = m.fits(known, front); known.holds {
		return nil, woken
	}
	at := c.Places[slices.IndexFunc(c.Places, func(p Place) bool { return front[p.Key] >= m.limits[p.Key] })]
	blocked := &Blocked{Place: at}
	ahead := true
	for _, other := range m.inOrder() {
		ahead = ahead && other != known
		if !slices.ContainsFunc(other.Places, func(p Place) bool { return p.Key == at.Key }) {
			continue
		}
		switch {
		case other.holds:
			blocked.Held++
		case ahead:
			blocked.Ahead++
		}
	}
	return blocked, woken
}

func (m *model) extend(c *modelCall, places []Place) {
	for _, p := range places {
		if !slices.ContainsFunc(c.Places, func(has Place) bool { return has.Key == p.Key }) {
			c.Places = append(slices.Clone(c.Places), p)
		}
	}
}

func (m *model) release(gone func(*modelCall) bool) []types.NamespacedName {
	maps.DeleteFunc(m.calls, func(_ types.UID, c *modelCall) bool { return gone(c) })
	woken, _ := m.walk("")
	return woken
}

func TestQueueAgainstModel(t *testing.T) {
	for seed := range uint64(40) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) { againstModel(t, rand.New(rand.NewPCG(seed, 7)), 1000) })
	}
}

func againstModel(t *testing.T, random *rand.Rand, steps int) {
	var q Queue
	m := &model{calls: map[types.UID]*modelCall{}, limits: map[string]int{}}
	limits := map[string]int{"T": 3, "U": 2, "A": 1, "B": 2, "R": 1}
	keys := slices.Sorted(maps.Keys(limits))
	changing := random.IntN(2) == 0 // limits, and the places of a call
	newClaim := func(id int, unknown bool) Claim {
		// Two ids share a name, ten share a second.
		c := Claim{
			UID:   types.UID(fmt.Sprintf("uid-%02d", id)),
			Name:  types.NamespacedName{Namespace: "ns", Name: fmt.Sprint("c", id/2)},
			Since: at(float64(id * 7 % 40 / 10)),
		}
		pick := rand.New(rand.NewPCG(uint64(id), 1))
		if changing && random.IntN(4) == 0 {
			pick = random
		}
		for _, i := range pick.Perm(len(keys))[:1+pick.IntN(3)] {
			p := Place{Key: keys[i], Limit: limits[keys[i]]}
			if unknown {
				p.Limit = 0
			}
			c.Places = append(c.Places, p)
		}
		return c
	}
	for id := range random.IntN(20) {
		c, holds := newClaim(id, true), random.IntN(3) == 0
		q.Restore(c, holds)
		m.calls[c.UID] = &modelCall{Claim: c, holds: holds, expected: true}
	}
	pending := map[types.NamespacedName]bool{}
	for step := range steps {
		var did string
		var got, want []types.NamespacedName
		id := random.IntN(40)
		switch action := random.IntN(10); {
		case action < 6:
			c := newClaim(id, false)
			if known := m.calls[c.UID]; known == nil && random.IntN(3) == 0 {
				continue // fewer calls than names
			}
			var gotBlocked, wantBlocked *Blocked
			gotBlocked, got = q.Take(c)
			wantBlocked, want = m.take(c)
			did = fmt.Sprintf("take %v", c)
			if (gotBlocked == nil) != (wantBlocked == nil) || gotBlocked != nil && *gotBlocked != *wantBlocked {
				t.Fatalf("step %d, %s: %+v, want %+v", step, did, gotBlocked, wantBlocked)
			}
			if q.Holds(c.UID) != (gotBlocked == nil) {
				t.Fatalf("step %d, %s: %+v, and holds: %t", step, did, gotBlocked, q.Holds(c.UID))
			}
		case action < 9:
			uid := newClaim(id, false).UID
			did = fmt.Sprintf("release %s", uid)
			got, want = q.Release(uid), m.release(func(c *modelCall) bool { return c.UID == uid })
		case action == 9 && changing && random.IntN(2) == 0:
			key := keys[random.IntN(len(keys))]
			limits[key] = 1 + random.IntN(4)
		default:
			c := newClaim(id, false)
			keep := c.UID
			if random.IntN(2) == 0 {
				keep = ""
			}
			did = fmt.Sprintf("release %s but %q", c.Name, keep)
			got, want = q.ReleaseNamed(c.Name, keep), m.release(func(other *modelCall) bool { return other.Name == c.Name && other.UID != keep })
		}
		if !slices.Equal(got, want) {
			t.Fatalf("step %d, %s: wakes %v, want %v", step, did, got, want)
		}
		for _, name := range got {
			pending[name] = true
		}
	}
	finish(t, &q, m, limits, pending)
}

// finish wakes who is to be woken and ends who holds, oldest first, until nobody
// is left: a call that nobody wakes would be.
func finish(t *testing.T, q *Queue, m *model, limits map[string]int, woken map[types.NamespacedName]bool) {
	for _, c := range m.calls { // the controller looks at all restored calls
		if c.expected {
			woken[c.Name] = true
		}
	}
	for round := 0; len(m.calls) > 0; round++ {
		if round > 1000 {
			t.Fatalf("%d calls are left and nobody wakes them", len(m.calls))
		}
		ask := woken
		woken = map[types.NamespacedName]bool{}
		for _, c := range m.inOrder() {
			if c.holds || !ask[c.Name] {
				continue
			}
			for i := range c.Places {
				c.Places[i].Limit = limits[c.Places[i].Key]
			}
			_, next := q.Take(c.Claim)
			m.take(c.Claim)
			for _, name := range next {
				woken[name] = true
			}
		}
		for _, c := range m.inOrder() {
			if !c.holds {
				continue
			}
			next := q.Release(c.UID)
			m.release(func(other *modelCall) bool { return other == c })
			for _, name := range next {
				woken[name] = true
			}
			break
		}
	}
	checkEmpty(t, q, "the end")
}
