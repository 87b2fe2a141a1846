package controllers

import (
	"slices"
	"sync"

	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// keptGenerations of an object stay compiled: the current one, and the one
// before it for the calls that run with it.
const keptGenerations = 2

// compiledCache holds what is compiled once per generation of an object. Who
// watches the objects forgets the deleted ones, so that it holds no more than
// there are.
type compiledCache[T any] struct {
	mu      sync.Mutex
	entries map[types.NamespacedName][]compiled[T]
}

type compiled[T any] struct {
	uid        types.UID
	generation int64
	value      T
}

// get returns what compile makes of an object, made once per generation.
func (c *compiledCache[T]) get(o client.Object, compile func() T) T {
	key := client.ObjectKeyFromObject(o)
	if v, ok := c.lookup(key, o.GetUID(), o.GetGeneration()); ok {
		return v
	}
	v := compile()
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.entries == nil {
		c.entries = map[types.NamespacedName][]compiled[T]{}
	}
	older := c.entries[key]
	older = older[max(0, len(older)-keptGenerations+1):]
	c.entries[key] = slices.Concat(older, []compiled[T]{{o.GetUID(), o.GetGeneration(), v}})
	return v
}

// lookup finds the entry of a generation that may no longer exist.
func (c *compiledCache[T]) lookup(key types.NamespacedName, uid types.UID, generation int64) (v T, ok bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, e := range c.entries[key] {
		if e.uid == uid && e.generation == generation {
			return e.value, true
		}
	}
	return v, false
}

// forget drops the entries of an object that is gone.
func (c *compiledCache[T]) forget(key types.NamespacedName) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.entries, key)
}
