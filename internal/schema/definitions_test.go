package schema

import (
	"encoding/json"
	"os"
	"path/filepath"
	"testing"
)

// TestToolDefinitions compiles the schema of every tool definition (MCP tools/list answers and OpenAI functions) in the
// folder that TOOL_DEFINITIONS names.
func TestToolDefinitions(t *testing.T) {
	folder := os.Getenv("TOOL_DEFINITIONS")
	if folder == "" {
		t.Skip("SKIPPED: set TOOL_DEFINITIONS to a folder of tools/list answers to compile real schemas")
	}
	files, err := filepath.Glob(filepath.Join(folder, "*.json"))
	if err != nil {
		t.Fatal(err)
	}
	count := 0
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		var answer struct {
			Tools []struct {
				Name                      string
				InputSchema, OutputSchema json.RawMessage
				Function                  struct {
					Name       string
					Parameters json.RawMessage
				}
			}
		}
		if json.Unmarshal(text, &answer) != nil {
			continue // an index or another file
		}
		for _, tool := range answer.Tools {
			for _, raw := range []json.RawMessage{tool.InputSchema, tool.OutputSchema, tool.Function.Parameters} {
				if len(raw) == 0 {
					continue
				}
				count++
				if _, err := Compile(raw); err != nil {
					t.Errorf("%s: %s%s: %v", filepath.Base(file), tool.Name, tool.Function.Name, err)
				}
			}
		}
	}
	if count == 0 {
		t.Fatalf("no definitions in the %d files of %s", len(files), folder)
	}
	t.Logf("%d schemas of %d files", count, len(files))
}
