package controllers

import (
	"fmt"
	"sync"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/types"
)

func TestClaims(t *testing.T) {
	now := time.Date(2026, 11, 30, 12, 0, 0, 0, time.UTC)
	sandbox, call, other := types.NamespacedName{Name: "callgate-w-1"}, types.NamespacedName{Name: "call"}, types.NamespacedName{Name: "other"}
	var c claims
	step := func(reason string, got, want bool) {
		t.Helper()
		if got != want {
			t.Errorf("%s: %t, want %t", reason, got, want)
		}
	}
	step("nobody has it", c.take(sandbox, call, "1", now), true)
	step("the same call looks again, after a conflict", c.take(sandbox, call, "1", now), true)
	step("another call", c.take(sandbox, other, "2", now), false)
	step("the pool wants to remove it", c.take(sandbox, types.NamespacedName{}, removal, now), false)
	c.giveBack(sandbox, "2")
	c.forget(call, "1")
	step("a look at the same call gives nothing back", c.take(sandbox, other, "2", now), false)
	c.forget(call, "")
	step("the call is gone and never got it", c.take(sandbox, other, "2", now), true)
	c.sent(sandbox, other, "2", now)
	c.forget(other, "")
	step("who got it keeps it, also when it is gone", c.take(sandbox, call, "1", now), false)
	step("nor does its own call get it twice", c.take(sandbox, other, "2", now), false)
	c.sent(sandbox, call, "1", now)
	if have, _ := c.get(sandbox); have.uid != "2" {
		t.Errorf("the first one to have got it is %s", have.uid)
	}
	if held := c.held("2"); len(held) != 1 || held[0] != sandbox {
		t.Errorf("the call holds %v", held)
	}
	c.drop(sandbox)
	step("another sandbox of the name", c.take(sandbox, types.NamespacedName{}, removal, now), true)
	step("which is being removed", c.take(sandbox, call, "1", now), false)
}

// However many want a sandbox, one gets it.
func TestClaimsAtOnce(t *testing.T) {
	var c claims
	var wg sync.WaitGroup
	var mu sync.Mutex
	got := map[string]int{}
	for i := range 20 {
		wg.Go(func() {
			for n := range 2 {
				name := fmt.Sprint("callgate-w-", n)
				if c.take(types.NamespacedName{Name: name}, types.NamespacedName{Name: fmt.Sprint(i)}, types.UID(fmt.Sprint(i)), time.Now()) {
					mu.Lock()
					got[name]++
					mu.Unlock()
					return
				}
			}
		})
	}
	wg.Wait()
	if len(got) != 2 || got["callgate-w-0"] != 1 || got["callgate-w-1"] != 1 {
		t.Errorf("taken: %v", got)
	}
}
