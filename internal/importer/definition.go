package importer

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"regexp"
	"strings"
	"unicode/utf8"

	"callgate.dev/callgate/api/v1alpha1"
	"callgate.dev/callgate/internal/jsonvalue"
)

// object is a JSON object with its values as they are written. Unlike a struct it tells "Name" from "name".
type object map[string]json.RawMessage

func asObject(raw []byte) object {
	var o object
	if json.Unmarshal(raw, &o) != nil {
		return nil // another kind of value, or null; the text itself was checked before
	}
	return o
}

func (o object) has(key string) bool {
	value, ok := o[key]
	return ok && !bytes.Equal(value, []byte("null"))
}

// text is a member that is a string; ok is false if it is anything else, or missing.
func (o object) text(key string) (value string, ok bool) {
	if !o.has(key) {
		return "", false
	}
	err := json.Unmarshal(o[key], &value)
	return value, err == nil
}

func (o object) isTrue(key string) bool { return bytes.Equal(o[key], []byte("true")) }

// read finds the definitions in a text of any of the shapes.
func read(raw []byte) (definitions []json.RawMessage, problems []Problem, err error) {
	if len(raw) > MaxBytes {
		return nil, nil, fmt.Errorf("more than %d bytes, which is the limit: split it", MaxBytes)
	}
	if err := jsonvalue.Check(raw, jsonvalue.MaxDepth); err != nil {
		return nil, nil, fmt.Errorf("not one JSON value: %w", err)
	}
	list := json.RawMessage(raw)
	if answer := asObject(raw); answer != nil {
		if answer.has("error") && answer.has("jsonrpc") {
			message, _ := asObject(answer["error"]).text("message")
			return nil, nil, fmt.Errorf("the MCP server answered with an error, not with tools: %s",
				jsonvalue.Cut(jsonvalue.Printable(message), 200))
		}
		if result := asObject(answer["result"]); result != nil {
			answer = result
		}
		if answer.has("nextCursor") {
			problems = append(problems, Problem{Tool: "tools/list", Reason: "the answer has a nextCursor: it is one page, import the next ones, too"})
		}
		switch {
		case answer.has("tools"):
			list = answer["tools"]
		case answer.has("name") || answer.has("function"):
			return []json.RawMessage{raw}, problems, nil
		default:
			return nil, nil, errors.New("a JSON object without tools: want an MCP tools/list answer or OpenAI function definitions")
		}
	}
	if err := json.Unmarshal(list, &definitions); err != nil || definitions == nil {
		return nil, nil, errors.New("no list of definitions: want an MCP tools/list answer or OpenAI function definitions")
	}
	if len(definitions) == 0 {
		return nil, nil, errors.New("the list of definitions is empty")
	}
	return definitions, problems, nil
}

// legalName is what the CRD accepts as functionName, and what model APIs accept.
var legalName = regexp.MustCompile(`^[a-zA-Z0-9_-]{1,64}$`)

// parse reads one definition; number counts from 1. Without a candidate one of the problems says why.
func parse(number int, raw json.RawMessage) (*candidate, []Problem) {
	c := &candidate{number: number}
	shown := fmt.Sprintf("definition %d", number)
	var notes []Problem
	note := func(format string, args ...any) {
		notes = append(notes, Problem{Tool: shown, Reason: fmt.Sprintf(format, args...)})
	}
	leftOut := func(format string, args ...any) (*candidate, []Problem) {
		return nil, []Problem{{Tool: shown, LeftOut: true, Reason: fmt.Sprintf(format, args...)}}
	}

	outer := asObject(raw)
	if outer == nil {
		return leftOut("it is no JSON object but %s", jsonvalue.Quote(string(raw)))
	}
	function := outer
	if outer.has("function") {
		if function = asObject(outer["function"]); function == nil {
			return leftOut(`its member "function" is no JSON object`)
		}
	}
	name, ok := function.text("name")
	if name != "" {
		shown = jsonvalue.Cut(jsonvalue.Printable(name), 80)
	}
	if err := jsonvalue.Walk(raw, func(jsonvalue.Token) error { return nil }); err != nil {
		return leftOut("%v", err)
	}
	if kind, given := outer.text("type"); given && kind != "function" && !outer.has("inputSchema") {
		return leftOut("it is of type %s, which has no JSON Schema; only functions are imported", jsonvalue.Quote(kind))
	}
	switch {
	case !ok || name == "":
		return leftOut("it has no name")
	case len(name) > 64 && legalName.MatchString(name[:64]):
		return leftOut("its name has %d characters, a function name has at most 64: rename it where it is defined", utf8.RuneCountInString(name))
	case !legalName.MatchString(name):
		return leftOut("its name is no function name: 1 to 64 of a-z A-Z 0-9 _ - are accepted; rename it where it is defined")
	}
	c.functionName = name
	if c.objectName = objectName(name); c.objectName == "" {
		return leftOut("its name has no letter or digit that an object's name could be made of: rename it where it is defined")
	}

	c.description = description(function)
	if n := utf8.RuneCountInString(c.description); n > maxDescription {
		c.description = string([]rune(c.description)[:maxDescription-1]) + "…"
		note("its description has %d characters and was cut to the %d that are accepted", n, maxDescription)
	}
	c.sideEffects = sideEffects(asObject(outer["annotations"]))

	field, input := "inputSchema", function["inputSchema"]
	switch {
	case function.has("inputSchema"):
	case outer.has("function") || function.has("parameters") || outer.has("type"):
		field, input = "parameters", function["parameters"]
		if !function.has("parameters") { // OpenAI: the function takes none
			input = json.RawMessage(`{"type":"object","additionalProperties":false}`)
		}
	default:
		return leftOut("it has neither inputSchema (MCP) nor parameters (OpenAI)")
	}
	var changes []string
	var err error
	if c.input, changes, err = checkSchema(field, input); err != nil {
		return leftOut("%v", err)
	}
	if function.has("outputSchema") {
		var more []string
		if c.output, more, err = checkSchema("outputSchema", function["outputSchema"]); err != nil {
			return leftOut("%v", err)
		}
		changes = append(changes, more...)
	}
	if len(changes) > 0 {
		note("%s%s", changes[0], andMore(len(changes)-1))
	}
	return c, notes
}

func andMore(n int) string {
	if n == 0 {
		return ""
	}
	return fmt.Sprintf(" (and %d more like it)", n)
}

// description is the description, or else the title that MCP has for people.
func description(function object) string {
	if text, ok := function.text("description"); ok && text != "" {
		return text
	}
	text, _ := function.text("title")
	return text
}

// sideEffects reads the hints of MCP. Whoever wrote the tool says so, nobody has checked it; without a hint the careful
// answer is the default.
func sideEffects(annotations object) v1alpha1.SideEffects {
	switch {
	case annotations.isTrue("readOnlyHint"):
		return v1alpha1.SideEffectsNone
	case annotations.isTrue("idempotentHint"):
		return v1alpha1.SideEffectsIdempotent
	default:
		return v1alpha1.SideEffectsNonIdempotent
	}
}

// objectName makes a legal name of an object (DNS-1123) from a legal function name; "" if nothing of it is left.
func objectName(functionName string) string {
	return strings.Trim(strings.ReplaceAll(strings.ToLower(functionName), "_", "-"), "-")
}
