package schema

import (
	"encoding/json"
	"fmt"
	"regexp"
	"slices"
	"strings"

	"github.com/santhosh-tekuri/jsonschema/v5"

	"callgate.dev/callgate/internal/jsonvalue"
)

// gotSeparator stands between what was expected and what came.
const gotSeparator = ", but it is "

// shownNames is how many names or allowed values a message lists.
const shownNames = 8

// explainer words the violations of one value.
type explainer struct {
	schema *Schema
	value  any
	secret map[string]bool // by pointer, as far as asked
}

// leaf words one violation: what the schema expects, from the schema itself, and what came, from the value itself.
func (x *explainer) leaf(leaf *jsonschema.ValidationError) Violation {
	v := Violation{Pointer: instancePointer(leaf), Keyword: lastKeyword(leaf.KeywordLocation)}
	f := finding{keyword: v.Keyword, text: leaf.Message}
	prefix := ""
	if ofName(leaf) {
		prefix = "its name: "
		f.got = lastToken(v.Pointer)
		f.came = describe(f.got)
	} else {
		f.got, _ = jsonvalue.Lookup(x.value, v.Pointer)
		f.came = x.describe(v.Pointer, f.got)
	}
	found := false
	location, fragment, _ := strings.Cut(leaf.AbsoluteKeywordLocation, "#")
	if location == withoutFragment(x.schema.compiled.Location) { // a metaschema is not at hand
		f.place = unescape(fragment)
		f.expected, found = jsonvalue.Lookup(x.schema.doc, f.place)
		f.parent, _ = jsonvalue.Lookup(x.schema.doc, parentPointer(f.place))
		if v.Keyword == "minContains" && !found { // the library's default, which the schema does not say
			v.Keyword, f.expected, found = "contains", 1, true
		}
	}
	text := ""
	if found {
		text = f.message()
	}
	switch {
	case text != "":
	case found && f.expected == false:
		text = "nothing is allowed here" + gotSeparator + f.came
	case v.Keyword == "format" || v.Keyword == "multipleOf": // there the library repeats the value
		text = "expected another value" + gotSeparator + f.came
	default:
		text = expectation(leaf) + gotSeparator + f.came
	}
	v.Message = prefix + text
	return v
}

// finding is one violation of a keyword of our own schema.
type finding struct {
	keyword          string
	place            string // JSON pointer of the keyword
	expected, parent any    // what stands there, and around it
	got              any
	came             string // describes got
	text             string // the library's own words
}

// message words a violation, or returns "" for a keyword that needs the library's own words.
func (f finding) message() string {
	limit := func(format string) string { return fmt.Sprintf(format, show(f.expected)) + gotSeparator + f.came }
	length := func(unit string, n int) string {
		return fmt.Sprintf("expected %s %s %s, but it has %d", f.bound(), show(f.expected), unit, n)
	}
	sibling := func(keyword string) any { return object(f.parent)[keyword] }
	switch f.keyword {
	case "type":
		return "expected " + types(f.expected) + gotSeparator + f.came
	case "const":
		return limit("expected %s")
	case "enum":
		allowed, _ := f.expected.([]any)
		if len(allowed) == 0 {
			return "no value is allowed" + gotSeparator + f.came
		}
		return "expected one of " + list(allowed) + gotSeparator + f.came
	case "minimum":
		if sibling("exclusiveMinimum") == true {
			return limit("expected a number above %s")
		}
		return limit("expected a number of at least %s")
	case "maximum":
		if sibling("exclusiveMaximum") == true {
			return limit("expected a number below %s")
		}
		return limit("expected a number of at most %s")
	case "exclusiveMinimum":
		if f.expected == true { // draft 4
			f.expected = sibling("minimum")
		}
		return limit("expected a number above %s")
	case "exclusiveMaximum":
		if f.expected == true {
			f.expected = sibling("maximum")
		}
		return limit("expected a number below %s")
	case "multipleOf":
		return limit("expected a multiple of %s")
	case "format":
		return limit("expected the format %s")
	case "pattern":
		return limit("expected a match of the pattern %s")
	case "minLength", "maxLength":
		text, _ := f.got.(string)
		return length("characters", len([]rune(text)))
	case "minItems", "maxItems":
		items, _ := f.got.([]any)
		return length("items", len(items))
	case "minProperties", "maxProperties":
		return length("properties", len(object(f.got)))
	case "minContains", "maxContains":
		_, matches, _ := strings.Cut(f.text, ", but got ")
		return fmt.Sprintf("expected %s %s items that fit the schema of \"contains\", but %s do", f.bound(), show(f.expected), matches)
	case "uniqueItems":
		return "expected no two equal items, but the " + f.text
	case "additionalItems":
		prefix, _ := sibling("items").([]any)
		items, _ := f.got.([]any)
		return fmt.Sprintf("expected at most %d items, but it has %d", len(prefix), len(items))
	case "required":
		return "missing " + list(missing(f.expected, f.got)) + "; present: " + list(names(f.got))
	case "dependentRequired", "dependencies":
		if name, ok := f.expected.(string); ok {
			return fmt.Sprintf("missing %s, which must come with %s; present: %s", show(name), show(lastToken(parentPointer(f.place))), list(names(f.got)))
		}
	case "additionalProperties":
		if unknown := unknownNames(object(f.parent), f.got); len(unknown) > 0 {
			return "not allowed: " + list(unknown) + "; known: " + list(names(sibling("properties")))
		}
	case "not":
		return "expected a value that does not fit the schema of \"not\"" + gotSeparator + f.came
	}
	return ""
}

// bound says which side of a limit is right.
func (f finding) bound() string {
	if strings.HasPrefix(f.keyword, "min") {
		return "at least"
	}
	return "at most"
}

// object returns value as an object, nil if it is none.
func object(value any) map[string]any {
	members, _ := value.(map[string]any)
	return members
}

func types(expected any) string {
	switch t := expected.(type) {
	case string:
		return jsonvalue.Printable(t)
	case []any:
		texts := make([]string, 0, len(t))
		for _, name := range t {
			texts = append(texts, jsonvalue.Printable(fmt.Sprint(name)))
		}
		return strings.Join(texts, " or ")
	}
	return "another type"
}

// describe says what a value is: its type, and the value itself if it is short.
func describe(value any) string {
	switch v := value.(type) {
	case nil:
		return "null"
	case bool:
		return fmt.Sprintf("the boolean %t", v)
	case string:
		return "the string " + jsonvalue.Quote(v)
	case json.Number:
		return "the number " + jsonvalue.Cut(v.String(), 40)
	case []any:
		return fmt.Sprintf("an array of %d items", len(v))
	case map[string]any:
		return fmt.Sprintf("an object of %d properties", len(v))
	}
	return "of no JSON type"
}

// show writes a value of the schema as short JSON.
func show(value any) string {
	text, err := json.Marshal(value)
	if err != nil {
		return describe(value)
	}
	if s, ok := value.(string); ok {
		return jsonvalue.Quote(s)
	}
	return jsonvalue.Cut(jsonvalue.Printable(string(text)), 80)
}

func list(values []any) string {
	if len(values) == 0 {
		return "nothing"
	}
	shown := values[:min(len(values), shownNames)]
	texts := make([]string, len(shown))
	for i, value := range shown {
		texts[i] = show(value)
	}
	text := strings.Join(texts, ", ")
	if more := len(values) - len(shown); more > 0 {
		text += fmt.Sprintf(" and %d more", more)
	}
	return text
}

func names(value any) []any {
	keys := sortedKeys(object(value))
	list := make([]any, len(keys))
	for i, key := range keys {
		list[i] = key
	}
	return list
}

func missing(required, got any) []any {
	wanted, _ := required.([]any)
	members := object(got)
	return slices.DeleteFunc(slices.Clone(wanted), func(name any) bool {
		text, _ := name.(string)
		_, present := members[text]
		return present
	})
}

// unknownNames returns the properties of got that neither properties nor patternProperties of the schema knows.
func unknownNames(schema map[string]any, got any) []any {
	known := object(schema["properties"])
	var patterns []*regexp.Regexp
	for pattern := range object(schema["patternProperties"]) {
		if compiled, err := regexp.Compile(pattern); err == nil {
			patterns = append(patterns, compiled)
		}
	}
	return slices.DeleteFunc(names(got), func(name any) bool {
		text, _ := name.(string)
		_, declared := known[text]
		return declared || slices.ContainsFunc(patterns, func(p *regexp.Regexp) bool { return p.MatchString(text) })
	})
}
