package schema

import (
	"fmt"
	"net/url"
	"slices"
	"strings"

	"callgate.dev/callgate/internal/jsonvalue"
)

// references are the keywords that hold a reference.
var references = []string{"$ref", "$dynamicRef", "$recursiveRef"}

// dialects are the values of $schema that are known, without http(s):// and an empty fragment.
var dialects = set("json-schema.org/schema", "json-schema.org/draft/2020-12/schema", "json-schema.org/draft/2019-09/schema",
	"json-schema.org/draft-07/schema", "json-schema.org/draft-06/schema", "json-schema.org/draft-04/schema")

// checkDialect refuses every dialect but the drafts. The library would also take the parts of a metaschema for one, and
// then ignores the keywords of the other parts.
func checkDialect(doc any) error {
	root, ok := doc.(map[string]any)
	if !ok {
		return nil
	}
	value, ok := root["$schema"]
	if !ok {
		return nil
	}
	name, _ := value.(string)
	bare := strings.TrimSuffix(strings.TrimPrefix(strings.TrimPrefix(name, "http://"), "https://"), "#")
	if !dialects[bare] || bare == name {
		return fmt.Errorf("/$schema: the dialect %s is not known: use https://json-schema.org/draft/2020-12/schema, or that of draft 4, 6, 7 or 2019-09",
			show(value))
	}
	return nil
}

// checkReferences refuses a reference into data (enum, default …): what stands there is no schema, and was not looked at
// when the schema was measured.
func checkReferences(doc any) (err error) {
	visitReferences(doc, func(tokens []string, reference string) bool {
		_, fragment, _ := strings.Cut(reference, "#")
		inside := strings.Split(unescape(fragment), "/")
		for i := 1; i < len(inside) && err == nil; i++ {
			switch {
			case plainData[inside[i]]:
				err = fmt.Errorf("%s: the reference %s leads into the data of %q, which is no schema: put the schema under $defs and refer to it by #/$defs/NAME",
					jsonvalue.DisplayPointer(jsonvalue.Pointer(tokens...)), jsonvalue.Quote(reference), inside[i])
			case schemaMaps[inside[i]]:
				i++ // a name
			}
		}
		return err == nil
	})
	return err
}

// visitReferences calls visit for every reference of doc, with the JSON pointer of its keyword, until visit returns false.
func visitReferences(doc any, visit func(tokens []string, reference string) bool) {
	visitSchemas(doc, nil, func(schema map[string]any, tokens []string) bool {
		for _, keyword := range references {
			if reference, ok := schema[keyword].(string); ok && !visit(append(slices.Clone(tokens), keyword), reference) {
				return false
			}
		}
		return true
	})
}

// definitions returns the definitions of the root schema as URL fragments.
func definitions(doc any) []string {
	root, ok := doc.(map[string]any)
	if !ok {
		return nil
	}
	var fragments []string
	for _, keyword := range []string{"$defs", "definitions"} {
		members, _ := root[keyword].(map[string]any)
		for _, name := range sortedKeys(members) {
			if _, isObject := members[name].(map[string]any); isObject {
				token := strings.TrimPrefix(jsonvalue.Pointer(name), "/")
				fragments = append(fragments, "#/"+keyword+"/"+url.PathEscape(token))
			}
		}
	}
	return fragments
}

// findReference returns the pointer and text of the first reference whose absolute URL is target (with or without the
// fragment).
func findReference(doc any, target string) (pointerTokens []string, reference string, found bool) {
	visitIdentities(doc, []string{"$id", "id"}, func(schema map[string]any, tokens []string, location string) bool {
		for _, keyword := range references {
			ref, ok := schema[keyword].(string)
			if !ok {
				continue
			}
			absolute := resolve(location, ref)
			if absolute == target || withoutFragment(absolute) == target || ref == target {
				pointerTokens, reference, found = append(slices.Clone(tokens), keyword), ref, true
				return false
			}
		}
		return true
	})
	return pointerTokens, reference, found
}
