package schema

import (
	"fmt"
	"net/url"
	"slices"
	"strings"

	"callgate.dev/callgate/internal/jsonvalue"
)

// checkIdentities refuses an $id whose absolute URL is not written in its normal form. The library keeps the URL as it is
// written, but normalizes it whenever it resolves a reference against it, and then looks for another schema. Of the root
// that may be the root again, without end (`$id: "?"` overflows the stack, which ends the process), or one of the
// library's own metaschemas, which then takes the place of the schema.
func checkIdentities(doc any) (err error) {
	keyword := "$id"
	if dialect, _ := object(doc)["$schema"].(string); strings.Contains(dialect, "/draft-04/") {
		keyword = "id"
	}
	visitIdentities(doc, []string{keyword}, func(schema map[string]any, tokens []string, location string) bool {
		id, ok := schema[keyword].(string)
		if ok && normal(location) != location {
			err = fmt.Errorf("%s: %s is not in the normal form of a URL, so that nothing in this schema can be referred to: "+
				"leave it out, or write the scheme in lower case, no \"/./\" and \"/../\", no \"?\" without a query, and %%XX for what is not ASCII",
				jsonvalue.DisplayPointer(jsonvalue.Pointer(append(slices.Clone(tokens), keyword)...)), jsonvalue.Quote(id))
		}
		return err == nil
	})
	return err
}

// visitIdentities calls visit for every schema of doc with the absolute URL, without fragment, that references in it are
// resolved against, until visit returns false. keywords are those that hold identities.
func visitIdentities(doc any, keywords []string, visit func(schema map[string]any, tokens []string, location string) bool) {
	bases := map[string]string{}
	visitSchemas(doc, nil, func(schema map[string]any, tokens []string) bool {
		here := baseURL
		for n := len(tokens); n > 0; n-- { // the nearest schema around this one
			if base, ok := bases[strings.Join(tokens[:n-1], "\x00")]; ok {
				here = base
				break
			}
		}
		for _, keyword := range keywords {
			if id, ok := schema[keyword].(string); ok {
				if id = withoutFragment(id); id != "" {
					here = withoutFragment(resolve(here, id))
				}
			}
		}
		bases[strings.Join(tokens, "\x00")] = here
		return visit(schema, tokens, here)
	})
}

// resolve makes a reference absolute as the library does, which appends to a urn: what url.URL would put in its place. What is
// no reference it returns as it is, for the library to refuse.
func resolve(base, reference string) string {
	u, err := url.Parse(reference)
	if err != nil || u.IsAbs() || strings.HasPrefix(reference, "urn:") {
		return reference
	}
	if strings.HasPrefix(base, "urn:") {
		return withoutFragment(base) + reference
	}
	b, err := url.Parse(base)
	if err != nil {
		return reference
	}
	return b.ResolveReference(u).String()
}

// normal returns what the library makes of the URL of a schema when it resolves a reference to a part of that schema.
func normal(location string) string { return withoutFragment(resolve(location, "#")) }

func withoutFragment(u string) string {
	before, _, _ := strings.Cut(u, "#")
	return before
}
