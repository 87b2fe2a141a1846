package schema

import (
	"encoding/json"
	"slices"
	"time"

	"github.com/santhosh-tekuri/jsonschema/v5"
)

// budget bounds the work of one validation; the library knows no bound of its own. A step costs about a microsecond where
// the value fits, but a violation costs up to a hundred times more (the library joins paths and keeps every error), and
// steps cannot tell: that is why the time is bounded, too. Values that fit never come near it.
type budget struct {
	left     int
	deadline time.Time
	checked  int // steps left when the clock was last read
}

func newBudget() budget {
	return budget{left: maxSteps, deadline: time.Now().Add(maxTime), checked: maxSteps}
}

// spend panics with a *BoundError when the budget is spent: the library has no other way to stop.
func (b *budget) spend(steps int) {
	b.left -= steps
	if b.left < 0 {
		panic(&BoundError{"the validation is not done after %d steps", maxSteps, maxSteps, "steps"})
	}
	if b.checked-b.left > 256 {
		b.checked = b.left
		if time.Now().After(b.deadline) {
			panic(&BoundError{"the validation is not done after %d seconds", int(maxTime.Seconds()), int(maxTime.Seconds()), "seconds"})
		}
	}
}

// extension is a keyword that every schema has, unseen: it charges the budget, and it makes `enum: []` accept nothing
// (the library lets everything pass there).
type extension struct{ budget *budget }

// Compile prepares the check of one schema: the costs that depend on the schema alone.
func (e extension) Compile(_ jsonschema.CompilerContext, schema map[string]any) (jsonschema.ExtSchema, error) {
	check := &check{budget: e.budget, cost: 1}
	if enum, ok := schema["enum"].([]any); ok {
		check.emptyEnum = len(enum) == 0
		check.cost += size(enum)
	}
	if value, ok := schema["const"]; ok {
		check.cost += size(value)
	}
	for _, keyword := range []string{"properties", "required", "dependencies", "dependentRequired", "dependentSchemas",
		"allOf", "anyOf", "oneOf", "prefixItems"} {
		check.cost += members(schema[keyword])
	}
	for _, pattern := range patternsOf(schema) {
		instructions, _ := patternSize(pattern)
		check.patterns += 1 + instructions/16
	}
	return check, nil
}

type check struct {
	budget    *budget
	cost      int // of any value
	patterns  int // of every 64 bytes of a string and every member of an object
	emptyEnum bool
}

// Validate charges what the other keywords of this schema have cost, including the subschemas that failed at once by their
// `type` and were not charged themselves.
func (c *check) Validate(ctx jsonschema.ValidationContext, value any) error {
	length := 0
	switch v := value.(type) {
	case map[string]any:
		for key := range v {
			length += 1 + len(key)/64
		}
	case []any:
		length = len(v)
	case string:
		length = len(v) / 64
	}
	c.budget.spend(c.cost + length*(1+c.patterns))
	if c.emptyEnum {
		return ctx.Error("enum", "no value is allowed")
	}
	return nil
}

func members(value any) int {
	switch v := value.(type) {
	case map[string]any:
		return len(v)
	case []any:
		return len(v)
	}
	return 0
}

// size is about what comparing with a value, and printing it in an error, costs.
func size(value any) int {
	n := 1
	switch v := value.(type) {
	case map[string]any:
		for key, member := range v {
			n += len(key)/16 + size(member)
		}
	case []any:
		for _, item := range v {
			n += size(item)
		}
	case string:
		n += len(v) / 16
	case json.Number:
		n += len(v) / 16
	}
	return n
}

// shape is what the in-place keywords ($ref, allOf, anyOf …) of a schema do to one value.
type shape struct {
	depth       int // schemas applied inside one another, at most
	evaluations int // schemas applied in all, a schema that is reached in two ways twice; saturates
}

// shapeOf returns the worst shape of root and every schema below it. Loops were refused when compiling, or ($dynamicRef,
// $recursiveRef) are found when validating.
func shapeOf(root *jsonschema.Schema) shape {
	const saturated = 1 << 30
	shapes := map[*jsonschema.Schema]shape{}
	var measure func(s *jsonschema.Schema) shape
	measure = func(s *jsonschema.Schema) shape {
		if known, ok := shapes[s]; ok {
			return known
		}
		shapes[s] = shape{} // a loop ends here
		own := shape{depth: 1, evaluations: 1}
		for _, next := range inPlace(s) {
			below := measure(next)
			own.depth = max(own.depth, below.depth+1)
			own.evaluations = min(own.evaluations+below.evaluations, saturated)
		}
		shapes[s] = own
		return own
	}
	worst := shape{}
	seen := map[*jsonschema.Schema]bool{}
	queue := []*jsonschema.Schema{root}
	for len(queue) > 0 {
		s := queue[0]
		queue = queue[1:]
		if seen[s] {
			continue
		}
		seen[s] = true
		own := measure(s)
		worst = shape{max(worst.depth, own.depth), max(worst.evaluations, own.evaluations)}
		queue = append(append(queue, inPlace(s)...), children(s)...)
	}
	return worst
}

// inPlace returns the schemas that s applies to the same value.
func inPlace(s *jsonschema.Schema) []*jsonschema.Schema {
	next := []*jsonschema.Schema{s.Ref, s.RecursiveRef, s.DynamicRef, s.Not, s.If, s.Then, s.Else}
	next = append(append(append(next, s.AllOf...), s.AnyOf...), s.OneOf...)
	for _, dependency := range s.Dependencies {
		if schema, ok := dependency.(*jsonschema.Schema); ok {
			next = append(next, schema)
		}
	}
	for _, schema := range s.DependentSchemas {
		next = append(next, schema)
	}
	return slices.DeleteFunc(next, isNil)
}

func isNil(s *jsonschema.Schema) bool { return s == nil }

// children returns the schemas that s applies to members and items of the value.
func children(s *jsonschema.Schema) []*jsonschema.Schema {
	next := unnamedChildren(s)
	for _, schema := range s.Properties {
		next = append(next, schema)
	}
	for _, schema := range s.PatternProperties {
		next = append(next, schema)
	}
	return next
}

// unnamedChildren returns the children that do not depend on the name of a member.
func unnamedChildren(s *jsonschema.Schema) []*jsonschema.Schema {
	next := []*jsonschema.Schema{s.PropertyNames, s.UnevaluatedProperties, s.Items2020, s.Contains, s.UnevaluatedItems, s.ContentSchema}
	next = append(next, s.PrefixItems...)
	for _, value := range []any{s.AdditionalProperties, s.Items, s.AdditionalItems} {
		switch v := value.(type) {
		case *jsonschema.Schema:
			next = append(next, v)
		case []*jsonschema.Schema:
			next = append(next, v...)
		}
	}
	return slices.DeleteFunc(next, isNil)
}
