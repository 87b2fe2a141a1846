// Package importer turns the tool definitions that models are given (an MCP tools/list answer, OpenAI functions) into
// Tools. It is pure: bytes in, objects out.
package importer

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strconv"
	"strings"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"callgate.dev/callgate/api/v1alpha1"
	"callgate.dev/callgate/internal/jsonvalue"
	"callgate.dev/callgate/internal/schema"
)

// MaxBytes is how large a file of definitions may be.
const MaxBytes = 16 << 20

// ImagePlaceholder stands where nobody has said which image holds the tool. It is no legal image, and the API server
// shows it when it refuses the Tool: what is not filled in cannot look like a Tool that works.
const ImagePlaceholder = "FILL IN: the image that holds this tool"

// maxDescription is how many characters the CRD accepts.
const maxDescription = 16384

// Options say what is the same for all imported Tools. Empty fields are left to whoever applies them.
type Options struct {
	Namespace string
	Image     string
}

// Problem is something the person who imports must know about one definition, or about the whole answer.
type Problem struct {
	// Tool names the definition as it names itself, printable; "definition 3" without a name.
	Tool string
	// Reason is one line: what is wrong, and what to do.
	Reason string
	// LeftOut is true if there is no Tool because of it.
	LeftOut bool
}

func (p Problem) String() string {
	if p.LeftOut {
		return p.Tool + ": left out: " + p.Reason
	}
	return p.Tool + ": " + p.Reason
}

// Tools reads an MCP tools/list answer ({"tools": […]}, alone or as the result of a JSON-RPC answer), an array of MCP tools
// or OpenAI functions ({"type": "function", "function": {…}}, the flat form of the Responses API, or the bare function), or
// one such definition. Tools come in the order of the text, each with its schema as it was written. A definition that makes
// no Tool is a Problem, and so are two that need the same object name: then none of them is taken. The error says that the
// text as a whole is none of these.
func Tools(raw []byte, o Options) ([]v1alpha1.Tool, []Problem, error) {
	definitions, problems, err := read(raw)
	if err != nil {
		return nil, nil, err
	}
	var candidates []candidate
	for i, text := range definitions {
		c, found := parse(i+1, text)
		problems = append(problems, found...)
		if c != nil {
			candidates = append(candidates, *c)
		}
	}
	candidates, found := withoutCollisions(candidates)
	problems = append(problems, found...)
	tools := make([]v1alpha1.Tool, len(candidates))
	for i, c := range candidates {
		tools[i] = c.tool(o)
	}
	return tools, problems, nil
}

// candidate is a definition that makes a Tool unless another one has its name.
type candidate struct {
	number       int // of the definition in the text, from 1
	functionName string
	objectName   string
	description  string
	input        []byte
	output       []byte // nil without
	sideEffects  v1alpha1.SideEffects
}

func (c candidate) tool(o Options) v1alpha1.Tool {
	image := o.Image
	if image == "" {
		image = ImagePlaceholder
	}
	tool := v1alpha1.Tool{
		TypeMeta:   metav1.TypeMeta{APIVersion: v1alpha1.GroupVersion.String(), Kind: "Tool"},
		ObjectMeta: metav1.ObjectMeta{Name: c.objectName, Namespace: o.Namespace},
		Spec: v1alpha1.ToolSpec{
			FunctionName: c.functionName,
			Description:  c.description,
			InputSchema:  apiextensionsv1.JSON{Raw: c.input},
			SideEffects:  c.sideEffects,
			Container:    v1alpha1.ToolContainer{Image: image, Command: []string{c.functionName}},
		},
	}
	if c.output != nil {
		tool.Spec.OutputSchema = &apiextensionsv1.JSON{Raw: c.output}
	}
	return tool
}

// withoutCollisions keeps the candidates whose object name nobody else wants. The same definition twice is one Tool.
func withoutCollisions(candidates []candidate) ([]candidate, []Problem) {
	byName := map[string][]candidate{}
	for _, c := range candidates {
		byName[c.objectName] = append(byName[c.objectName], c)
	}
	var kept []candidate
	var problems []Problem
	for _, c := range candidates {
		group := byName[c.objectName]
		switch {
		case len(group) == 1:
			kept = append(kept, c)
		case group[0].number != c.number: // told with the first of the group
		case allSame(group):
			kept = append(kept, c)
			problems = append(problems, Problem{Tool: c.functionName, Reason: "defined " + strconv.Itoa(len(group)) +
				" times, each time the same: imported once"})
		default:
			problems = append(problems, Problem{Tool: c.functionName, LeftOut: true, Reason: fmt.Sprintf(
				"%s would all be the object %q, and differ: rename all but one in the file, or import them from files of their own into namespaces of their own",
				listed(group), c.objectName)})
		}
	}
	return kept, problems
}

func allSame(group []candidate) bool {
	for _, c := range group[1:] {
		first := group[0]
		if c.functionName != first.functionName || c.description != first.description || c.sideEffects != first.sideEffects ||
			!bytes.Equal(c.input, first.input) || !bytes.Equal(c.output, first.output) {
			return false
		}
	}
	return true
}

// listed names at most ten members of a collision.
func listed(group []candidate) string {
	const most = 10
	names := make([]string, 0, most+1)
	for i, c := range group {
		if i == most {
			names = append(names, fmt.Sprintf("%d more", len(group)-most))
			break
		}
		names = append(names, fmt.Sprintf("%s (definition %d)", c.functionName, c.number))
	}
	return strings.Join(names[:len(names)-1], ", ") + " and " + names[len(names)-1]
}

// checkSchema compiles a schema and returns it without white space. notes tell what the API server will change in it.
func checkSchema(field string, raw json.RawMessage) (text []byte, notes []string, err error) {
	if first := bytes.TrimLeft(raw, " \t\r\n"); len(first) == 0 || first[0] != '{' {
		return nil, nil, fmt.Errorf("%s is no JSON object but %s", field, jsonvalue.Quote(string(first)))
	}
	if _, err := schema.Compile(raw); err != nil {
		return nil, nil, fmt.Errorf("%s: %w", field, err)
	}
	if err := jsonvalue.Walk(raw, func(t jsonvalue.Token) error {
		switch {
		case t.Kind == jsonvalue.String && jsonvalue.LoneSurrogate(t.Raw) != "":
			return &jsonvalue.ValueError{Pointer: t.Pointer(), Detail: fmt.Sprintf(
				"the string has %s, half a surrogate pair, which is no character", jsonvalue.LoneSurrogate(t.Raw))}
		case t.Kind == jsonvalue.Number && !jsonvalue.IsInt64(string(t.Raw)) && !bytes.ContainsAny(t.Raw, ".eE"):
			notes = append(notes, fmt.Sprintf("%s%s: the API server keeps the integer %s as a rounded float",
				field, t.Pointer(), jsonvalue.Cut(string(t.Raw), 40)))
		}
		return nil
	}); err != nil {
		return nil, nil, fmt.Errorf("%s: %w", field, err)
	}
	var compact bytes.Buffer
	if err := json.Compact(&compact, raw); err != nil {
		return nil, nil, fmt.Errorf("%s: %w", field, err)
	}
	return compact.Bytes(), notes, nil
}
