package importer

import (
	"encoding/json"
	"os"
	"path/filepath"
	"testing"

	"callgate.dev/callgate/internal/schema"
)

// TestToolDefinitions imports every definition of the files in the folder that TOOL_DEFINITIONS names: each by itself, and
// each file as a whole, where only tools that share a name may be left out.
func TestToolDefinitions(t *testing.T) {
	folder := os.Getenv("TOOL_DEFINITIONS")
	if folder == "" {
		t.Skip("SKIPPED: set TOOL_DEFINITIONS to a folder of tools/list answers and OpenAI functions to import real definitions")
	}
	files, err := filepath.Glob(filepath.Join(folder, "*.json"))
	if err != nil {
		t.Fatal(err)
	}
	total := 0
	for _, file := range files {
		if filepath.Base(file) == "index.json" {
			continue // says where the others come from
		}
		t.Run(filepath.Base(file), func(t *testing.T) {
			text, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			definitions, _, err := read(text)
			if err != nil {
				t.Fatal(err)
			}
			total += len(definitions)
			same := map[string]int{}
			for _, definition := range definitions {
				tools, problems, err := Tools([]byte("["+string(definition)+"]"), Options{})
				if err != nil || len(tools) != 1 {
					t.Errorf("not imported: %v, %v", problems, err)
					continue
				}
				same[tools[0].Name]++
				if _, err := schema.Compile(tools[0].Spec.InputSchema.Raw); err != nil {
					t.Errorf("%s: %v", tools[0].Name, err)
				}
				if in := inputSchema(t, definition); !sameValue(t, in, tools[0].Spec.InputSchema.Raw) {
					t.Errorf("%s: the schema is not what it was", tools[0].Name)
				}
				document, back, _ := written(t, string(tools[0].Spec.InputSchema.Raw))
				if !sameValue(t, tools[0].Spec.InputSchema.Raw, back) {
					t.Errorf("%s: YAML does not hold the schema:\n%s", tools[0].Name, document)
				}
			}

			tools, problems, err := Tools(text, Options{})
			if err != nil {
				t.Fatal(err)
			}
			got := map[string]bool{}
			for _, tool := range tools {
				got[tool.Name] = true
			}
			for name, times := range same {
				if times == 1 && !got[name] {
					t.Errorf("%s is left out of the whole file: %v", name, problems)
				}
			}
			t.Logf("%d definitions, %d names, %d imported from the whole file; %v", len(definitions), len(same), len(tools), problems)
		})
	}
	if total == 0 {
		t.Fatalf("no definitions in the %d files of %s", len(files), folder)
	}
	t.Logf("%d definitions", total)
}

// inputSchema is read in another way than the importer does.
func inputSchema(t *testing.T, definition []byte) []byte {
	t.Helper()
	var d struct {
		InputSchema json.RawMessage `json:"inputSchema"`
		Parameters  json.RawMessage `json:"parameters"`
		Function    struct {
			Parameters json.RawMessage `json:"parameters"`
		} `json:"function"`
	}
	if err := json.Unmarshal(definition, &d); err != nil {
		t.Fatal(err)
	}
	for _, schema := range []json.RawMessage{d.InputSchema, d.Parameters, d.Function.Parameters} {
		if len(schema) > 0 {
			return schema
		}
	}
	return []byte(`{"type":"object","additionalProperties":false}`)
}
