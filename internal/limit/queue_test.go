package limit

import (
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/types"
)

// claim of a call of which the name has its age, "a12" is created at second 12,
// with places as "T=2 A=1".
func claim(name string, places ...string) Claim {
	var age int
	if _, err := fmt.Sscanf(strings.TrimLeft(name, "abcdefghijklmnopqrstuvwxyz"), "%d", &age); err != nil {
		panic(err)
	}
	c := Claim{UID: types.UID(name), Name: types.NamespacedName{Namespace: "ns", Name: name}, Since: at(float64(age))}
	for _, p := range places {
		key, limit, _ := strings.Cut(p, "=")
		place := Place{Key: key}
		fmt.Sscan(limit, &place.Limit) //nolint:errcheck // "" is 0
		c.Places = append(c.Places, place)
	}
	return c
}

// do runs one line of a test: take, restore (a call that waited), hold (restore
// one that held), release, or gone NAME [KEEP].
func do(q *Queue, line string) string {
	words := strings.Fields(line)
	var next []types.NamespacedName
	got := "-"
	switch words[0] {
	case "take":
		var blocked *Blocked
		if blocked, next = q.Take(claim(words[1], words[2:]...)); blocked == nil {
			got = "holds"
		} else {
			got = fmt.Sprintf("waits at %s=%d held %d ahead %d", blocked.Place.Key, blocked.Place.Limit, blocked.Held, blocked.Ahead)
		}
	case "restore", "hold":
		q.Restore(claim(words[1], words[2:]...), words[0] == "hold")
	case "release":
		next = q.Release(types.UID(words[1]))
	case "gone":
		next = q.ReleaseNamed(types.NamespacedName{Namespace: "ns", Name: words[1]}, types.UID(strings.Join(words[2:], "")))
	default:
		panic(line)
	}
	for _, n := range next {
		got += " wakes " + n.Name
	}
	return got
}

func TestQueue(t *testing.T) {
	for _, test := range []struct {
		reason string
		steps  [][2]string
	}{
		{"places are taken up to the limit, and given on in the order of creation, not of asking", [][2]string{
			{"take a1 T=2", "holds"},
			{"take a2 T=2", "holds"},
			{"take a5 T=2", "waits at T=2 held 2 ahead 0"},
			{"take a4 T=2", "waits at T=2 held 2 ahead 0"},
			{"take a6 T=2", "waits at T=2 held 2 ahead 2"},
			{"release a2", "- wakes a4"},
			{"take a4 T=2", "holds"},
			{"take a5 T=2", "waits at T=2 held 2 ahead 0"},
			{"release a1", "- wakes a5"},
			{"release a4", "- wakes a6"},
		}},
		{"of one time, the UID decides", [][2]string{
			{"take x1 T=1", "holds"},
			{"take c2 T=1", "waits at T=1 held 1 ahead 0"},
			{"take b2 T=1", "waits at T=1 held 1 ahead 0"},
			{"take d2 T=1", "waits at T=1 held 1 ahead 2"},
			{"release x1", "- wakes b2"},
		}},
		{"a younger call cannot take what an older one was woken for", [][2]string{
			{"take a1 T=1", "holds"},
			{"take a2 T=1", "waits at T=1 held 1 ahead 0"},
			{"release a1", "- wakes a2"},
			{"take a3 T=1", "waits at T=1 held 0 ahead 1"},
			{"take a2 T=1", "holds"},
		}},
		{"an older call can: the younger one asks in vain and is woken later", [][2]string{
			{"take a1 T=1", "holds"},
			{"take a3 T=1", "waits at T=1 held 1 ahead 0"},
			{"release a1", "- wakes a3"},
			{"take a2 T=1", "holds"},
			{"take a3 T=1", "waits at T=1 held 1 ahead 0"},
			{"release a2", "- wakes a3"},
			{"take a3 T=1", "holds"},
		}},
		{"a caller over its own limit does not stop another caller", [][2]string{
			{"take a1 T=2 A=1", "holds"},
			{"take a2 T=2 A=1", "waits at A=1 held 1 ahead 0"},
			{"take a3 T=2 A=1", "waits at A=1 held 1 ahead 1"},
			{"take a4 T=2 A=1", "waits at A=1 held 1 ahead 2"},
			{"take b5 T=2 B=1", "holds"},
			{"take b6 T=2 B=1", "waits at T=2 held 2 ahead 3"},
			{"release a1", "- wakes a2"},
			{"take a2 T=2 A=1", "holds"},
			{"release b5", "- wakes b6"},
			{"release a2", "- wakes a3"},
		}},
		{"the first place in the order of the claim that has no room is named", [][2]string{
			{"take a1 T=1 A=1", "holds"},
			{"take a2 A=1 T=1", "waits at A=1 held 1 ahead 0"},
			{"take a3 T=1 A=1", "waits at T=1 held 1 ahead 1"},
			{"take a3 B=1 T=1", "waits at T=1 held 1 ahead 1"},
		}},
		{"one release may wake several, of several keys, oldest first", [][2]string{
			{"take x1 T=1 A=1 B=1", "holds"},
			{"take b2 B=1", "waits at B=1 held 1 ahead 0"},
			{"take a3 A=1", "waits at A=1 held 1 ahead 0"},
			{"take c4 T=1 B=1", "waits at T=1 held 1 ahead 0"},
			{"take c5 T=1", "waits at T=1 held 1 ahead 1"},
			{"release x1", "- wakes b2 wakes a3 wakes c5"},
		}},
		{"a call that has its places keeps them, whatever the limit became", [][2]string{
			{"take a1 T=2", "holds"},
			{"take a2 T=2", "holds"},
			{"take a2 T=1", "holds"},
			{"take a1 T=1", "holds"},
			{"take a3 T=1", "waits at T=1 held 2 ahead 0"},
			{"release a1", "-"},
			{"release a2", "- wakes a3"},
		}},
		{"new keys are added to what is held, also above their limit, and given back", [][2]string{
			{"take a1 T=2", "holds"},
			{"take a2 T=2 R=1", "holds"},
			{"take a1 T=2 R=1", "holds"},
			{"take a3 R=1", "waits at R=1 held 2 ahead 0"},
			{"release a2", "-"},
			{"release a1", "- wakes a3"},
		}},
		{"who was woken is held up by a limit that is new", [][2]string{
			{"take a1 T=1", "holds"},
			{"take a2 T=1", "waits at T=1 held 1 ahead 0"},
			{"take a3 T=1", "waits at T=1 held 1 ahead 1"},
			{"take b9 R=1", "holds"},
			{"release a1", "- wakes a2"},
			{"take a2 T=1 R=1", "waits at R=1 held 1 ahead 0 wakes a3"},
			{"take a3 T=1", "holds"},
		}},
		{"a higher limit wakes those that it lets pass", [][2]string{
			{"take a1 T=1", "holds"},
			{"take a2 T=1", "waits at T=1 held 1 ahead 0"},
			{"take a3 T=1", "waits at T=1 held 1 ahead 1"},
			{"take a4 T=3", "waits at T=3 held 1 ahead 2 wakes a2 wakes a3"},
			{"take a3 T=3", "holds"},
			{"take a2 T=3", "holds"},
			{"take a1 T=4", "holds wakes a4"},
		}},
		{"the one that brings the higher limit is not woken, it has its places", [][2]string{
			{"take a1 T=1", "holds"},
			{"take a2 T=1", "waits at T=1 held 1 ahead 0"},
			{"take a3 T=1", "waits at T=1 held 1 ahead 1"},
			{"take a2 T=2", "holds"},
		}},
		{"a limit below 1 says nothing: while no other is known, nobody passes", [][2]string{
			{"take a1 T=0", "waits at T=0 held 0 ahead 0"},
			{"take a2 T=1", "waits at T=1 held 0 ahead 1 wakes a1"},
			{"take a1 T=-1", "holds"},
		}},
		{"a key that is named twice counts once", [][2]string{
			{"take a1 T=2 T=2", "holds"},
			{"take a2 T=2 T=2", "holds"},
			{"take a3 T=2 T=2", "waits at T=2 held 2 ahead 0"},
			{"release a1", "- wakes a3"},
		}},
		{"no limit, no wait", [][2]string{{"take a1", "holds"}, {"release a1", "-"}}},
		{"a waiting call that is released is forgotten", [][2]string{
			{"take a1 T=1", "holds"},
			{"take a2 T=1", "waits at T=1 held 1 ahead 0"},
			{"take a3 T=1", "waits at T=1 held 1 ahead 1"},
			{"release a2", "-"},
			{"release a2", "-"},
			{"release a1", "- wakes a3"},
		}},
		{"who was woken and is over passes its turn on", [][2]string{
			{"take a1 T=1", "holds"},
			{"take a2 T=1", "waits at T=1 held 1 ahead 0"},
			{"take a3 T=1", "waits at T=1 held 1 ahead 1"},
			{"release a1", "- wakes a2"},
			{"release a2", "- wakes a3"},
		}},
		{"restored holders are counted", [][2]string{
			{"hold a1 T A", "-"},
			{"hold a2 T", "-"},
			{"take a3 T=2", "waits at T=2 held 2 ahead 0"},
			{"release a2", "- wakes a3"},
			{"take a1 T=2", "holds"},
			{"take a4 A=1", "waits at A=1 held 1 ahead 0"},
		}},
		{"restored holders may be more than the limit", [][2]string{
			{"hold a1 T", "-"},
			{"hold a2 T", "-"},
			{"take a3 T=1", "waits at T=1 held 2 ahead 0"},
			{"release a2", "-"},
			{"release a1", "- wakes a3"},
		}},
		{"a restored waiter keeps its turn before younger calls, in whatever order they ask", [][2]string{
			{"restore a2 T", "-"},
			{"restore a1 T", "-"},
			{"take a3 T=1", "waits at T=1 held 0 ahead 2"},
			{"take a2 T=1", "waits at T=1 held 0 ahead 1"},
			{"take a1 T=1", "holds"},
			{"release a1", "- wakes a2"},
		}},
		{"a restored waiter does not stop an older call", [][2]string{
			{"restore a5 T", "-"},
			{"take a3 T=1", "holds"},
		}},
		{"a restored waiter takes one place in front of younger calls, not all", [][2]string{
			{"restore a1 T", "-"},
			{"take a3 T=2", "holds"},
			{"take a4 T=2", "waits at T=2 held 1 ahead 1"},
		}},
		{"a restored waiter that is held up elsewhere lets the younger ones pass", [][2]string{
			{"hold a1 A", "-"},
			{"restore a2 T A", "-"},
			{"take b3 T=1", "waits at T=1 held 0 ahead 1"},
			{"take a2 T=1 A=1", "waits at A=1 held 1 ahead 0 wakes b3"},
			{"take b3 T=1", "holds"},
		}},
		{"a restored waiter that is over lets the younger ones pass", [][2]string{
			{"restore a1 T", "-"},
			{"take a2 T=1", "waits at T=1 held 0 ahead 1"},
			{"release a1", "- wakes a2"},
		}},
		{"restoring twice counts once; a waiter may become a holder, not the reverse", [][2]string{
			{"restore a1 T", "-"},
			{"restore a1 T", "-"},
			{"hold a1 T", "-"},
			{"restore a1 T", "-"},
			{"hold a1 T A", "-"},
			{"take a2 T=2", "holds"},
			{"take a3 A=1", "waits at A=1 held 1 ahead 0"},
		}},
		{"a deleted call is found by its name", [][2]string{
			{"take a1 T=1", "holds"},
			{"take a2 T=1", "waits at T=1 held 1 ahead 0"},
			{"gone a3", "-"},
			{"gone a1 a1", "-"},
			{"gone a1", "- wakes a2"},
			{"gone a1", "-"},
		}},
		{"a call that is created anew under its name is another call", [][2]string{
			{"take a1 T=1", "holds"},
			{"take b2 T=1", "waits at T=1 held 1 ahead 0"},
			{"gone a1 anew", "- wakes b2"},
		}},
	} {
		var q Queue
		for i, step := range test.steps {
			if got := do(&q, step[0]); got != step[1] {
				t.Errorf("%s: step %d, %s:\n got %s\nwant %s", test.reason, i+1, step[0], got, step[1])
				break
			}
		}
		releaseAll(&q)
		checkEmpty(t, &q, test.reason)
	}
}

func releaseAll(q *Queue) {
	for uid := range q.calls {
		q.Release(uid)
	}
}

func checkEmpty(t *testing.T, q *Queue, when string) {
	t.Helper()
	if len(q.calls)+len(q.names)+len(q.lanes) > 0 {
		t.Errorf("%s: after all were released, %d calls, %d names and %d keys are left", when, len(q.calls), len(q.names), len(q.lanes))
	}
}

// Two calls of one name: only the one that is not kept goes.
func TestReleaseNamedKeeps(t *testing.T) {
	var q Queue
	first, second := claim("a1", "T=1"), claim("a1", "T=1")
	second.UID, second.Since = "anew", at(3)
	q.Take(first)
	q.Take(second)
	q.Take(claim("b2", "T=1"))
	if next := q.ReleaseNamed(first.Name, second.UID); len(next) != 1 || next[0].Name != "b2" {
		t.Errorf("woken: %v", next)
	}
	if q.Holds("a1") || len(q.names[first.Name]) != 1 || len(q.calls) != 2 {
		t.Errorf("%d calls, %d of the name", len(q.calls), len(q.names[first.Name]))
	}
	q.ReleaseNamed(first.Name, "")
	q.Release("b2")
	checkEmpty(t, &q, "two of one name")
}

func TestHolds(t *testing.T) {
	var q Queue
	for _, step := range []struct {
		do   string
		uid  types.UID
		want bool
	}{
		{"release a1", "a1", false},
		{"take a1 T=1", "a1", true},
		{"take a2 T=1", "a2", false},
		{"release a1", "a1", false},
		{"release a1", "a2", false}, // woken, but it has to ask
		{"take a2 T=1", "a2", true},
		{"restore b3 T", "b3", false},
		{"hold b3 T", "b3", true},
	} {
		do(&q, step.do)
		if got := q.Holds(step.uid); got != step.want {
			t.Errorf("after %s, %s holds: %t", step.do, step.uid, got)
		}
	}
}

// 200 calls at once under two limits: none is forgotten, no limit is passed.
func TestQueueConcurrently(t *testing.T) {
	const calls, most, callers, mostOfCaller = 200, 10, 5, 3
	var q Queue
	var all atomic.Int32
	var perCaller [callers]atomic.Int32
	wake := map[types.NamespacedName]chan struct{}{}
	claims := make([]Claim, calls)
	for i := range claims {
		claims[i] = claim(fmt.Sprintf("c%d", i), fmt.Sprintf("T=%d", most), fmt.Sprintf("C%d=%d", i%callers, mostOfCaller))
		wake[claims[i].Name] = make(chan struct{}, calls)
	}
	var wg sync.WaitGroup
	for i, c := range claims {
		wg.Go(func() {
			waken := func(next []types.NamespacedName) {
				for _, name := range next {
					wake[name] <- struct{}{}
				}
			}
			for {
				blocked, next := q.Take(c)
				waken(next)
				if blocked == nil {
					break
				}
				select {
				case <-wake[c.Name]:
				case <-time.After(20 * time.Second):
					t.Errorf("call %d was not woken", i)
					return
				}
			}
			if n := all.Add(1); n > most {
				t.Errorf("%d calls at once", n)
			}
			if n := perCaller[i%callers].Add(1); n > mostOfCaller {
				t.Errorf("%d calls of one caller at once", n)
			}
			time.Sleep(time.Millisecond) // the run of the call
			all.Add(-1)
			perCaller[i%callers].Add(-1)
			waken(q.Release(c.UID))
		})
	}
	wg.Wait()
	checkEmpty(t, &q, "200 at once")
}
