package controllers

import (
	"sync"

	"k8s.io/apimachinery/pkg/types"
)

// maxCompiled bounds a cache; one entry is one generation of one object.
const maxCompiled = 4096

// compiledCache holds what is compiled once per generation of an object. The
// entry of an older generation stays a while, for the calls that run with it.
type compiledCache[T any] struct {
	mu      sync.Mutex
	entries map[generation]T
}

type generation struct {
	uid    types.UID
	number int64
}

func (c *compiledCache[T]) get(key generation, compile func() T) T {
	if v, ok := c.lookup(key); ok {
		return v
	}
	v := compile()
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.entries == nil {
		c.entries = map[generation]T{}
	}
	for old := range c.entries {
		if len(c.entries) < maxCompiled {
			break
		}
		delete(c.entries, old)
	}
	c.entries[key] = v
	return v
}

// lookup finds the entry of a generation that may no longer exist.
func (c *compiledCache[T]) lookup(key generation) (T, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	v, ok := c.entries[key]
	return v, ok
}
