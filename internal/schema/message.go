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

// explainLeaf words one violation: what the schema expects, from the schema itself, and what came, from the value itself.
func explainLeaf(doc, value any, leaf *jsonschema.ValidationError) Violation {
	v := Violation{Pointer: instancePointer(leaf), Keyword: lastKeyword(leaf.KeywordLocation)}
	_, fragment, _ := strings.Cut(leaf.AbsoluteKeywordLocation, "#")
	place := unescape(fragment)
	expected, found := jsonvalue.Lookup(doc, place)
	parent, _ := jsonvalue.Lookup(doc, place[:max(strings.LastIndexByte(place, '/'), 0)])
	got, _ := jsonvalue.Lookup(value, v.Pointer)
	v.Message = message(v.Keyword, expected, parent, got)
	switch {
	case v.Message != "":
	case found && expected == false:
		v.Message = "nothing is allowed here" + gotSeparator + describe(got)
	default:
		v.Message = jsonvalue.Cut(jsonvalue.Printable(leaf.Message), 200) + gotSeparator + describe(got)
	}
	return v
}

// message words a violation of keyword, or returns "" for a keyword that needs the library's own words.
func message(keyword string, expected, parent, got any) string {
	limit := func(format string) string { return fmt.Sprintf(format, show(expected)) + gotSeparator + describe(got) }
	length := func(unit string, n int) string {
		bound := "at most"
		if strings.HasPrefix(keyword, "min") {
			bound = "at least"
		}
		return fmt.Sprintf("expected %s %s %s, but it has %d", bound, show(expected), unit, n)
	}
	switch keyword {
	case "type":
		return "expected " + types(expected) + gotSeparator + describe(got)
	case "const":
		return limit("expected %s")
	case "enum":
		allowed, _ := expected.([]any)
		if len(allowed) == 0 {
			return "no value is allowed" + gotSeparator + describe(got)
		}
		return "expected one of " + list(allowed) + gotSeparator + describe(got)
	case "minimum":
		if parentOf(parent)["exclusiveMinimum"] == true {
			return limit("expected a number above %s")
		}
		return limit("expected a number of at least %s")
	case "maximum":
		if parentOf(parent)["exclusiveMaximum"] == true {
			return limit("expected a number below %s")
		}
		return limit("expected a number of at most %s")
	case "exclusiveMinimum":
		if expected == true { // draft 4
			expected = parentOf(parent)["minimum"]
		}
		return limit("expected a number above %s")
	case "exclusiveMaximum":
		if expected == true {
			expected = parentOf(parent)["maximum"]
		}
		return limit("expected a number below %s")
	case "multipleOf":
		return limit("expected a multiple of %s")
	case "format":
		return limit("expected the format %s")
	case "pattern":
		return limit("expected a match of the pattern %s")
	case "minLength", "maxLength":
		text, _ := got.(string)
		return length("characters", len([]rune(text)))
	case "minItems", "maxItems":
		items, _ := got.([]any)
		return length("items", len(items))
	case "minProperties", "maxProperties":
		object, _ := got.(map[string]any)
		return length("properties", len(object))
	case "required":
		return "missing " + list(missing(expected, got)) + "; present: " + list(names(got))
	case "additionalProperties":
		if unknown := unknownNames(parentOf(parent), got); len(unknown) > 0 {
			return "not allowed: " + list(unknown) + "; known: " + list(names(parentOf(parent)["properties"]))
		}
	case "not":
		return "expected a value that does not fit the schema of \"not\"" + gotSeparator + describe(got)
	}
	return ""
}

func parentOf(parent any) map[string]any {
	object, _ := parent.(map[string]any)
	return object
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

func names(object any) []any {
	keys := sortedKeys(parentOf(object))
	list := make([]any, len(keys))
	for i, key := range keys {
		list[i] = key
	}
	return list
}

func missing(required, got any) []any {
	wanted, _ := required.([]any)
	object := parentOf(got)
	return slices.DeleteFunc(slices.Clone(wanted), func(name any) bool {
		text, _ := name.(string)
		_, present := object[text]
		return present
	})
}

// unknownNames returns the properties of got that neither properties nor patternProperties of the schema knows.
func unknownNames(schema map[string]any, got any) []any {
	known := parentOf(schema["properties"])
	var patterns []*regexp.Regexp
	for pattern := range parentOf(schema["patternProperties"]) {
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
