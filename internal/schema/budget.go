package schema

import (
	"encoding/json"

	"github.com/santhosh-tekuri/jsonschema/v5"
)

// budget counts the work of one validation. The library knows no bound of its own, and two $ref to the next level, twenty
// levels deep, are a million validations of one value. A step is about a microsecond.
type budget struct{ left int }

// extension is a keyword that every schema has, unseen: it charges the budget, and it makes `enum: []` accept nothing
// (the library lets everything pass there).
type extension struct{ budget *budget }

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
	check.patterns = members(schema["patternProperties"])
	if pattern, ok := schema["pattern"].(string); ok {
		check.patterns += 1 + len(pattern)/16
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
	c.budget.left -= c.cost + length*(1+c.patterns)
	if c.budget.left < 0 {
		panic(&BoundError{"the validation needs more than %d steps", maxSteps, maxSteps, "steps"})
	}
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

// inPlaceDepth returns how many schemas are applied inside one another to one and the same value, at most; the library
// recurses and joins paths that deep. Loops were refused when compiling, or ($dynamicRef, $recursiveRef) are found when
// validating.
func inPlaceDepth(root *jsonschema.Schema) int {
	depths := map[*jsonschema.Schema]int{}
	deepest := 0
	var measure func(s *jsonschema.Schema) int
	measure = func(s *jsonschema.Schema) int {
		if s == nil {
			return 0
		}
		if depth, known := depths[s]; known {
			return depth
		}
		depths[s] = 0 // a loop ends here
		below := 0
		for _, next := range inPlace(s) {
			below = max(below, measure(next))
		}
		depths[s] = below + 1
		deepest = max(deepest, below+1)
		return below + 1
	}
	seen := map[*jsonschema.Schema]bool{}
	queue := []*jsonschema.Schema{root}
	for len(queue) > 0 {
		s := queue[0]
		queue = queue[1:]
		if s == nil || seen[s] {
			continue
		}
		seen[s] = true
		measure(s)
		queue = append(append(queue, inPlace(s)...), children(s)...)
	}
	return deepest
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
	return next
}

// children returns the schemas that s applies to members and items of the value.
func children(s *jsonschema.Schema) []*jsonschema.Schema {
	next := []*jsonschema.Schema{s.PropertyNames, s.UnevaluatedProperties, s.Items2020, s.Contains, s.UnevaluatedItems, s.ContentSchema}
	next = append(next, s.PrefixItems...)
	for _, schema := range s.Properties {
		next = append(next, schema)
	}
	for _, schema := range s.PatternProperties {
		next = append(next, schema)
	}
	for _, value := range []any{s.AdditionalProperties, s.Items, s.AdditionalItems} {
		switch v := value.(type) {
		case *jsonschema.Schema:
			next = append(next, v)
		case []*jsonschema.Schema:
			next = append(next, v...)
		}
	}
	return next
}
