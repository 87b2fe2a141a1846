package schema

import (
	"encoding/json"
	"slices"
	"strings"

	"github.com/santhosh-tekuri/jsonschema/v5"

	"callgate.dev/callgate/internal/jsonvalue"
)

// saysSecret tells whether a schema declares its values to be secrets, in the words of JSON Schema or OpenAPI.
func saysSecret(schema map[string]any) bool {
	return schema["writeOnly"] == true || schema["format"] == "password"
}

// hasSecrets tells whether any schema in doc declares secrets.
func hasSecrets(doc any) bool {
	return !visitSchemas(doc, nil, func(schema map[string]any, _ []string) bool { return !saysSecret(schema) })
}

// describe says what the value at pointer is, and of a secret its type alone: messages are stored, logged and sent to
// models.
func (x *explainer) describe(pointer string, value any) string {
	if !x.schema.secrets {
		return describe(value)
	}
	secret, known := x.secret[pointer]
	if !known {
		secret = x.schema.isSecret(pointer)
		x.secret[pointer] = secret
	}
	if secret {
		switch value.(type) {
		case string:
			return "a string, not shown because it is a secret"
		case json.Number:
			return "a number, not shown because it is a secret"
		case bool:
			return "a boolean, not shown because it is a secret"
		}
	}
	return describe(value)
}

// isSecret tells whether any schema that may apply to the value at pointer, or to a value around it, declares a secret. It
// does not ask which alternatives the value fits, nor, of long names, which regular expressions: the doubt is for the secret.
func (s *Schema) isSecret(pointer string) bool {
	const maxMatched = 4096 // times maxPatternSize is about maxPatternWork
	here := []*jsonschema.Schema{s.compiled}
	for tokens := strings.Split(pointer, "/")[1:]; ; tokens = tokens[1:] {
		here = s.applied(here)
		for _, schema := range here {
			if s.declaresSecret(schema) {
				return true
			}
		}
		if len(tokens) == 0 {
			return false
		}
		name := lastToken(tokens[0])
		var below []*jsonschema.Schema
		for _, schema := range here {
			below = append(below, unnamedChildren(schema)...)
			if property := schema.Properties[name]; property != nil {
				below = append(below, property)
			}
			for pattern, property := range schema.PatternProperties {
				if len(pointer) > maxMatched || pattern.MatchString(name) {
					below = append(below, property)
				}
			}
		}
		here = below
	}
}

// applied returns schemas and all that they apply to the same value, each once.
func (s *Schema) applied(schemas []*jsonschema.Schema) []*jsonschema.Schema {
	seen := map[*jsonschema.Schema]bool{}
	var all []*jsonschema.Schema
	for queue := slices.Clone(schemas); len(queue) > 0; queue = queue[1:] {
		schema := queue[0]
		if seen[schema] {
			continue
		}
		seen[schema] = true
		all = append(all, schema)
		queue = append(queue, s.graph.inPlace(schema)...)
	}
	return all
}

func (s *Schema) declaresSecret(schema *jsonschema.Schema) bool {
	location, fragment, _ := strings.Cut(schema.Location, "#")
	if location != withoutFragment(s.compiled.Location) {
		return false // a metaschema
	}
	text, _ := jsonvalue.Lookup(s.doc, unescape(fragment))
	return saysSecret(object(text))
}
