package schema

import (
	"slices"
	"strings"

	"github.com/santhosh-tekuri/jsonschema/v5"
)

// graph is a compiled schema with all it may apply. What a $dynamicRef or $recursiveRef leads to depends on the schemas
// around it; here it leads to every schema with that anchor.
type graph struct {
	all       []*jsonschema.Schema            // each once
	anchors   map[string][]*jsonschema.Schema // by $dynamicAnchor
	recursive []*jsonschema.Schema            // with $recursiveAnchor
}

// newGraph returns the graph of everything below roots: the schema itself, and all that has a $dynamicAnchor.
func newGraph(roots []*jsonschema.Schema) graph {
	g := graph{anchors: map[string][]*jsonschema.Schema{}}
	seen := map[*jsonschema.Schema]bool{}
	for queue := slices.Clone(roots); len(queue) > 0; {
		s := queue[0]
		queue = queue[1:]
		if seen[s] {
			continue
		}
		seen[s] = true
		g.all = append(g.all, s)
		if s.DynamicAnchor != "" {
			g.anchors[s.DynamicAnchor] = append(g.anchors[s.DynamicAnchor], s)
		}
		if s.RecursiveAnchor {
			g.recursive = append(g.recursive, s)
		}
		queue = append(append(queue, fixed(s)...), children(s)...)
		queue = append(queue, slices.DeleteFunc([]*jsonschema.Schema{s.RecursiveRef, s.DynamicRef}, isNil)...)
	}
	return g
}

// shape is what the in-place keywords ($ref, allOf, anyOf …) of a schema do to one value.
type shape struct {
	depth       int // schemas applied inside one another, at most
	evaluations int // schemas applied in all, a schema that is reached in two ways twice; saturates
}

// shape returns the worst shape of all schemas. Where schemas may lead to one another in a loop, each counts once: a
// validation ends when it comes to a schema again with the same value. It is the depth that must be right, because the
// budget is charged on the way back: too many schemas inside one another overflow the stack before.
func (g graph) shape() (worst shape) {
	const saturated = 1 << 30
	done := map[*jsonschema.Schema]shape{}
	index, low := map[*jsonschema.Schema]int{}, map[*jsonschema.Schema]int{}
	var open []*jsonschema.Schema
	var visit func(s *jsonschema.Schema) // Tarjan's strongly connected components
	visit = func(s *jsonschema.Schema) {
		index[s] = len(index) + 1
		low[s] = index[s]
		open = append(open, s)
		for _, next := range g.inPlace(s) {
			if index[next] == 0 {
				visit(next)
				low[s] = min(low[s], low[next])
			} else if _, isDone := done[next]; !isDone {
				low[s] = min(low[s], index[next])
			}
		}
		if low[s] < index[s] {
			return
		}
		at := slices.Index(open, s)
		loop := slices.Clone(open[at:]) // s alone, usually
		open = open[:at]
		own := shape{evaluations: len(loop)}
		for _, member := range loop {
			for _, next := range fixed(member) {
				own.depth = max(own.depth, done[next].depth)
				own.evaluations += done[next].evaluations
			}
			for _, targets := range g.dynamic(member) {
				most := 0
				for _, next := range targets {
					own.depth = max(own.depth, done[next].depth)
					most = max(most, done[next].evaluations)
				}
				own.evaluations += most
			}
			own.evaluations = min(own.evaluations, saturated)
		}
		own.depth += len(loop)
		for _, member := range loop {
			done[member] = own
		}
		worst = shape{max(worst.depth, own.depth), max(worst.evaluations, own.evaluations)}
	}
	for _, s := range g.all {
		if index[s] == 0 {
			visit(s)
		}
	}
	return worst
}

// inPlace returns the schemas that s may apply to the same value.
func (g graph) inPlace(s *jsonschema.Schema) []*jsonschema.Schema {
	return slices.Concat(append(g.dynamic(s), fixed(s))...)
}

// dynamic returns, for each reference of s whose target depends on the schemas around it, where it may lead.
func (g graph) dynamic(s *jsonschema.Schema) (targets [][]*jsonschema.Schema) {
	if ref := s.RecursiveRef; ref != nil {
		if ref.RecursiveAnchor {
			targets = append(targets, g.recursive)
		} else {
			targets = append(targets, []*jsonschema.Schema{ref})
		}
	}
	if ref := s.DynamicRef; ref != nil {
		if ref.DynamicAnchor != "" {
			targets = append(targets, g.anchors[ref.DynamicAnchor])
		} else {
			targets = append(targets, []*jsonschema.Schema{ref})
		}
	}
	return targets
}

// fixed returns the schemas that s applies to the same value, without those of dynamic.
func fixed(s *jsonschema.Schema) []*jsonschema.Schema {
	next := slices.Concat([]*jsonschema.Schema{s.Ref, s.Not, s.If, s.Then, s.Else}, s.AllOf, s.AnyOf, s.OneOf)
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

// usesMetaschema tells whether one of the schemas is a metaschema of a draft.
func (g graph) usesMetaschema() bool {
	return slices.ContainsFunc(g.all, func(s *jsonschema.Schema) bool { return strings.Contains(s.Location, "://json-schema.org/") })
}

// longPlace returns how many bytes the longest place of a schema has more than usual ones: because of a long name, or a long
// expression of patternProperties. An error may hold that once for every schema on the path to it.
func (g graph) longPlace() int {
	const usual = 1024
	longest := usual
	for _, s := range g.all {
		longest = max(longest, len(s.Location))
	}
	return longest - usual
}
