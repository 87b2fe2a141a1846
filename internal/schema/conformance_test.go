package schema

import (
	"encoding/json"
	"errors"
	"testing"
)

// The dialects as a schema names them.
const (
	in4    = `"$schema":"http://json-schema.org/draft-04/schema#"`
	in6    = `"$schema":"http://json-schema.org/draft-06/schema#"`
	in7    = `"$schema":"http://json-schema.org/draft-07/schema#"`
	in2019 = `"$schema":"https://json-schema.org/draft/2019-09/schema"`
	in2020 = `"$schema":"https://json-schema.org/draft/2020-12/schema"`
)

// TestDrafts holds what differs from draft to draft. The public suite (TestSuite) says much more; this runs everywhere.
func TestDrafts(t *testing.T) {
	for _, tc := range []struct {
		reason  string
		drafts  []string
		schema  string // without its braces
		valid   string // an array of values
		invalid string
	}{
		{"what all drafts share", []string{in4, in6, in7, in2019, in2020},
			`"type":"object","properties":{"a":{"type":["integer","null"],"minimum":1},"b":{"enum":["x",[1]]}},"required":["a"],"additionalProperties":false`,
			`[{"a":1},{"a":null,"b":[1]}]`, `[{},{"a":0},{"a":"1"},{"a":1,"b":1},{"a":1,"c":1},[],null]`},
		{"recursion by #", []string{in4, in6, in7, in2019, in2020}, `"properties":{"next":{"$ref":"#"}},"additionalProperties":false`,
			`[{},{"next":{"next":{}}}]`, `[{"next":{"next":{"x":1}}}]`},
		{"definitions is a place like any other", []string{in4, in6, in7, in2019, in2020},
			`"definitions":{"n":{"type":"null"}},"properties":{"a":{"$ref":"#/definitions/n"}}`, `[{"a":null}]`, `[{"a":1}]`},
		{"$defs works in the drafts before it, too", []string{in4, in6, in7, in2019, in2020},
			`"$defs":{"n":{"type":"null"}},"properties":{"a":{"$ref":"#/$defs/n"}}`, `[{"a":null}]`, `[{"a":1}]`},
		{"names in a pointer are escaped twice", []string{in4, in7, in2020},
			`"definitions":{"a/b~c%":{"type":"null"}},"properties":{"a":{"$ref":"#/definitions/a~1b~0c%25"}}`, `[{"a":null}]`, `[{"a":1}]`},

		{"what stands beside $ref is ignored up to draft 7", []string{in4, in6, in7},
			`"definitions":{"n":{"type":"number"}},"properties":{"a":{"$ref":"#/definitions/n","maximum":3}}`, `[{"a":4}]`, `[{"a":"4"}]`},
		{"and counts since 2019-09", []string{in2019, in2020},
			`"$defs":{"n":{"type":"number"}},"properties":{"a":{"$ref":"#/$defs/n","maximum":3}}`, `[{"a":3}]`, `[{"a":4},{"a":"3"}]`},
		{"id is the name of a schema in draft 4", []string{in4},
			`"definitions":{"x":{"id":"http://example.com/n","type":"null"}},"properties":{"a":{"$ref":"http://example.com/n"}}`, `[{"a":null}]`, `[{"a":1}]`},
		{"$id is since draft 6", []string{in6, in7, in2019, in2020},
			`"definitions":{"x":{"$id":"http://example.com/n","type":"null"}},"properties":{"a":{"$ref":"http://example.com/n"}}`, `[{"a":null}]`, `[{"a":1}]`},
		{"a property named id is only a property", []string{in4, in7, in2020}, `"properties":{"id":{"type":"integer"},"$id":{"type":"null"}}`,
			`[{"id":1,"$id":null}]`, `[{"id":"http://example.com/n"},{"$id":"x"}]`},
		{"an $id with a fragment is an anchor in drafts 6 and 7", []string{in6, in7},
			`"definitions":{"x":{"$id":"#n","type":"null"}},"properties":{"a":{"$ref":"#n"}}`, `[{"a":null}]`, `[{"a":1}]`},
		{"$anchor is since 2019-09", []string{in2019, in2020}, `"$defs":{"x":{"$anchor":"n","type":"null"}},"properties":{"a":{"$ref":"#n"}}`,
			`[{"a":null}]`, `[{"a":1}]`},
		{"relative references start at the nearest $id", []string{in2019, in2020}, `"$id":"https://example.com/root","properties":{"a":{"$ref":"dir/item"}},
			"$defs":{"d":{"$id":"dir/item","$ref":"leaf"},"l":{"$id":"dir/leaf","type":"null"}}`, `[{"a":null}]`, `[{"a":1}]`},

		{"exclusiveMinimum is a boolean in draft 4", []string{in4}, `"minimum":1,"exclusiveMinimum":true,"maximum":3,"exclusiveMaximum":false`,
			`[2,3]`, `[1,4]`},
		{"and a number since draft 6", []string{in6, in7, in2019, in2020}, `"exclusiveMinimum":1,"exclusiveMaximum":3`, `[2]`, `[1,3]`},
		{"draft 4 knows no const, contains, propertyNames", []string{in4}, `"const":1,"contains":{"type":"null"},"propertyNames":{"maxLength":1}`,
			`[2,[1],{"abc":1}]`, `[]`},
		{"since draft 6 they count", []string{in6, in7, in2019, in2020}, `"anyOf":[{"const":1},{"type":"array","contains":{"type":"null"}},{"type":"object","propertyNames":{"maxLength":1}}]`,
			`[1,1.0,[1,null],{"a":1}]`, `[2,[1],[],{"abc":1}]`},
		{"true and false are schemas since draft 6", []string{in6, in7, in2019, in2020}, `"properties":{"a":true,"b":false}`, `[{"a":1}]`, `[{"b":1}]`},
		{"draft 6 knows no if", []string{in6}, `"if":{"type":"string"},"then":{"maxLength":1}`, `["abc"]`, `[]`},
		{"if, then, else", []string{in7, in2019, in2020}, `"if":{"type":"string"},"then":{"maxLength":1},"else":{"type":"null"}`, `["a",null]`, `["ab",1]`},

		{"a list under items is a tuple before 2020-12", []string{in4, in6, in7, in2019}, `"items":[{"type":"integer"}],"additionalItems":{"type":"null"}`,
			`[[],[1],[1,null]]`, `[["1"],[1,1]]`},
		{"and prefixItems is since", []string{in2020}, `"prefixItems":[{"type":"integer"}],"items":{"type":"null"}`, `[[],[1],[1,null]]`, `[["1"],[1,1]]`},
		{"dependencies", []string{in4, in6, in7}, `"dependencies":{"a":["b"],"c":{"required":["d"]}}`, `[{"a":1,"b":1},{"c":1,"d":1},{"b":1}]`, `[{"a":1},{"c":1}]`},
		{"dependentRequired and dependentSchemas", []string{in2019, in2020}, `"dependentRequired":{"a":["b"]},"dependentSchemas":{"c":{"required":["d"]}}`,
			`[{"a":1,"b":1},{"c":1,"d":1},{"b":1}]`, `[{"a":1},{"c":1}]`},
		{"draft 7 does not know them", []string{in7}, `"dependentRequired":{"a":["b"]},"dependentSchemas":{"c":{"required":["d"]}},"unevaluatedProperties":false`,
			`[{"a":1},{"c":1}]`, `[]`},
		{"minContains and maxContains", []string{in2019, in2020}, `"contains":{"type":"null"},"minContains":2,"maxContains":2`, `[[null,1,null]]`, `[[null],[null,null,null]]`},
		{"unevaluatedProperties sees through allOf, $ref and if", []string{in2019, in2020}, `"$defs":{"b":{"properties":{"b":true}}},"properties":{"a":true},
			"allOf":[{"$ref":"#/$defs/b"}],"if":{"required":["c"]},"then":{"properties":{"c":true,"d":true}},"unevaluatedProperties":false`,
			`[{"a":1,"b":1},{"c":1,"d":1}]`, `[{"d":1},{"e":1}]`},
		{"a branch that fails evaluates nothing", []string{in2019, in2020}, `"anyOf":[{"properties":{"a":{"type":"null"}},"required":["a"]},{"properties":{"b":true}}],"unevaluatedProperties":false`,
			`[{"b":1},{"a":null,"b":1}]`, `[{"a":1}]`},
		{"unevaluatedItems beside a tuple in 2019-09", []string{in2019}, `"items":[{"type":"integer"}],"unevaluatedItems":false`, `[[1]]`, `[[1,2]]`},
		{"and in 2020-12, where contains evaluates, too", []string{in2020}, `"prefixItems":[true],"contains":{"type":"null"},"unevaluatedItems":false`, `[[1,null],[null]]`, `[[1,null,2]]`},

		{"$recursiveRef leads to the outermost $recursiveAnchor", []string{in2019}, `"$id":"https://example.com/strict","$recursiveAnchor":true,"$ref":"tree","unevaluatedProperties":false,
			"$defs":{"tree":{"$id":"tree","$recursiveAnchor":true,"properties":{"v":true,"c":{"items":{"$recursiveRef":"#"}}}}}`,
			`[{"v":1,"c":[{"v":2}]}]`, `[{"w":1},{"c":[{"w":1}]}]`},
		{"$dynamicRef leads to the outermost $dynamicAnchor", []string{in2020}, `"$id":"https://example.com/strict","$dynamicAnchor":"node","$ref":"tree","unevaluatedProperties":false,
			"$defs":{"tree":{"$id":"tree","$dynamicAnchor":"node","properties":{"v":true,"c":{"items":{"$dynamicRef":"#node"}}}}}`,
			`[{"v":1,"c":[{"v":2}]}]`, `[{"w":1},{"c":[{"w":1}]}]`},
		{"a list of a type that the outer schema chooses", []string{in2020}, `"$id":"https://example.com/texts","$ref":"list","$defs":{
			"text":{"$dynamicAnchor":"item","type":"string"},
			"list":{"$id":"list","items":{"$dynamicRef":"#item"},"$defs":{"any":{"$dynamicAnchor":"item"}}}}`, `[["a"],[]]`, `[[1]]`},

		{"formats are asserted in every draft, unknown ones ignored", []string{in4, in6, in7, in2019, in2020}, `"anyOf":[{"format":"ipv4","maxLength":15},{"format":"no-such","minLength":30}]`,
			`["192.0.2.1",1,"an unknown format takes anything"]`, `["192.0.2.256"]`},
		{"content is not looked at in any draft", []string{in7, in2019, in2020}, `"contentEncoding":"base64","contentMediaType":"application/json","contentSchema":{"type":"integer"}`,
			`["!","e30=","1e5000000"]`, `[]`},
		{"no $schema is 2020-12", []string{`"title":""`}, `"$defs":{"n":{"type":"number"}},"prefixItems":[{"$ref":"#/$defs/n","maximum":3}]`, `[[3]]`, `[[4]]`},
	} {
		for _, draft := range tc.drafts {
			t.Run(tc.reason+" "+draft, func(t *testing.T) {
				s, err := Compile([]byte("{" + draft + "," + tc.schema + "}"))
				if err != nil {
					t.Fatal(err)
				}
				for _, value := range items(t, tc.valid) {
					if err := s.Validate(value); err != nil {
						t.Errorf("%s is refused: %v", value, err)
					}
				}
				for _, value := range items(t, tc.invalid) {
					var invalid *InvalidError
					if err := s.Validate(value); !errors.As(err, &invalid) {
						t.Errorf("%s gets %v, want an *InvalidError", value, err)
					} else {
						checkLine(t, err.Error())
					}
				}
			})
		}
	}
}

func items(t *testing.T, array string) (values []json.RawMessage) {
	t.Helper()
	if err := json.Unmarshal([]byte(array), &values); err != nil {
		t.Fatal(err)
	}
	return values
}
