package schema

import (
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"unicode"
)

const orders = `{"type":"object","properties":{"order_id":{"type":"integer"},"status":{"enum":["packed","shipped"]}},
	"required":["order_id","status"],"additionalProperties":false}`

func TestValidate(t *testing.T) {
	for _, tc := range []struct {
		reason, schema, value string
		want                  []Violation // Message: a part of it
	}{
		{"a value that fits", orders, `{"order_id":4821,"status":"shipped"}`, nil},
		{"several causes come in a fixed order, each with what was expected and what came", orders,
			`{"order_id":"x","status":"lost","foo":1}`, []Violation{
				{"", "additionalProperties", `not allowed: "foo"; known: "order_id", "status"`},
				{"/status", "enum", `expected one of "packed", "shipped", but it is the string "lost"`},
				{"/order_id", "type", `expected integer, but it is the string "x"`}}},
		{"terminal escapes never pass", `{"type":"integer"}`, `"\u001b]0;x\u0007\r\u202e"`, []Violation{{"", "type", `"\x1b]0;x\a\r\u202e"`}}},
		{"missing names are told with those present", `{"required":["a","b"]}`, `{"a":1}`, []Violation{{"", "required", `missing "b"; present: "a"`}}},
		{"an empty enum accepts nothing", `{"enum":[]}`, `1`, []Violation{{"", "enum", "no value is allowed"}}},
		{"an empty enum below properties accepts nothing", `{"properties":{"a":{"enum":[]}}}`, `{"a":null}`, []Violation{{"/a", "enum", "no value is allowed"}}},
		{"integers are compared exactly", `{"maximum":9007199254740992}`, `9007199254740993`, []Violation{{"", "maximum", "at most 9007199254740992, but it is the number 9007199254740993"}}},
		{"1.0 is an integer", `{"type":"integer"}`, `1.0`, nil},
		{"a huge exponent is refused, not a panic", `{"type":"integer","minimum":1}`, `1e5000000`, []Violation{{"", "json", "larger than any float64"}}},
		{"so is it where the schema does not look", `{}`, `{"a":[1e5000000]}`, []Violation{{"/a/0", "json", "larger than any float64"}}},
		{"a tiny exponent too", `{"multipleOf":2}`, `1e-5000000`, []Violation{{"", "json", "would become 0"}}},
		{"endless digits too", `{"type":"integer"}`, strings.Repeat("9", 100000), []Violation{{"", "json", "100000 characters"}}},
		{"an escaped pointer", `{"properties":{"a b/c~%":{"minLength":3}}}`, `{"a b/c~%":"é"}`, []Violation{{"/a b~1c~0%", "minLength", "expected at least 3 characters, but it has 1"}}},
		{"the deepest cause through $ref and recursion", `{"$defs":{"t":{"properties":{"c":{"$ref":"#/$defs/t"}},"additionalProperties":false}},"$ref":"#/$defs/t"}`,
			`{"c":{"c":{"d":1}}}`, []Violation{{"/c/c", "additionalProperties", `not allowed: "d"; known: "c"`}}},
		{"alternatives that all want another type are listed", `{"anyOf":[{"type":"string"},{"type":"null"}]}`, `1`,
			[]Violation{{"", "anyOf", "expected string; or expected null, but it is the number 1"}}},
		{"the alternative with the right const is meant", `{"oneOf":[
			{"properties":{"kind":{"const":"a"},"x":{"type":"integer"}}},{"properties":{"kind":{"const":"b"},"x":{"type":"boolean"}}}]}`,
			`{"kind":"a","x":"s"}`, []Violation{{"/x", "type", "expected integer"}}},
		{"the alternative of the right type is meant", `{"anyOf":[{"type":"string"},{"type":"object","properties":{"n":{"type":"integer"}}}]}`,
			`{"n":"s"}`, []Violation{{"/n", "type", "expected integer"}}},
		{"two alternatives at once", `{"oneOf":[{"type":"integer"},{"minimum":1}]}`, `1`, []Violation{{"", "oneOf", "valid against schemas at indexes 0 and 1"}}},
		{"a forbidden property", `{"properties":{"a":false}}`, `{"a":1}`, []Violation{{"/a", "properties", "nothing is allowed here"}}},
		{"unevaluatedProperties", `{"unevaluatedProperties":false,"properties":{"a":{}}}`, `{"b":1}`, []Violation{{"/b", "unevaluatedProperties", "nothing is allowed here"}}},
		{"unevaluatedItems", `{"prefixItems":[{}],"unevaluatedItems":false}`, `[1,"b"]`, []Violation{{"/1", "unevaluatedItems", `nothing is allowed here, but it is the string "b"`}}},
		{"propertyNames is about the name, not the value", `{"propertyNames":{"maxLength":3,"pattern":"^x"}}`, `{"a/cd":"v"}`, []Violation{
			{"/a~1cd", "maxLength", "its name: expected at most 3 characters, but it has 4"}, {"/a~1cd", "pattern", `its name: expected a match of the pattern "^x", but it is the string "a/cd"`}}},
		{"a property called propertyNames is none", `{"properties":{"propertyNames":{"type":"integer"}}}`, `{"propertyNames":"v"}`, []Violation{{"/propertyNames", "type", `it is the string "v"`}}},
		{"dependentRequired names both", `{"dependentRequired":{"a":["b","c"]}}`, `{"a":1,"c":1}`, []Violation{{"", "dependentRequired", `missing "b", which must come with "a"; present: "a", "c"`}}},
		{"dependencies, too", `{` + in7 + `,"dependencies":{"a":["b"]}}`, `{"a":1}`, []Violation{{"", "dependencies", `missing "b", which must come with "a"`}}},
		{"contains counts what fits", `{"contains":{"type":"string"}}`, `[1,2]`, []Violation{{"", "contains", "expected at least 1 items that fit the schema of \"contains\", but 0 do"}}},
		{"maxContains", `{"contains":{"type":"string"},"maxContains":1}`, `["a","b"]`, []Violation{{"", "maxContains", "expected at most 1 items that fit the schema of \"contains\", but 2 do"}}},
		{"uniqueItems names the two", `{"uniqueItems":true}`, `[1,2,1.0]`, []Violation{{"", "uniqueItems", "the items at index 0 and 2 are equal"}}},
		{"additionalItems", `{` + in7 + `,"items":[{}],"additionalItems":false}`, `[1,2]`, []Violation{{"", "additionalItems", "expected at most 1 items, but it has 2"}}},
		{"a metaschema as schema is local", `{"$ref":"https://json-schema.org/draft/2020-12/schema"}`, `{"minLength":-1,"type":"text"}`, []Violation{
			{"/type", "anyOf", `"string"; or expected array, but it is the string "text"`}, {"/minLength", "minimum", "must be >= 0, but it is the number -1"}}},
		{"not", `{"not":{"type":"string"}}`, `"a"`, []Violation{{"", "not", "does not fit"}}},
		{"if and then", `{"if":{"type":"string"},"then":{"minLength":3}}`, `"a"`, []Violation{{"", "minLength", "at least 3"}}},
		{"a known format is asserted", `{"format":"email"}`, `"a"`, []Violation{{"", "format", `"email"`}}},
		{"an unknown format is ignored", `{"format":"order-number"}`, `"a"`, nil},
		{"draft 4 exclusiveMinimum", `{"$schema":"http://json-schema.org/draft-04/schema#","minimum":3,"exclusiveMinimum":true}`, `3`,
			[]Violation{{"", "exclusiveMinimum", "above 3"}}},
		{"draft 7 tuples", `{` + in7 + `,"items":[{"type":"integer"}]}`, `["1"]`, []Violation{{"/0", "type", "expected integer"}}},
		{"draft 7 ignores what stands beside $ref", `{` + in7 + `,"definitions":{"a":{}},"properties":{"a":{"$ref":"#/definitions/a","type":"null"}}}`, `{"a":1}`, nil},
		{"a maximum beyond int64 never refuses", `{"maxLength":9223372036854775807,"maxItems":1e300}`, `"abc"`, nil},
		{"a minimum beyond int64 is never reached", `{"minLength":1e300}`, `"abc"`, []Violation{{"", "minLength", "it has 3"}}},
		{"defaults are not applied", `{"required":["a"],"properties":{"a":{"default":1}}}`, `{}`, []Violation{{"", "required", `missing "a"; present: nothing`}}},
		{"$id and $anchor inside the schema", `{"$id":"http://example.com/a","$defs":{"x":{"$id":"b","type":"string"},"y":{"$anchor":"z","type":"integer"}},
			"properties":{"s":{"$ref":"b"},"i":{"$ref":"#z"}}}`, `{"s":1,"i":1}`, []Violation{{"/s", "type", "expected string"}}},
		{"at most five causes", `{"items":{"type":"integer"}}`, `["","","","","","",""]`, []Violation{
			{"/0", "type", ""}, {"/1", "type", ""}, {"/2", "type", ""}, {"/3", "type", ""}, {"/4", "type", ""}}},
		{"trailing data", `{}`, `{} {}`, []Violation{{"", "json", "but \"{}\" follows"}}},
		{"not JSON", `{}`, `{"a":}`, []Violation{{"", "json", "byte 5"}}},
		{"half a value", `{}`, `{"a":`, []Violation{{"", "json", "ends after 5 bytes"}}},
		{"too deep", `{}`, strings.Repeat("[", 513) + strings.Repeat("]", 513), []Violation{{"", "json", "deeper than 512"}}},
		{"a key twice", `{}`, `{"a":1,"a":2}`, []Violation{{"/a", "json", "twice"}}},
	} {
		t.Run(tc.reason, func(t *testing.T) {
			s, err := Compile([]byte(tc.schema))
			if err != nil {
				t.Fatalf("Compile: %v", err)
			}
			err = s.Validate([]byte(tc.value))
			var invalid *InvalidError
			if err != nil && !errors.As(err, &invalid) {
				t.Fatalf("Validate: %v, want an *InvalidError", err)
			}
			var got []Violation
			if invalid != nil {
				got = invalid.Violations
				checkLine(t, err.Error())
			}
			if len(got) != len(tc.want) {
				t.Fatalf("got %d violations (%v), want %d", len(got), err, len(tc.want))
			}
			for i, want := range tc.want {
				if got[i].Pointer != want.Pointer || got[i].Keyword != want.Keyword || !strings.Contains(got[i].Message, want.Message) {
					t.Errorf("violation %d is %+v, want %+v", i, got[i], want)
				}
			}
		})
	}
}

func TestCompileRefuses(t *testing.T) {
	chain, bomb := "", ""
	for i := range 60 {
		chain += fmt.Sprintf(`"c%d":{"$ref":"#/$defs/c%d"},`, i, i+1)
	}
	for i := range 20 {
		bomb += fmt.Sprintf(`"b%d":{"allOf":[{"$ref":"#/$defs/b%d"},{"$ref":"#/$defs/b%d"}]},`, i, i+1, i+1)
	}
	for _, tc := range []struct {
		reason, schema string
		want           []string
	}{
		{"empty text", ``, []string{"nothing but white space"}},
		{"not JSON", `{"type"}`, []string{"byte 7"}},
		{"no schema", `5`, []string{"neither a JSON object nor true or false"}},
		{"types that JSON Schema does not know", `{"properties":{"a":{"type":"dict"}}}`, []string{"/properties/a/type", `"integer"`, `the string "dict"`}},
		{"a keyword of the wrong type", `{"properties":5}`, []string{"/properties", "expected object", "the number 5"}},
		{"draft 3 required", `{"properties":{"a":{"required":true}}}`, []string{"/properties/a/required", "expected array"}},
		{"tuples of an older draft", `{"items":[{}]}`, []string{"/items", "prefixItems", "$schema"}},
		{"look-ahead", `{"properties":{"a":{"pattern":"^(?=x)"}}}`, []string{"/properties/a/pattern", "RE2", `"(?="`}},
		{"look-ahead in a property pattern", `{"patternProperties":{"a/(?!x)":{}}}`, []string{"/patternProperties/a~1(?!x)", "RE2"}},
		{"look-ahead in a property pattern of draft 4, whose metaschema points to all of them", `{` + in4 + `,"patternProperties":{"^a":{},"a/(?!x)":{}}}`, []string{"/patternProperties/a~1(?!x)", "RE2", `"(?!"`}},
		{"a back-reference", `{"pattern":"(a)\\1"}`, []string{"/pattern", "RE2", `"\\1"`}},
		{"expressions of great size", `{"allOf":[` + strings.Repeat(`{"pattern":"(x?){1000}"},`, 50) + `{}]}`, []string{"of size 104000", "at most 100000"}},
		{"a long expression", `{"pattern":"` + strings.Repeat("a", 17000) + `"}`, []string{"17000 bytes", "at most 16384"}},
		{"an empty enum, in the drafts that forbid it", `{` + in7 + `,"enum":[]}`, []string{"/enum", "minItems"}},
		{"too many repetitions", `{"pattern":"^.{1,4000}$"}`, []string{"/pattern", "RE2", "{1,4000}"}},
		{"a reference over http", `{"properties":{"a":{"$ref":"http://169.254.169.254/latest"}}}`, []string{"/properties/a/$ref", "http://169.254.169.254/latest", "nothing is ever loaded", "$defs"}},
		{"over https with a fragment", `{"allOf":[{"$ref":"https://example.com/a.json#/b"}]}`, []string{"/allOf/0/$ref", "https://example.com/a.json#/b"}},
		{"to a file", `{"properties":{"a":{"$ref":"file:///etc/passwd"}}}`, []string{"/properties/a/$ref", "file:///etc/passwd"}},
		{"to a device that never ends", `{"$ref":"file:///dev/zero"}`, []string{"/$ref"}},
		{"to a relative file", `{"items":{"$ref":"other.json#/a"}}`, []string{"/items/$ref", "other.json#/a"}},
		{"to a relative file below $id", `{"$id":"https://example.com/x/y","items":{"$ref":"z"}}`, []string{"/items/$ref", `"z"`}},
		{"to a urn", `{"items":{"$ref":"urn:example:a"}}`, []string{"/items/$ref", "urn:example:a"}},
		{"below a urn", `{"$id":"urn:example:a","items":{"$ref":"z"}}`, []string{"/items/$ref", `"z"`}},
		{"to an absolute path", `{"items":{"$ref":"/etc/passwd"}}`, []string{"/items/$ref", `"/etc/passwd"`}},
		{"to another host", `{"items":{"$ref":"//example.com/a"}}`, []string{"/items/$ref", `"//example.com/a"`}},
		{"in a definition that nothing refers to", `{"$defs":{"a b/c%":{"items":{"$ref":"https://example.com/a"}}}}`, []string{"/$defs/a b~1c%/items/$ref", "https://example.com/a"}},
		{"in such a definition of an older draft", `{` + in4 + `,"definitions":{"a":{"$ref":"https://example.com/a"}}}`, []string{"/definitions/a/$ref", "https://example.com/a"}},
		{"into data", `{"items":{"$ref":"#/properties/default/default"},"properties":{"default":{"default":{"allOf":[]}}}}`, []string{"/items/$ref", "#/properties/default/default", "no schema"}},
		{"into a list, by a name", `{"items":{"$ref":"#/allOf/x"},"allOf":[{}]}`, []string{"/items/$ref", "#/allOf/x", "leads to nothing"}},
		{"a dynamic reference", `{"items":{"$dynamicRef":"https://example.com/a"}}`, []string{"/items/$dynamicRef"}},
		{"to nothing", `{"properties":{"a":{"$ref":"#/$defs/none"}}}`, []string{"/properties/a/$ref", "#/$defs/none", "leads to nothing"}},
		{"to an anchor that is not there", `{"properties":{"a":{"$ref":"#none"}}}`, []string{"/properties/a/$ref", "#none"}},
		{"a dialect in a file", `{"$schema":"file:///etc/passwd"}`, []string{"/$schema", "2020-12"}},
		{"a dialect of another draft 3", `{"$schema":"http://json-schema.org/draft-03/schema#"}`, []string{"/$schema", "draft-03", "not known"}},
		{"a part of a metaschema, without the keywords of the others", `{"$schema":"https://json-schema.org/draft/2020-12/meta/core","type":"integer"}`, []string{"/$schema", "not known"}},
		{"a dialect that is no text", `{"$schema":7}`, []string{"/$schema", "the dialect 7 is not known"}},
		{"its own dialect", `{"$id":"https://example.com/mine","$schema":"https://example.com/mine"}`, []string{"/$schema", "not known"}},
		{"an unknown dialect", `{"$schema":"https://example.com/mine"}`, []string{"/$schema", "not known"}},
		{"an endless loop", `{"$ref":"#"}`, []string{"refers to itself without end"}},
		{"an endless loop of two", `{"$defs":{"a":{"allOf":[{"$ref":"#/$defs/a"}]}},"$ref":"#/$defs/a"}`, []string{"refers to itself without end"}},
		{"an $id that resolves to another than itself, for which the library looks without end", `{"$id":"?"}`, []string{"/$id", `"?"`, "normal form"}},
		{"an id of draft 4, as the fuzzer found it", `{` + in4 + `,"id":"?","minimum":3,"exclusiveMinimum":true}`, []string{"/id", `"?"`, "normal form"}},
		{"an $id that becomes our own location by its scheme", `{"$id":"CALLGATE:///schema"}`, []string{"/$id", "normal form"}},
		{"by its steps", `{"$id":"callgate:///x/../schema"}`, []string{"/$id", "normal form"}},
		{"by its host", `{` + in7 + `,"$id":"callgate:/schema"}`, []string{"/$id", "normal form"}},
		{"with an empty fragment", `{` + in6 + `,"$id":"?#"}`, []string{"/$id", "normal form"}},
		{"an $id that becomes a metaschema, which would take the place of the schema", `{"$id":"HTTPS://json-schema.org/draft/2020-12/meta/core","type":"integer"}`,
			[]string{"/$id", "HTTPS://json-schema.org", "normal form"}},
		{"by an empty query", `{"$id":"https://json-schema.org/draft/2020-12/schema?","type":"integer"}`, []string{"/$id", "normal form"}},
		{"an $id further down, whose references would lead to the root", `{"type":"object","$defs":{"a":{"$id":"?","items":{"$ref":"#"}}}}`, []string{"/$defs/a/$id", "normal form"}},
		{"a number the library would ignore", `{"properties":{"a":{"minimum":1e5000000}}}`, []string{"/properties/a/minimum", "larger than any float64"}},
		{"a key twice", `{"properties":{"a":{}},"properties":{}}`, []string{"/properties", "twice"}},
		{"too large", `{"description":"` + strings.Repeat("x", 256<<10) + `"}`, []string{"262162 bytes", "at most 262144"}},
		{"too deep", strings.Repeat(`{"not":`, 200) + `{}` + strings.Repeat(`}`, 200), []string{"deeper than 128"}},
		{"too many schemas inside one another", `{"$defs":{` + chain + `"c60":{}},"$ref":"#/$defs/c0"}`, []string{"62 schemas", "at most 50"}},
		{"too many subschemas", `{"allOf":[` + strings.Repeat("{},", 5000) + `{}]}`, []string{"5002 subschemas", "at most 5000"}},
		{"a bomb of references", `{"$defs":{` + bomb + `"b20":{}},"$ref":"#/$defs/b0"}`, []string{"4194302 schemas", "at most 10000"}},
	} {
		t.Run(tc.reason, func(t *testing.T) {
			_, err := Compile([]byte(tc.schema))
			if err == nil {
				t.Fatal("Compile accepts it")
			}
			checkLine(t, err.Error())
			for _, want := range tc.want {
				if !strings.Contains(err.Error(), want) {
					t.Errorf("error %q lacks %q", err, want)
				}
			}
		})
	}
}

// checkLine fails unless text is one short printable line without words of the library.
func checkLine(t *testing.T, text string) {
	t.Helper()
	if strings.ContainsFunc(text, func(r rune) bool { return !unicode.IsPrint(r) }) || len(text) > 5*1200 || text == "" {
		t.Errorf("not one short printable line: %q", text)
	}
	if strings.Contains(text, "jsonschema") || strings.Contains(text, baseURL) {
		t.Errorf("words of the library: %q", text)
	}
}

func TestValidateBounds(t *testing.T) {
	for _, tc := range []struct{ reason, schema, value string }{
		{"two schemas per level multiply with the depth of the value",
			`{"$defs":{"t":{"properties":{"c":{"allOf":[{"$ref":"#/$defs/t"},{"$ref":"#/$defs/t"}]}}}},"$ref":"#/$defs/t"}`,
			strings.Repeat(`{"c":`, 400) + `{}` + strings.Repeat(`}`, 400)},
		{"a large enum over a large array", `{"items":{"enum":["` + strings.Repeat("e", 200000) + `"]}}`, `[` + strings.Repeat("1,", 100000) + `1]`},
		{"a long key before many items", `{"additionalProperties":{"items":{"type":"integer"}}}`, `{"` + strings.Repeat("k", 200000) + `":[` + strings.Repeat(`"",`, 15000) + `1]}`},
		{"one match that takes minutes", `{"type":["string","object"],"pattern":"^` + strings.Repeat("(x?){1000}", 20) + `$"}`, `"` + strings.Repeat("x", 20000) + `y"`},
		{"a value that no call can have", `{}`, `"` + strings.Repeat("x", 3<<20) + `"`},
	} {
		t.Run(tc.reason, func(t *testing.T) {
			s, err := Compile([]byte(tc.schema))
			if err != nil {
				t.Fatal(err)
			}
			var bound *BoundError
			if err := s.Validate([]byte(tc.value)); !errors.As(err, &bound) {
				t.Errorf("got %v, want a *BoundError", err)
			} else {
				checkLine(t, err.Error())
			}
			if err := s.Validate([]byte(`{}`)); err != nil {
				t.Errorf("the next value pays for it: %v", err)
			}
		})
	}
}

func TestLargeValidValues(t *testing.T) {
	for _, tc := range []struct{ reason, schema, value string }{
		{"many numbers", `{"items":{"anyOf":[{"type":"string"},{"type":"integer","minimum":0}]}}`, `[` + strings.Repeat("1,", 125000) + `1]`},
		{"many records", `{"items":{"type":"object","properties":{"id":{"type":"integer"},"tags":{"items":{"type":"string"}}},"required":["id"],"additionalProperties":false}}`,
			`[` + strings.Repeat(`{"id":4821,"tags":["a","b"]},`, 8000) + `{"id":1}]`},
		{"one long string", `{"type":"string","pattern":"^[a-z]*$"}`, `"` + strings.Repeat("a", 250000) + `"`},
		{"a long text beside a long pattern of letters", `{"properties":{"name":{"pattern":"^[\\pL .'-]{1,1000}$"}}}`, `{"name":"é","text":"` + strings.Repeat("a", 250000) + `"}`},
		{"a deep list", `{"$defs":{"t":{"type":"object","properties":{"c":{"$ref":"#/$defs/t"}}}},"$ref":"#/$defs/t"}`,
			strings.Repeat(`{"c":`, 511) + `{}` + strings.Repeat(`}`, 511)},
		{"many branches", `{"allOf":[` + strings.Repeat(`{"properties":{"a":{"type":"integer"}}},`, 1999) + `{}]}`, `{"a":1}`},
	} {
		t.Run(tc.reason, func(t *testing.T) {
			s, err := Compile([]byte(tc.schema))
			if err != nil {
				t.Fatal(err)
			}
			if err := s.Validate([]byte(tc.value)); err != nil {
				t.Error(err)
			}
		})
	}
}

func TestHasProperty(t *testing.T) {
	s, err := Compile([]byte(`{"properties":{"a":true,"b":{"properties":{"c":{}}}},"allOf":[{"properties":{"d":{}}}]}`))
	if err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]bool{"a": true, "b": true, "c": false, "d": false, "": false, "properties": false} {
		if s.HasProperty(name) != want {
			t.Errorf("HasProperty(%q) is %t", name, !want)
		}
	}
}

func TestConcurrentUse(t *testing.T) {
	s, err := Compile([]byte(orders))
	if err != nil {
		t.Fatal(err)
	}
	var all sync.WaitGroup
	for range 8 {
		all.Go(func() {
			for range 200 {
				if err := s.Validate([]byte(`{"order_id":1,"status":"packed"}`)); err != nil {
					t.Error(err)
				}
				if err := s.Validate([]byte(`{"order_id":1}`)); err == nil {
					t.Error("a missing property passes")
				}
			}
		})
	}
	all.Wait()
}
