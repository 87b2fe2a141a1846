package schema

import (
	"encoding/json"
	"slices"
	"strconv"
)

// Keywords by what stands below them. Where a place may or may not hold a schema (unknown keywords that a $ref can point
// into), it is taken for one.
var (
	schemaMaps = set("properties", "patternProperties", "$defs", "definitions", "dependentSchemas", "dependencies")
	single     = set("not", "if", "then", "else", "items", "additionalItems", "unevaluatedItems", "contains", "propertyNames",
		"additionalProperties", "unevaluatedProperties", "contentSchema") // hold one schema
	plainData = set("enum", "const", "default", "examples", "example", "required", "dependentRequired")
	counts    = set("minLength", "maxLength", "minItems", "maxItems", "minProperties", "maxProperties", "minContains", "maxContains")
)

func set(names ...string) map[string]bool {
	m := make(map[string]bool, len(names))
	for _, name := range names {
		m[name] = true
	}
	return m
}

// visitSchemas calls visit for doc and every schema below it, parents first, in a fixed order. tokens is the JSON pointer
// of the schema, valid during the call. It stops when visit returns false.
func visitSchemas(doc any, tokens []string, visit func(schema map[string]any, tokens []string) bool) bool {
	switch v := doc.(type) {
	case []any:
		for i, item := range v {
			if !visitSchemas(item, append(tokens, strconv.Itoa(i)), visit) {
				return false
			}
		}
	case map[string]any:
		if !visit(v, tokens) {
			return false
		}
		for _, keyword := range sortedKeys(v) {
			below := append(slices.Clip(tokens), keyword)
			switch members, isMap := v[keyword].(map[string]any); {
			case plainData[keyword]:
			case isMap && schemaMaps[keyword]:
				for _, name := range sortedKeys(members) {
					if !visitSchemas(members[name], append(slices.Clip(below), name), visit) {
						return false
					}
				}
			default:
				if !visitSchemas(v[keyword], below, visit) {
					return false
				}
			}
		}
	}
	return true
}

func sortedKeys(m map[string]any) []string {
	keys := make([]string, 0, len(m))
	for key := range m {
		keys = append(keys, key)
	}
	slices.Sort(keys)
	return keys
}

// countSubschemas returns how many schemas doc holds. true and false count half: the library keeps a place for each, but
// has less to do.
func countSubschemas(doc any) int {
	objects, booleans := 0, 0
	countBoolean := func(value any) {
		if _, ok := value.(bool); ok {
			booleans++
		}
	}
	visitSchemas(doc, nil, func(schema map[string]any, _ []string) bool {
		objects++
		for keyword, value := range schema {
			members, isMap := value.(map[string]any)
			items, isList := value.([]any)
			switch {
			case plainData[keyword]:
			case single[keyword]:
				countBoolean(value)
			case isMap && schemaMaps[keyword]:
				for _, member := range members {
					countBoolean(member)
				}
			case isList:
				for _, item := range items {
					countBoolean(item)
				}
			}
		}
		return true
	})
	return objects + booleans/2
}

// forLibrary changes a schema into one that means the same and that the library gets right: counts such as maxLength are
// at most 2^53 (no value is that long, and the library turns a larger one, often the int64 maximum, by generators, into a
// negative number, which makes a maximum refuse and a minimum accept everything), and see plainReference.
func forLibrary(doc any) {
	visitSchemas(doc, nil, func(schema map[string]any, _ []string) bool {
		for keyword := range counts {
			if number, ok := schema[keyword].(json.Number); ok {
				if f, err := number.Float64(); err == nil && f > 1<<53 {
					schema[keyword] = json.Number(strconv.Itoa(1 << 53))
				}
			}
		}
		for _, keyword := range references {
			if reference, ok := schema[keyword].(string); ok {
				schema[keyword] = plainReference(reference)
			}
		}
		return true
	})
}
