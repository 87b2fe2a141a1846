package schema

import "regexp/syntax"

// Bounds of regular expressions. RE2 takes time by size of the expression times length of the string, and one match cannot
// be interrupted: 2^29 units are a few seconds at worst, and 256 KiB against an expression of size 2000.
const (
	maxPatternBytes = 16 << 10
	maxPatternSize  = 100_000 // of all expressions of a schema together, about 100 bytes of memory each
	maxPatternWork  = 1 << 29
)

// patternSizes returns how large the expressions of the one schema in doc are that has the largest, all its expressions
// together: no other step of a validation matches more at once. An expression that is wrong counts nothing here; the
// metaschema refuses it.
func patternSizes(doc any) (largest int, err error) {
	total := 0
	visitSchemas(doc, nil, func(schema map[string]any, _ []string) bool {
		size := 0
		for _, pattern := range patternsOf(schema) {
			if len(pattern) > maxPatternBytes {
				err = &BoundError{"a regular expression of the schema is %d bytes", len(pattern), maxPatternBytes, "bytes"}
				return false
			}
			instructions, classes := patternSize(pattern)
			size += instructions
			if total += instructions + classes; total > maxPatternSize {
				err = &BoundError{"the regular expressions of the schema, with repetitions written out, are of size %d",
					total, maxPatternSize, "in all"}
				return false
			}
		}
		largest = max(largest, size)
		return true
	})
	return largest, err
}

// patternsOf returns the regular expressions of one schema.
func patternsOf(schema map[string]any) []string {
	patterns := sortedKeys(object(schema["patternProperties"]))
	if pattern, ok := schema["pattern"].(string); ok {
		patterns = append(patterns, pattern)
	}
	return patterns
}

// patternSize is how large a regular expression is: about the number of instructions that it compiles to, and what its
// character classes (\pL is 1300 runes) take besides, in memory alone and once however often they are repeated.
func patternSize(pattern string) (instructions, classes int) {
	expression, err := syntax.Parse(pattern, syntax.Perl)
	if err != nil {
		return 0, 0
	}
	return expressionSize(expression)
}

func expressionSize(e *syntax.Regexp) (instructions, classes int) {
	instructions = 1
	for _, sub := range e.Sub {
		i, c := expressionSize(sub)
		instructions += i
		classes += c
	}
	switch e.Op {
	case syntax.OpLiteral:
		instructions = max(len(e.Rune), 1)
	case syntax.OpCharClass:
		classes = len(e.Rune) / 16
	case syntax.OpRepeat: // the parser has bounded the product of nested repetitions
		instructions *= max(e.Min, e.Max, 1)
	}
	return instructions, classes
}
