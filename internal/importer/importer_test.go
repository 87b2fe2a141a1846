package importer

import (
	"bytes"
	"fmt"
	"slices"
	"strings"
	"testing"

	"callgate.dev/callgate/api/v1alpha1"
)

const tool = `{"name":"read_file","description":"Read.","inputSchema":{"type":"object","properties":{"path":{"type":"string"}}}}`

// The shapes in which definitions come. All hold one function with one argument, path.
func TestShapes(t *testing.T) {
	parameters := `{"type":"object","properties":{"path":{"type":"string"}}}`
	bare := `{"name":"read_file","description":"Read.","parameters":` + parameters + `}`
	for _, tc := range []struct{ reason, text string }{
		{"the result of tools/list", `{"tools":[` + tool + `]}`},
		{"the whole JSON-RPC answer", `{"jsonrpc":"2.0","id":1,"result":{"tools":[` + tool + `]}}`},
		{"an array of MCP tools", ` [` + tool + "]\n"},
		{"OpenAI, Chat Completions", `[{"type":"function","function":` + bare + `}]`},
		{"OpenAI, Responses: the flat form", `[{"type":"function","strict":true,` + bare[1:] + `]`},
		{"bare functions", `[` + bare + `]`},
		{"a request to a model, as it is sent", `{"model":"m","messages":[],"tools":[{"type":"function","function":` + bare + `}]}`},
		{"one tool, no list", tool},
		{"one function, no list", `{"type":"function","function":` + bare + `}`},
		{"null where there is nothing", `{"tools":[` + strings.TrimSuffix(tool, "}") + `,"outputSchema":null,"annotations":null}],"nextCursor":null}`},
	} {
		t.Run(tc.reason, func(t *testing.T) {
			tools, problems, err := Tools([]byte(tc.text), Options{Namespace: "team", Image: "registry.example/tools:1"})
			if err != nil || len(problems) > 0 || len(tools) != 1 {
				t.Fatalf("%d tools, problems %v, error %v", len(tools), problems, err)
			}
			got := tools[0]
			if got.Name != "read-file" || got.Namespace != "team" || got.Kind != "Tool" || got.APIVersion != "callgate.dev/v1alpha1" ||
				got.Spec.FunctionName != "read_file" || got.Spec.Description != "Read." || string(got.Spec.InputSchema.Raw) != parameters ||
				got.Spec.OutputSchema != nil || got.Spec.Container.Image != "registry.example/tools:1" ||
				!slices.Equal(got.Spec.Container.Command, []string{"read_file"}) || got.Spec.SideEffects != v1alpha1.SideEffectsNonIdempotent {
				t.Errorf("got %+v", got)
			}
		})
	}
}

func TestNotDefinitions(t *testing.T) {
	for _, tc := range []struct{ reason, text, want string }{
		{"empty", "", "nothing but white space"},
		{"not JSON", "tools:\n- a", "not one JSON value"},
		{"two answers", tool + tool, "follows"},
		{"another object", `{"resources":[]}`, "without tools"},
		{"tools is no list", `{"tools":{}}`, "no list of definitions"},
		{"a string", `"x"`, "no list of definitions"},
		{"null", `null`, "no list of definitions"},
		{"no tools", `{"tools":[]}`, "empty"},
		{"an error", `{"jsonrpc":"2.0","id":1,"error":{"code":-32601,"message":"Method\nnot found"}}`, `Method\nnot found`},
		{"too large", strings.Repeat(" ", MaxBytes) + "[]", "16777216"},
		{"a flood of brackets", strings.Repeat("[", 1<<20), "deeper than 512"},
	} {
		t.Run(tc.reason, func(t *testing.T) {
			tools, _, err := Tools([]byte(tc.text), Options{})
			if err == nil || len(tools) > 0 || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("got %d tools and %v, want an error with %q", len(tools), err, tc.want)
			}
		})
	}
}

// Each row is a list of definitions beside a good one, which is always imported.
func TestProblems(t *testing.T) {
	named := func(name string) string { return `{"name":"` + name + `","inputSchema":{"type":"object"}}` }
	for _, tc := range []struct {
		reason, definitions string
		kept                string // object names, without the good one's
		says                []string
	}{
		{"a dot", named("orders.get"), "", []string{"orders.get: left out:", "a-z A-Z 0-9 _ -"}},
		{"a space and an umlaut", named("größe x"), "", []string{"größe x: left out:"}},
		{"an escape sequence", named(`\u001b[2Jx`), "", []string{`\x1b[2Jx: left out:`}},
		{"65 characters", named(strings.Repeat("a", 65)), "", []string{"65 characters", "at most 64"}},
		{"64 characters", named(strings.Repeat("a", 64)), strings.Repeat("a", 64), nil},
		{"an empty name", named(""), "", []string{"definition 2: left out: it has no name"}},
		{"a number as name", `{"name":1,"inputSchema":{}}`, "", []string{"definition 2: left out: it has no name"}},
		{"nothing of the name is left", named("__"), "", []string{"__: left out:", "no letter or digit"}},
		{"hyphens at the ends", named("_Get-It_"), "get-it", nil},
		{"two names, one object", named("get_it") + "," + named("Get-It"), "", []string{`get_it (definition 2) and Get-It (definition 3)`, `"get-it"`}},
		{"a third one", named("get_it") + "," + named("x") + "," + named("Get-It") + "," + named("get-it"), "x",
			[]string{`get_it (definition 2), Get-It (definition 4) and get-it (definition 5)`}},
		{"one name, two schemas", named("a") + `,{"name":"a","inputSchema":{"type":"object","required":["x"]}}`, "",
			[]string{"a: left out: a (definition 2) and a (definition 3)"}},
		{"the same twice", named("a") + "," + named("a"), "a", []string{"a: defined 2 times", "imported once"}},
		{"a broken one takes no name", named("a") + `,{"name":"a","inputSchema":{"type":"objekt"}}`, "a", []string{"a: left out: inputSchema:", "/type"}},
		{"a reference that is not local", `{"name":"a","inputSchema":{"properties":{"x":{"$ref":"https://example.com/s"}}}}`, "",
			[]string{"a: left out: inputSchema:", "/properties/x/$ref"}},
		{"lookahead", `{"name":"a","inputSchema":{"properties":{"x":{"pattern":"(?=y)"}}}}`, "", []string{"/properties/x/pattern"}},
		{"a broken outputSchema", `{"name":"a","inputSchema":{},"outputSchema":{"minimum":"1"}}`, "", []string{"a: left out: outputSchema:", "/minimum"}},
		{"broken parameters", `{"type":"function","function":{"name":"a","parameters":{"enum":1}}}`, "", []string{"a: left out: parameters:", "/enum"}},
		{"a schema that is no object", `{"name":"a","inputSchema":true}`, "", []string{`a: left out: inputSchema is no JSON object but "true"`}},
		{"no schema, MCP", `{"name":"a"}`, "", []string{"a: left out: it has neither inputSchema"}},
		{"no schema, OpenAI: no arguments", `{"type":"function","function":{"name":"a"}}`, "a", nil},
		{"a key twice", `{"name":"a","inputSchema":{"type":"object","type":"array"}}`, "", []string{"a: left out: /inputSchema/type:", "twice"}},
		{"the name twice", `{"name":"a","name":"b","inputSchema":{}}`, "", []string{"left out: /name:", "twice"}},
		{"half a surrogate pair", `{"name":"a","inputSchema":{"enum":["\ud800"]}}`, "", []string{"a: left out: inputSchema: /enum/0:", `\ud800`}},
		{"a tool that is no function", `{"type":"web_search"}`, "", []string{"definition 2: left out:", `"web_search"`}},
		{"a tool with a grammar", `{"type":"custom","name":"a","format":{}}`, "", []string{"a: left out:", `"custom"`}},
		{"no object", `7`, "", []string{`definition 2: left out: it is no JSON object but "7"`}},
		{"a function that is no object", `{"type":"function","function":"a"}`, "", []string{"definition 2: left out:"}},
		{"an integer past int64", `{"name":"a","inputSchema":{"maximum":18446744073709551615,"minimum":-18446744073709551615}}`, "a",
			[]string{"a: inputSchema/maximum: the API server keeps the integer 18446744073709551615 as a rounded float (and 1 more like it)"}},
	} {
		t.Run(tc.reason, func(t *testing.T) {
			tools, problems, err := Tools([]byte(`{"tools":[`+tool+`,`+tc.definitions+`]}`), Options{})
			if err != nil {
				t.Fatal(err)
			}
			var names []string
			for _, tool := range tools {
				names = append(names, tool.Name)
			}
			if got := strings.Join(names, " "); got != strings.TrimSpace("read-file "+tc.kept) {
				t.Errorf("imported %q, want read-file and %q", got, tc.kept)
			}
			printed := fmt.Sprint(problems)
			if (len(problems) == 0) != (len(tc.says) == 0) || strings.Contains(printed, "\n") {
				t.Errorf("problems: %s", printed)
			}
			for _, part := range tc.says {
				if !strings.Contains(printed, part) {
					t.Errorf("want %q in: %s", part, printed)
				}
			}
		})
	}
}

func TestSideEffects(t *testing.T) {
	for _, tc := range []struct {
		reason, annotations string
		want                v1alpha1.SideEffects
	}{
		{"reads only", `{"readOnlyHint":true}`, v1alpha1.SideEffectsNone},
		{"reads only, and says it may be repeated", `{"readOnlyHint":true,"idempotentHint":true}`, v1alpha1.SideEffectsNone},
		{"may be repeated", `{"readOnlyHint":false,"idempotentHint":true,"destructiveHint":true}`, v1alpha1.SideEffectsIdempotent},
		{"says it may not", `{"idempotentHint":false}`, v1alpha1.SideEffectsNonIdempotent},
		{"says nothing of it", `{"title":"x","destructiveHint":false}`, v1alpha1.SideEffectsNonIdempotent},
		{"a string is no promise", `{"readOnlyHint":"true"}`, v1alpha1.SideEffectsNonIdempotent},
		{"another key", `{"READONLYHINT":true}`, v1alpha1.SideEffectsNonIdempotent},
		{"no object", `[true]`, v1alpha1.SideEffectsNonIdempotent},
	} {
		t.Run(tc.reason, func(t *testing.T) {
			tools, problems, err := Tools([]byte(`[{"name":"a","inputSchema":{},"annotations":`+tc.annotations+`}]`), Options{})
			if err != nil || len(problems) > 0 || tools[0].Spec.SideEffects != tc.want {
				t.Errorf("got %+v, %v, %v, want %s", tools, problems, err, tc.want)
			}
		})
	}
}

func TestDescription(t *testing.T) {
	for _, tc := range []struct{ reason, members, want, says string }{
		{"as it is", `"description":"a\n b ","title":"T"`, "a\n b ", ""},
		{"the title instead", `"title":"T"`, "T", ""},
		{"none", `"x":1`, "", ""},
		{"16,384 characters", `"description":"` + strings.Repeat("é", 16384) + `"`, strings.Repeat("é", 16384), ""},
		{"one more", `"description":"` + strings.Repeat("é", 16385) + `"`, strings.Repeat("é", 16383) + "…", "has 16385 characters and was cut to the 16384"},
	} {
		t.Run(tc.reason, func(t *testing.T) {
			tools, problems, err := Tools([]byte(`[{"name":"a","inputSchema":{},`+tc.members+`}]`), Options{})
			if err != nil || len(tools) != 1 || tools[0].Spec.Description != tc.want {
				t.Fatalf("got %+v, %v, %v", tools, problems, err)
			}
			if printed := fmt.Sprint(problems); (len(problems) > 0) != (tc.says != "") || !strings.Contains(printed, tc.says) {
				t.Errorf("problems %s, want %q", printed, tc.says)
			}
		})
	}
}

func TestOnePageOfMany(t *testing.T) {
	tools, problems, err := Tools([]byte(`{"result":{"tools":[`+tool+`],"nextCursor":"2"}}`), Options{})
	if err != nil || len(tools) != 1 || len(problems) != 1 || problems[0].LeftOut || !strings.Contains(problems[0].String(), "nextCursor") {
		t.Errorf("got %d tools, %v, %v", len(tools), problems, err)
	}
}

// Without an image nothing may look like a Tool that works: test/api has the API server refuse it.
func TestPlaceholder(t *testing.T) {
	tools, _, err := Tools([]byte(tool), Options{})
	if err != nil || tools[0].Spec.Container.Image != ImagePlaceholder || !bytes.ContainsRune([]byte(ImagePlaceholder), ' ') {
		t.Errorf("got %+v, %v", tools, err)
	}
}
