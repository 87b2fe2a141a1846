package schema

import (
	"strings"
	"testing"
)

func TestSecretsAreNotShown(t *testing.T) {
	for _, tc := range []struct{ reason, schema, value, want string }{
		{"writeOnly", `{"properties":{"pin":{"writeOnly":true,"pattern":"^x"}}}`, `{"pin":"hunter2"}`, `/pin: pattern: expected a match of the pattern "^x", but it is a string, not shown because it is a secret`},
		{"format password", `{"properties":{"pin":{"format":"password","type":"object"}}}`, `{"pin":"hunter2"}`, "expected object, but it is a string, not shown"},
		{"the whole value", `{"writeOnly":true,"type":"object"}`, `"hunter2"`, "a string, not shown"},
		{"numbers", `{"properties":{"pin":{"writeOnly":true,"maximum":3}}}`, `{"pin":72727272}`, "at most 3, but it is a number, not shown"},
		{"booleans", `{"properties":{"pin":{"writeOnly":true,"const":1}}}`, `{"pin":true}`, "a boolean, not shown"},
		{"a format that it does not have", `{"properties":{"pin":{"writeOnly":true,"format":"email"}}}`, `{"pin":"hunter2"}`, `the format "email", but it is a string, not shown`},
		{"what is inside a secret", `{"properties":{"pin":{"writeOnly":true,"items":{"properties":{"a":{"type":"null"}}}}}}`, `{"pin":[{"a":"hunter2"}]}`, "/pin/0/a: type: expected null, but it is a string, not shown"},
		{"said by a definition", `{"$defs":{"s":{"writeOnly":true}},"properties":{"pin":{"$ref":"#/$defs/s","minLength":9,"pattern":"^x"}}}`, `{"pin":"hunter2"}`, "a string, not shown"},
		{"said beside a reference, where draft 7 does not look", `{` + in7 + `,"definitions":{"s":{"type":"null"}},"properties":{"pin":{"$ref":"#/definitions/s","writeOnly":true}}}`, `{"pin":"hunter2"}`, "a string, not shown"},
		{"said by another branch", `{"allOf":[{"properties":{"pin":{"writeOnly":true}}},{"properties":{"pin":{"type":"null"}}}]}`, `{"pin":"hunter2"}`, "a string, not shown"},
		{"said by one of two alternatives", `{"properties":{"pin":{"anyOf":[{"type":"null"},{"type":"integer","format":"password"}]}}}`, `{"pin":"hunter2"}`, "expected null; or expected integer, but it is a string, not shown"},
		{"said by a pattern", `{"patternProperties":{"pin$":{"writeOnly":true,"type":"null"}}}`, `{"a/pin":"hunter2"}`, "/a~1pin: type: expected null, but it is a string, not shown"},
		{"said of items", `{"prefixItems":[{}],"items":{"writeOnly":true,"type":"null"}}`, `[1,"hunter2"]`, "a string, not shown"},
		{"said of all other properties", `{"properties":{"pin":{"type":"null"}},"additionalProperties":{"writeOnly":true}}`, `{"pin":"hunter2"}`, "a string, not shown"},
		{"said in a schema reached by recursion", `{"$dynamicAnchor":"n","properties":{"pin":{"format":"password","type":"null"},"c":{"$dynamicRef":"#n"}}}`, `{"c":{"c":{"pin":"hunter2"}}}`, "/c/c/pin: type: expected null, but it is a string, not shown"},
		{"said by a pattern that would take long to match", `{"patternProperties":{"pin$":{"writeOnly":true}},"additionalProperties":{"type":"null"}}`, `{"` + strings.Repeat("a", 5000) + `":"hunter2"}`, "a string, not shown"},
		{"said in a schema that an anchor leads to", `{"$ref":"r","$defs":{"s":{"$id":"s","$dynamicAnchor":"n","writeOnly":true,"type":"null"},"r":{"$id":"r","properties":{"pin":{"$dynamicRef":"#n"}},"$defs":{"x":{"$dynamicAnchor":"n"}}}}}`, `{"pin":"hunter2"}`, "a string, not shown"},
		{"the library's words are not used", `{"properties":{"pin":{"writeOnly":true,"allOf":[false]}}}`, `{"pin":"hunter2"}`, "a string, not shown"},
		{"others are shown", `{"properties":{"pin":{"writeOnly":true},"a":{"type":"null"}}}`, `{"pin":"hunter2","a":"plain"}`, `it is the string "plain"`},
		{"writeOnly false is no secret", `{"properties":{"a":{"type":"null","writeOnly":false}}}`, `{"a":"plain"}`, `it is the string "plain"`},
		{"a property called writeOnly is no declaration", `{"properties":{"writeOnly":true,"a":{"type":"null"}}}`, `{"a":"plain"}`, `it is the string "plain"`},
	} {
		t.Run(tc.reason, func(t *testing.T) {
			s, err := Compile([]byte(tc.schema))
			if err != nil {
				t.Fatal(err)
			}
			err = s.Validate([]byte(tc.value))
			if err == nil || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("got %v, want %q", err, tc.want)
			}
			if err != nil && (strings.Contains(err.Error(), "hunter2") || strings.Contains(err.Error(), "72727272")) {
				t.Errorf("the secret is shown: %v", err)
			}
		})
	}
}
