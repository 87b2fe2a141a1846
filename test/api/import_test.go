package api

import (
	"bytes"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"callgate.dev/callgate/internal/importer"
)

// One definition of each kind, with what YAML and JSON like to lose.
const definitions = `{"tools": [
	{"name": "get_order", "description": "Line one: #1\n  line two\n", "annotations": {"readOnlyHint": true},
	 "inputSchema": {"$schema": "http://json-schema.org/draft-07/schema#", "type": "object", "properties": {
		"no": {"enum": ["no", "on", "1e3", "", null, 1.5, 9223372036854775807]}, "y": {"type": "integer", "maximum": 1e3}}},
	 "outputSchema": {"type": "object", "properties": {"total": {"type": "number"}}}},
	{"type": "function", "function": {"name": "Set-Status_", "description": "x", "parameters": {"type": "object", "properties": {}}}},
	{"type": "function", "name": "now"}]}`

// What `kubectl callgate import` prints, the API server takes as it is once there is an image, with no field unknown; and
// it refuses what was not filled in, with words that say so.
func TestImportedTools(t *testing.T) {
	texts := map[string][]byte{"own": []byte(definitions)}
	if folder := os.Getenv("TOOL_DEFINITIONS"); folder != "" {
		files, err := filepath.Glob(filepath.Join(folder, "*.json"))
		if err != nil {
			t.Fatal(err)
		}
		for _, file := range files {
			if texts[filepath.Base(file)], err = os.ReadFile(file); err != nil {
				t.Fatal(err)
			}
		}
		delete(texts, "index.json") // says where the others come from
	} else {
		t.Log("TOOL_DEFINITIONS is not set: only the test's own definitions are imported")
	}
	namespace := newNamespace(t)
	apply := func(t *testing.T, text []byte, image string) (names []string, answers []answer) {
		t.Helper()
		tools, _, err := importer.Tools(text, importer.Options{Namespace: namespace, Image: image})
		if err != nil {
			t.Fatal(err)
		}
		for i := range tools {
			var document bytes.Buffer
			if err := importer.WriteYAML(&document, tools[i:i+1]); err != nil {
				t.Fatal(err)
			}
			names = append(names, tools[i].Name)
			answers = append(answers, admin.do(t, http.MethodPatch, "/apis/callgate.dev/v1alpha1/namespaces/"+namespace+"/tools/"+
				tools[i].Name+"?dryRun=All&fieldManager=import&fieldValidation=Strict", applyType, document.String()))
		}
		return names, answers
	}
	for name, text := range texts {
		t.Run(name, func(t *testing.T) {
			names, answers := apply(t, text, "registry.example/tools:1")
			if len(answers) == 0 {
				t.Error("nothing was imported")
			}
			for i, answer := range answers {
				if answer.code != http.StatusCreated {
					t.Errorf("%s: refused: %s", names[i], answer)
				}
			}
			t.Logf("%d accepted", len(answers))
		})
	}

	_, answers := apply(t, []byte(definitions), "registry.example/tools:1")
	stored := answers[0].object()
	for _, tc := range []struct {
		reason string
		path   []string
		want   string
	}{
		{"the very values", []string{"spec", "inputSchema", "properties", "no"}, `{"enum":["no","on","1e3","",null,1.5,9223372036854775807]}`},
		{"a key that YAML 1.1 takes for a boolean", []string{"spec", "inputSchema", "properties", "y"}, `{"maximum":1000,"type":"integer"}`},
		{"lines and spaces", []string{"spec"}, `"description":"Line one: #1\n  line two\n"`},
		{"the hint", []string{"spec"}, `"sideEffects":"None"`},
		{"the output's schema", []string{"spec", "outputSchema", "properties"}, `{"total":{"type":"number"}}`},
	} {
		value, _ := stored.at(tc.path...).(map[string]any)
		if got := fields(value).json(t); !strings.Contains(got, tc.want) {
			t.Errorf("%s: want %s in %s", tc.reason, tc.want, got)
		}
	}

	_, answers = apply(t, []byte(definitions), "")
	for _, answer := range answers {
		if answer.code != http.StatusUnprocessableEntity || !strings.Contains(answer.message(), importer.ImagePlaceholder) ||
			!strings.Contains(answer.message(), "spec.container.image") {
			t.Errorf("without an image: want 422 that shows the placeholder, got %s", answer)
		}
	}
}
