package schema

import (
	"encoding/json"
	"time"

	"github.com/santhosh-tekuri/jsonschema/v5"
)

// budget bounds the work of one validation; the library knows no bound of its own. A step costs about a microsecond where
// the value fits, but a violation costs up to a hundred times more (the library joins paths and keeps every error), and
// steps cannot tell: that is why the time is bounded, too. Values that fit never come near it.
type budget struct {
	left     int
	toll     int // what each step costs besides, see longPlace
	interval int // steps from one look at the clock to the next, at least
	deadline time.Duration
	checked  int // steps left when the clock was last read
}

// newBudget starts the time of a validation in this thread.
func newBudget(toll int) budget {
	return budget{left: maxSteps, toll: toll, interval: 256, deadline: threadTime() + maxTime, checked: maxSteps}
}

// spend panics with a *BoundError when the budget is spent: the library has no other way to stop.
func (b *budget) spend(steps int) {
	b.left -= steps * (1 + b.toll)
	if b.left < 0 {
		panic(&BoundError{"the validation is not done after %d steps", maxSteps, maxSteps, "steps"})
	}
	if b.checked-b.left > b.interval {
		b.checked = b.left
		if threadTime() > b.deadline {
			panic(&BoundError{"the validation is not done after %d seconds", int(maxTime.Seconds()), int(maxTime.Seconds()), "seconds"})
		}
	}
}

var started = time.Now()

// wallTime is the time since the program began.
func wallTime() time.Duration { return time.Since(started) }

// extension is a keyword that every schema has, unseen: it charges the budget, makes `enum: []` accept nothing (the library
// lets everything pass there), and does the work of uniqueItems (see duplicate).
type extension struct {
	budget   *budget
	compiled *int // schemas so far
}

// Compile prepares the check of one schema: the costs that depend on the schema alone. It is called for every schema that
// the library compiles, and ends that when it compiles the same ones again and again: it does so for references into
// unknown keywords, deepest first.
func (e extension) Compile(_ jsonschema.CompilerContext, schema map[string]any) (jsonschema.ExtSchema, error) {
	if *e.compiled++; *e.compiled > maxCompiled {
		return nil, &BoundError{"the schema compiles into more than %d schemas: put what is referred to under $defs",
			maxCompiled, maxCompiled, "schemas"}
	}
	check := &check{budget: e.budget, cost: 1}
	if enum, ok := schema["enum"].([]any); ok {
		check.emptyEnum = len(enum) == 0
		check.cost += size(enum)
	}
	if value, ok := schema["const"]; ok {
		check.cost += size(value)
	}
	check.unique = schema["uniqueItems"] == true
	for _, keyword := range []string{"properties", "dependencies", "dependentRequired", "dependentSchemas",
		"allOf", "anyOf", "oneOf", "prefixItems"} {
		check.cost += members(schema[keyword])
	}
	quoted := []any{schema["required"], schema["pattern"], schema["format"]} // in errors
	for _, keyword := range []string{"dependencies", "dependentRequired"} {
		for _, value := range object(schema[keyword]) {
			if names, ok := value.([]any); ok {
				quoted = append(quoted, names)
			}
		}
	}
	for _, value := range quoted {
		check.cost += size(value) - 1
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
	unique    bool
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
	if items, ok := value.([]any); ok && c.unique {
		c.budget.spend(size(items))
		if i, j, found := duplicate(items); found {
			return ctx.Error("uniqueItems", "items at index %d and %d are equal", i, j)
		}
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
