package controllers

import (
	"fmt"
	"sync"

	"k8s.io/apimachinery/pkg/types"

	"callgate.dev/callgate/api/v1alpha1"
	"callgate.dev/callgate/internal/schema"
)

// maxSchemas bounds the cache; one entry is one generation of one Tool.
const maxSchemas = 4096

// schemaCache compiles the schemas of a Tool once per generation. The entry of
// an older generation stays a while, for the calls that run with it.
type schemaCache struct {
	mu      sync.Mutex
	entries map[schemaKey]schemas
}

type schemaKey struct {
	uid        types.UID
	generation int64
}

// schemas are a Tool's compiled schemas; output is nil if it declares none.
type schemas struct {
	input, output *schema.Schema
	err           error // names the field
}

func (c *schemaCache) get(t *v1alpha1.Tool) schemas {
	key := schemaKey{t.UID, t.Generation}
	if s, ok := c.lookup(key); ok {
		return s
	}
	s := compile(t)
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.entries == nil {
		c.entries = map[schemaKey]schemas{}
	}
	for old := range c.entries {
		if len(c.entries) < maxSchemas {
			break
		}
		delete(c.entries, old)
	}
	c.entries[key] = s
	return s
}

// lookup finds the schemas of a generation that may no longer exist.
func (c *schemaCache) lookup(key schemaKey) (schemas, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	s, ok := c.entries[key]
	return s, ok
}

func compile(t *v1alpha1.Tool) (s schemas) {
	if s.input, s.err = schema.Compile(t.Spec.InputSchema.Raw); s.err != nil {
		s.err = fmt.Errorf("spec.inputSchema: %w", s.err)
		return s
	}
	if out := t.Spec.OutputSchema; out != nil {
		if s.output, s.err = schema.Compile(out.Raw); s.err != nil {
			s.err = fmt.Errorf("spec.outputSchema: %w", s.err)
		}
	}
	return s
}
