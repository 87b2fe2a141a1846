package schema

import (
	"fmt"
	"net/url"
	"slices"
	"strconv"
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

// checkReferences refuses a reference into data (enum, default …), because what stands there is no schema and was not
// looked at when the schema was measured, and one with a list index that is not written as 0, 1, 2 …, because the library
// compiles a schema, with all that is below, once for every way in which a pointer to it is written.
func checkReferences(doc any) (err error) {
	visitReferences(doc, func(tokens []string, reference string) bool {
		problem := ""
		isName := false
		for _, token := range fragmentTokens(reference) {
			if index, e := strconv.Atoi(token); e == nil && index >= 0 && strconv.Itoa(index) != token {
				problem = fmt.Sprintf("has the list index %s: write %d (a definition must be called otherwise)", jsonvalue.Quote(token), index)
				break
			}
			if plainData[token] && !isName {
				problem = fmt.Sprintf("leads into the data of %q, which is no schema: put the schema under $defs and refer to it by #/$defs/NAME", token)
				break
			}
			isName = schemaMaps[token] && !isName
		}
		if problem != "" {
			err = fmt.Errorf("%s: the reference %s %s", jsonvalue.DisplayPointer(jsonvalue.Pointer(tokens...)), jsonvalue.Quote(reference), problem)
		}
		return err == nil
	})
	return err
}

// fragmentTokens returns the tokens of a reference whose fragment is a JSON pointer, decoded in the order of the library.
func fragmentTokens(reference string) []string {
	_, fragment, _ := strings.Cut(reference, "#")
	if !strings.HasPrefix(fragment, "/") {
		return nil
	}
	tokens := strings.Split(fragment[1:], "/")
	for i, token := range tokens {
		tokens[i] = unescape(strings.ReplaceAll(strings.ReplaceAll(token, "~1", "/"), "~0", "~"))
	}
	return tokens
}

// plainReference writes a reference whose fragment is a JSON pointer in the one way in which the library knows the place of
// a schema. For every other way (%61 for a) it compiles that schema once more, with all that is below.
func plainReference(reference string) string {
	tokens := fragmentTokens(reference)
	if _, err := url.Parse(reference); err != nil || tokens == nil {
		return reference
	}
	before, _, _ := strings.Cut(reference, "#")
	return before + "#" + placeOf(tokens)
}

// placeOf writes a JSON pointer as the library does in the fragment of a URL.
func placeOf(tokens []string) string {
	var text strings.Builder
	for _, token := range tokens {
		text.WriteString("/" + url.PathEscape(strings.TrimPrefix(jsonvalue.Pointer(token), "/")))
	}
	return text.String()
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
				fragments = append(fragments, "#"+placeOf([]string{keyword, name}))
			}
		}
	}
	return fragments
}

// dynamicAnchors returns the schemas that have a $dynamicAnchor as URL fragments.
func dynamicAnchors(doc any) (fragments []string) {
	visitSchemas(doc, nil, func(schema map[string]any, tokens []string) bool {
		if _, ok := schema["$dynamicAnchor"].(string); ok {
			fragments = append(fragments, "#"+placeOf(tokens))
		}
		return true
	})
	return fragments
}

// findReference returns the pointer and text of the first reference whose absolute URL is target (with or without the
// fragment).
func findReference(doc any, target string) (pointerTokens []string, reference string, found bool) {
	visitIdentities(doc, []string{"$id", "id"}, func(schema map[string]any, tokens []string, base string) bool {
		for _, keyword := range references {
			ref, ok := schema[keyword].(string)
			if !ok {
				continue
			}
			absolute := resolve(base, plainReference(ref))
			if absolute == target || withoutFragment(absolute) == target || ref == target {
				pointerTokens, reference, found = append(slices.Clone(tokens), keyword), ref, true
				return false
			}
		}
		return true
	})
	return pointerTokens, reference, found
}
