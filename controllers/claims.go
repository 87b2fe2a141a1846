package controllers

import (
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"
)

// claims are the warm sandboxes that a call of this process has, or is about to
// get, by namespace and name of the Job. The call's status decides who has a
// sandbox, and the sandbox's own mark that nobody else ever gets it; what is
// remembered here keeps two calls of this process from wanting the same one, and
// the pool from removing one that is wanted.
type claims struct {
	mu sync.Mutex
	of map[types.NamespacedName]claim
}

type claim struct {
	call types.NamespacedName
	uid  types.UID
	// at is when the sandbox was taken; sent, that the call's status says so.
	at   time.Time
	sent bool
}

// removal takes the place of a call for a sandbox that is being removed.
const removal types.UID = "removal"

// take claims a sandbox; false if somebody else has it. A call may take again
// what it has not got yet.
func (c *claims) take(sandbox, call types.NamespacedName, uid types.UID, now time.Time) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if have, ok := c.of[sandbox]; ok {
		return have.uid == uid && !have.sent
	}
	if c.of == nil {
		c.of = map[types.NamespacedName]claim{}
	}
	c.of[sandbox] = claim{call: call, uid: uid, at: now}
	return true
}

// get returns the claim on a sandbox, if there is one.
func (c *claims) get(sandbox types.NamespacedName) (claim, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	have, ok := c.of[sandbox]
	return have, ok
}

// sent notes that the status of a call says that it has a sandbox, whoever wrote it.
func (c *claims) sent(sandbox, call types.NamespacedName, uid types.UID, at time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.of == nil {
		c.of = map[types.NamespacedName]claim{}
	}
	if have, ok := c.of[sandbox]; !ok || !have.sent {
		c.of[sandbox] = claim{call: call, uid: uid, at: at, sent: true}
	}
}

// giveBack frees a sandbox that a call has claimed and does not want.
func (c *claims) giveBack(sandbox types.NamespacedName, uid types.UID) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if have := c.of[sandbox]; have.uid == uid && !have.sent {
		delete(c.of, sandbox)
	}
}

// forget gives back what calls of a name have claimed and not got, but for the
// one with the UID keep.
func (c *claims) forget(call types.NamespacedName, keep types.UID) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for sandbox, have := range c.of {
		if have.call == call && have.uid != keep && !have.sent {
			delete(c.of, sandbox)
		}
	}
}

// drop forgets a sandbox that is gone.
func (c *claims) drop(sandbox types.NamespacedName) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.of, sandbox)
}

// held are the sandboxes that a call has got.
func (c *claims) held(uid types.UID) []types.NamespacedName {
	c.mu.Lock()
	defer c.mu.Unlock()
	var names []types.NamespacedName
	for sandbox, have := range c.of {
		if have.uid == uid && have.sent {
			names = append(names, sandbox)
		}
	}
	return names
}
