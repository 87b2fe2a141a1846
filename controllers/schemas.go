package controllers

import (
	"fmt"
	"time"

	"callgate.dev/callgate/api/v1alpha1"
	"callgate.dev/callgate/internal/schema"
)

// schemaCache compiles the schemas of a Tool once per generation.
type schemaCache struct{ compiledCache[schemas] }

// schemas are a Tool's compiled schemas; output is nil if it declares none. seen
// is when this generation of the Tool was first seen by this process.
type schemas struct {
	input, output *schema.Schema
	err           error // names the field
	seen          time.Time
}

func (c *schemaCache) of(t *v1alpha1.Tool) schemas {
	return c.get(t, func() schemas {
		s := compile(t)
		s.seen = time.Now()
		return s
	})
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
