package schema

import (
	"errors"
	"strings"
	"testing"
	"unicode"
)

func printable(s string) bool {
	return !strings.ContainsFunc(s, func(r rune) bool { return !unicode.IsPrint(r) })
}

var seeds = []string{
	orders, `true`, `{"enum":[]}`, `{"$ref":"#"}`, `{"$ref":"file:///etc/passwd"}`, `{"minimum":1e5000000}`, `{"pattern":"(?=x)"}`,
	`{"$schema":"http://json-schema.org/draft-04/schema#","id":"a","minimum":3,"exclusiveMinimum":true}`,
	`{"$schema":"https://json-schema.org/draft/2019-09/schema","$recursiveAnchor":true,"items":{"$recursiveRef":"#"}}`,
	`{"$dynamicAnchor":"n","properties":{"c":{"$dynamicRef":"#n"}},"unevaluatedProperties":false}`,
	`{"oneOf":[{"properties":{"k":{"const":1}}},{"dependentRequired":{"a":["b"]}}],"if":{"not":{}},"else":{"contains":{"uniqueItems":true}}}`,
	`{"$schema":"http://json-schema.org/draft-04/schema#","id":"?"}`, `{"$id":"CALLGATE:///schema","items":{"$ref":"#/%69tems"}}`,
	`{"$defs":{"a":{"$id":"b","$anchor":"c"}},"prefixItems":[{"$ref":"b#c"}],"patternProperties":{"^a/":false}}`,
}

// draftSeeds are schemas that mean something else in each draft.
func draftSeeds() (schemas []string) {
	for _, draft := range []string{in4, in6, in7, in2019, in2020} {
		for _, body := range []string{
			`"definitions":{"a":{"id":"http://a/b","$id":"http://a/c","type":"integer"}},"properties":{"c":{"$ref":"http://a/c","maximum":1}}`,
			`"items":[{"type":"string"}],"additionalItems":false,"dependencies":{"a":["b"],"c":{"not":{}}}`,
			`"prefixItems":[{"const":1}],"items":false,"dependentSchemas":{"a":{"required":["b"]}},"unevaluatedItems":false`,
			`"$recursiveAnchor":true,"$dynamicAnchor":"n","additionalProperties":{"anyOf":[{"$recursiveRef":"#"},{"$dynamicRef":"#n"}]}`,
			`"enum":[],"minimum":1,"exclusiveMinimum":true,"patternProperties":{"(?=a)":true},"format":"password"`,
		} {
			schemas = append(schemas, "{"+draft+","+body+"}")
		}
	}
	return schemas
}

// FuzzCompile: no panic, an error is one printable line.
func FuzzCompile(f *testing.F) {
	for _, seed := range append(draftSeeds(), seeds...) {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, raw []byte) {
		s, err := Compile(raw)
		if err != nil && !printable(err.Error()) {
			t.Errorf("not printable: %q", err)
		}
		if (err == nil) != (s != nil) {
			t.Errorf("schema %v and error %v", s, err)
		}
		if err == nil && s.Validate([]byte(`{"a":[1,"b",null]}`)) != nil && strings.TrimSpace(string(raw)) == "{}" {
			t.Error("{} refuses a value")
		}
	})
}

// FuzzValidate: no panic, the same answer twice, every error of a known type and one printable line.
func FuzzValidate(f *testing.F) {
	for _, seed := range append(draftSeeds(), seeds...) {
		f.Add([]byte(seed), []byte(`{"order_id":1e5000000,"c":{"c":[1,1.0]}}`))
		f.Add([]byte(seed), []byte(`[1,"\u001b",{"a":null}]`))
	}
	f.Fuzz(func(t *testing.T, raw, value []byte) {
		s, err := Compile(raw)
		if err != nil {
			return
		}
		first := s.Validate(value)
		if first == nil {
			return
		}
		var invalid *InvalidError
		var bound *BoundError
		switch {
		case errors.As(first, &bound):
			return // the time is one of the bounds
		case errors.As(first, &invalid):
			if n := len(invalid.Violations); n < 1 || n > maxViolations {
				t.Errorf("%d violations", n)
			}
		case !strings.Contains(first.Error(), "refers to itself"):
			t.Errorf("an unknown error: %v", first)
		}
		if !printable(first.Error()) {
			t.Errorf("not printable: %q", first)
		}
		if second := s.Validate(value); errors.As(second, &bound) {
			return // now
		} else if second == nil || second.Error() != first.Error() {
			t.Errorf("first %v, then %v", first, second)
		}
	})
}
