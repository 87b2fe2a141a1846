package schema

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/santhosh-tekuri/jsonschema/v5"

	"callgate.dev/callgate/internal/jsonvalue"
)

// many returns n texts, with what format makes of 0, 1, 2 …, separated by commas.
func many(n int, format string) string {
	texts := make([]string, n)
	for i := range texts {
		texts[i] = strings.ReplaceAll(format, "%d", fmt.Sprint(i))
	}
	return strings.Join(texts, ",")
}

// TestCompileBounds: schemas of a few KiB on which the library takes minutes, fills the memory, or overflows the stack,
// which no recover catches.
func TestCompileBounds(t *testing.T) {
	long := strings.Repeat("K", 10000)
	down := strings.Repeat(`{"items":`, 100) // for 100 closing braces
	up := strings.Repeat(`}`, 100)
	ladder := "" // references into an unknown keyword, deepest first
	for i := 20; i >= 0; i-- {
		ladder += `{"$ref":"#/x` + strings.Repeat("/items", i) + `"},`
	}
	detour := "" // each $dynamicRef leads one further, but only when the anchors of the root are looked at
	for i := range 60 {
		detour += fmt.Sprintf(`"r%d":{"$id":"r%d","$dynamicRef":"#n%d","$defs":{"x":{"$dynamicAnchor":"n%d"}}},"a%d":{"$id":"a%d","$dynamicAnchor":"n%d","$ref":"r%d"},`,
			i, i, i, i, i, i, i, i+1)
	}
	for _, tc := range []struct{ reason, schema, want string }{
		{"a long name, which the place of every subschema below repeats",
			`{"properties":{"` + long + `":{"properties":{` + many(1000, `"a%d":{}`) + `}}}}`, "JSON pointers to all subschemas"},
		{"a long name, which every error below repeats", `{"properties":{"` + long + `":{"required":[` + many(7000, "1") + `]}}}`, "paths to all parts of the schema"},
		{"many errors far down", down + `{"required":[` + many(5000, "1") + `]}` + up, "paths to all parts of the schema"},
		{"anchors that are looked for far down", `{"prefixItems":[` + many(300, `{"$ref":"#a"}`) + `],"$defs":{"x":{"$anchor":"a"}},"items":` +
			down + `{"prefixItems":[` + many(300, `{}`) + `]}` + up + `}`, "anchors"},
		{"the same schemas are compiled for each reference to one around them", `{"prefixItems":[` + ladder + `{}],"x":` + strings.Repeat(`{"items":`, 20) +
			`{"prefixItems":[` + many(600, `{}`) + `]}` + strings.Repeat(`}`, 20) + `}`, "more than 10000 schemas"},
		{"true takes a place, too", `{"allOf":[` + many(12000, `true`) + `]}`, "6001 subschemas"},
		{"and false", `{"properties":{` + many(12000, `"%d":false`) + `}}`, "6001 subschemas"},
		{"more ways to write an index than one, each of which is compiled", `{"prefixItems":[{}],"items":{"$ref":"#/prefixItems/00"}}`, `list index "00": write 0`},
		{"with a sign", `{"prefixItems":[{}],"items":{"$ref":"#/prefixItems/%2B0"}}`, `list index "+0": write 0`},
		{"$dynamicRef, inside one another", `{"$ref":"r0","$defs":{` + detour + `"r60":{"$id":"r60","items":{"$ref":"callgate:///schema"}}}}`, "123 schemas, one inside the other"},
	} {
		t.Run(tc.reason, func(t *testing.T) {
			_, err := Compile([]byte(tc.schema))
			if err == nil || !strings.Contains(err.Error(), tc.want) {
				t.Fatalf("Compile: %v, want %q", err, tc.want)
			}
			checkLine(t, err.Error())
		})
	}
}

// TestReferencesAreOne: a schema is compiled once, however the references to it are written.
func TestReferencesAreOne(t *testing.T) {
	references := ""
	for i := range 256 { // every letter as it is or as %XX
		references += `{"$ref":"#/$defs/`
		for at, letter := range "abcdefgh" {
			if i>>at&1 == 1 {
				references += fmt.Sprintf("%%%x", letter)
			} else {
				references += string(letter)
			}
		}
		references += `"},`
	}
	s, err := Compile([]byte(`{"prefixItems":[` + references + `{}],"$defs":{"abcdefgh":{"allOf":[` + many(200, `{}`) + `]}}}`))
	if err != nil {
		t.Fatal(err)
	}
	if n := len(s.graph.all); n > 1000 {
		t.Errorf("500 schemas become %d", n)
	}
	for _, tc := range []struct{ reason, name, reference string }{
		{"what a URL must escape", "a b<é>/~%", "#/$defs/a%20b%3C%C3%A9%3E~1~0%25"},
		{"what many do not escape", "a b<é>", "#/$defs/a b<é>"},
		{"a number", "7", "#/$defs/7"},
		{"after a URL", "a", "callgate:///schema#/%24defs/%61"},
	} {
		s, err := Compile([]byte(`{"$defs":{"` + tc.name + `":{"type":"string"}},"items":{"$ref":"` + tc.reference + `"}}`))
		if err != nil {
			t.Errorf("%s: %v", tc.reason, err)
			continue
		}
		if s.Validate([]byte(`["a"]`)) != nil || s.Validate([]byte(`[1]`)) == nil {
			t.Errorf("%s: the reference leads elsewhere", tc.reason)
		}
	}
	_, err = Compile([]byte(`{"items":{"$ref":"#/$defs/%61"}}`))
	if err == nil || !strings.Contains(err.Error(), `/items/$ref: the reference "#/$defs/%61" leads to nothing`) {
		t.Errorf("%v does not show the reference as it is written", err)
	}
}

// TestErrorBounds: what errors hold and quote counts, not only how many there are.
func TestErrorBounds(t *testing.T) {
	long := strings.Repeat("K", 5000)
	strings20000 := `[` + many(20000, `""`) + `]`
	for _, tc := range []struct{ reason, schema, value, want string }{
		{"a long name on the path to the schema", `{"$defs":{"` + long + `":{"$anchor":"a","items":{"type":"integer"}}},"$ref":"#a"}`, strings20000, "paths to all parts of the value"},
		{"a long name beside the path to the value", `{"dependentSchemas":{"` + long + `":{"properties":{"a":{"items":{"type":"integer"}}}}}}`,
			`{"` + long + `":1,"a":` + strings20000 + `}`, "paths to all parts of the value"},
		{"a long name that is missing", `{"items":{"required":["` + strings.Repeat("K", 200000) + `"]}}`, `[` + many(50000, `{}`) + `]`, "steps"},
		{"a long name that another requires", `{"items":{"dependentRequired":{"a":["` + strings.Repeat("K", 200000) + `"]}}}`, `[` + many(30000, `{"a":1}`) + `]`, "steps"},
		{"a metaschema, which charges nothing", `{"$ref":"http://json-schema.org/draft-07/schema#"}`, `{"required":[` + many(600000, `[]`) + `]}`, "metaschema"},
		{"a metaschema many times", `{` + in7 + `,"allOf":[` + many(3000, `{"$ref":"http://json-schema.org/draft-07/schema#"}`) + `]}`, `{"required":[` + many(1000, `[]`) + `]}`, "metaschema"},
		{"violations that multiply, each of which takes long", `{"items":{"anyOf":[{"$ref":"#"},{"$ref":"#"}]},"not":{}}`,
			strings.Repeat("[", 30) + strings.Repeat("]", 30), "3 seconds"},
	} {
		t.Run(tc.reason, func(t *testing.T) {
			s, err := Compile([]byte(tc.schema))
			if err != nil {
				t.Fatal(err)
			}
			var bound *BoundError
			if err := s.Validate([]byte(tc.value)); !errors.As(err, &bound) || !strings.Contains(err.Error(), tc.want) {
				t.Fatalf("got %v, want a *BoundError with %q", err, tc.want)
			}
			checkLine(t, bound.Error())
		})
	}
}

// TestWordingIsBounded: errors are worded up to a bound even if all of them say the same.
func TestWordingIsBounded(t *testing.T) {
	leaves := make([]*jsonschema.ValidationError, 1000)
	for i := range leaves {
		leaves[i] = &jsonschema.ValidationError{KeywordLocation: "/anyOf/0/type", Message: "expected"}
	}
	for _, tc := range []struct {
		reason, want string
		root         jsonschema.ValidationError
	}{
		{"errors", "the top level: type: expected", jsonschema.ValidationError{Causes: leaves}},
		{"alternatives", "the top level: anyOf: expected; or one of 936 more",
			jsonschema.ValidationError{KeywordLocation: "/anyOf", Message: "anyOf failed", Causes: leaves}},
	} {
		worded := 0
		violations := explain(&tc.root, func(leaf *jsonschema.ValidationError) Violation {
			worded++
			return Violation{Keyword: "type", Message: leaf.Message}
		})
		if worded != maxWorded {
			t.Errorf("%d of 1000 %s are worded, want %d", worded, tc.reason, maxWorded)
		}
		if len(violations) != 1 || violations[0].String() != tc.want {
			t.Errorf("%s: %v, want %q", tc.reason, violations, tc.want)
		}
	}
}

func TestDuplicate(t *testing.T) {
	for _, tc := range []struct {
		reason, items string
		want          string // the two indexes, "" if all differ
	}{
		{"the same number in six ways", `[10,"10",1e1]`, "0 2"},
		{"a fraction of zeros", `[1.0,true,1]`, "0 2"},
		{"a negative exponent", `[0.10,100e-3]`, "0 1"},
		{"zero has no sign and no exponent", `[0,-0.0e99]`, "0 1"},
		{"a sign", `[1,-1]`, ""},
		{"an exponent", `[1,10,0.1,100]`, ""},
		{"more digits than a float64 has", `[9007199254740993,9007199254740992]`, ""},
		{"far apart", `[1e308,1e-308,1e-307]`, ""},
		{"the order of members does not matter", `[{"a":1,"b":[2]},{"b":[2.0],"a":1}]`, "0 1"},
		{"the order of items does", `[[1,2],[2,1]]`, ""},
		{"shapes", `[[],[[]],[[],[]],[[[]]],{},[{}],"",null,false,0]`, ""},
		{"texts that look like parts of others", `[["a","b"],["a\",\"b"],["ab"],["a1\"b"],"a","[",["["]]`, ""},
		{"a text that looks like a number, and one like its key", `[1,"1","#1e0;",["#1e0;"]]`, ""},
		{"the first pair is told", `[3,1,2,1,3]`, "1 3"},
	} {
		value, err := jsonvalue.Decode([]byte(tc.items))
		if err != nil {
			t.Fatal(err)
		}
		got := ""
		if i, j, found := duplicate(value.([]any)); found {
			got = fmt.Sprint(i, j)
		}
		if got != tc.want {
			t.Errorf("%s: %q, want %q", tc.reason, got, tc.want)
		}
	}
}

// TestUniqueItemsTakesNoMinute: many items that differ, but not for the hash of the library.
func TestUniqueItemsTakesNoMinute(t *testing.T) {
	forests := [][]string{{""}} // by number of lists
	for n := 1; n <= 11; n++ {
		var all []string
		for first := range n {
			for _, inside := range forests[first] {
				for _, rest := range forests[n-1-first] {
					all = append(all, strings.TrimSuffix("["+inside+"],"+rest, ","))
				}
			}
		}
		forests = append(forests, all)
	}
	value := []byte(`[[` + strings.Join(forests[11], `],[`) + `]]`)
	for _, schema := range []string{`{"uniqueItems":true}`, `{` + in4 + `,"definitions":{"u":{"uniqueItems":true}},"allOf":[{"$ref":"#/definitions/u"}]}`} {
		s, err := Compile([]byte(schema))
		if err != nil {
			t.Fatal(err)
		}
		if err := s.Validate(value); err != nil {
			t.Errorf("%s: %v", schema, err)
		}
	}
}
