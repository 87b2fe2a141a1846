package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strings"
	"time"

	"callgate.dev/callgate/api/v1alpha1"
	"callgate.dev/callgate/internal/jsonvalue"
)

// Bounds, in bytes, of what is shown of a call's arguments. A long text must not
// push the others out of sight: each text has a bound of its own.
const (
	maxShownText = 1 << 10
	maxShownArgs = 64 << 10
)

// shown is text of others for a terminal: on one line, without escapes.
func shown(text string) string { return jsonvalue.Cut(jsonvalue.Printable(text), maxShownText) }

// describe says what a call is that somebody is to decide about.
func describe(call *v1alpha1.ToolCall) string {
	var b strings.Builder
	line := func(name, format string, args ...any) {
		fmt.Fprintf(&b, "%-11s %s\n", name, fmt.Sprintf(format, args...))
	}
	line("ToolCall", "%s/%s", call.Namespace, call.Name)
	ref := call.Spec.ToolRef
	namespace, name := ref.Namespace, ref.Name+ref.FunctionName // exactly one of the two
	if namespace == "" {
		namespace = call.Namespace
	}
	line("Tool", "%s/%s, generation %d", namespace, name, call.Status.ToolGeneration)
	if q := call.Spec.Requester; q != nil {
		line("Requester", "%s", shown(q.Username))
	}
	for _, a := range call.Status.Approvals {
		var approvers []string
		for _, s := range a.Approvers {
			who := shown(s.Name)
			if s.Namespace != "" {
				who = s.Namespace + "/" + who
			}
			approvers = append(approvers, string(s.Kind)+" "+who)
		}
		line("Asked by", "rule %s of policy %s: %d of %d by %s until %s", a.Rule, a.Policy, len(a.Granted), a.RequiredApprovals,
			strings.Join(approvers, ", "), a.ExpireTime.UTC().Format(time.RFC3339))
	}
	line("Arguments", "%s", arguments(call))
	return b.String()
}

// arguments are those of a call as indented JSON, printable and bounded.
func arguments(call *v1alpha1.ToolCall) string {
	if call.Spec.Args == nil {
		return "{}"
	}
	decoder := json.NewDecoder(bytes.NewReader(call.Spec.Args.Raw))
	decoder.UseNumber() // as they are
	var value any
	if err := decoder.Decode(&value); err != nil {
		return "not readable: " + shown(err.Error())
	}
	var b bytes.Buffer
	encoder := json.NewEncoder(&b)
	encoder.SetEscapeHTML(false)
	encoder.SetIndent("", "  ")
	short, cut := shorten(value)
	if err := encoder.Encode(short); err != nil {
		return "not readable: " + shown(err.Error())
	}
	lines := strings.Split(strings.TrimSpace(b.String()), "\n")
	for i := range lines {
		lines[i] = jsonvalue.Printable(lines[i])
	}
	text := strings.Join(lines, "\n")
	if len(text) > maxShownArgs {
		text, cut = jsonvalue.Cut(text, maxShownArgs), true
	}
	if cut {
		text += fmt.Sprintf("\nNot everything is shown. All of it: kubectl -n %s get toolcall %s -o jsonpath='{.spec.args}'", call.Namespace, call.Name)
	}
	return text
}

// shorten cuts the long texts in a value that encoding/json has decoded.
func shorten(value any) (short any, cut bool) {
	switch v := value.(type) {
	case string:
		if len(v) > maxShownText {
			return fmt.Sprintf("%s (%d bytes)", jsonvalue.Cut(v, maxShownText), len(v)), true
		}
	case []any:
		for i := range v {
			var c bool
			v[i], c = shorten(v[i])
			cut = cut || c
		}
	case map[string]any:
		for key := range v {
			var c bool
			v[key], c = shorten(v[key])
			cut = cut || c
		}
	}
	return value, cut
}
