package main

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"callgate.dev/callgate/internal/importer"
)

func TestImport(t *testing.T) {
	good := `{"name":"get_order","inputSchema":{"type":"object"},"annotations":{"readOnlyHint":true}}`
	bad := `{"name":"orders.get","inputSchema":{"type":"object"}}`
	folder := t.TempDir()
	file := func(name, content string) string {
		path := filepath.Join(folder, name)
		if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	one := file("one.json", `{"tools":[`+good+`]}`)
	mixed := file("mixed.json", `{"tools":[`+bad+`,`+good+`]}`)
	large := file("large.json", strings.Repeat(" ", importer.MaxBytes+1))

	for _, tc := range []struct {
		reason       string
		args         []string
		stdin        string
		code         int
		out          []string // parts of stdout; none: nothing is printed there
		errLines     int      // lines on stderr, -1 for any number
		errs         []string // parts of stderr
		anythingElse string   // must not be on stdout
	}{
		{"a file", []string{"import", one}, "", 0, []string{"name: get-order\n", "functionName: get_order\n", "sideEffects: None\n",
			"image: \"FILL IN: ", "# Fill in"}, 0, nil, "namespace"},
		{"standard input", []string{"import", "-"}, `[` + good + `]`, 0, []string{"name: get-order\n"}, 0, nil, ""},
		{"flags before", []string{"import", "--namespace", "tools", "--image=registry.example/a:1", one}, "", 0,
			[]string{"namespace: tools\n", "image: \"registry.example/a:1\"\n"}, 0, nil, "FILL IN"},
		{"flags behind", []string{"import", one, "--namespace=tools", "--image", "registry.example/a:1"}, "", 0,
			[]string{"namespace: tools\n", "image: \"registry.example/a:1\"\n"}, 0, nil, "FILL IN"},
		{"one is left out, the good one is printed", []string{"import", mixed}, "", 1, []string{"name: get-order\n"}, 1,
			[]string{"orders.get: left out: "}, "orders"},
		{"a note is no failure", []string{"import", "-"}, `{"tools":[` + good + `],"nextCursor":"x"}`, 0, []string{"name: get-order\n"}, 1, []string{"nextCursor"}, ""},
		{"no such file", []string{"import", folder + "/none"}, "", 1, nil, 1, []string{"none", "no such file"}, ""},
		{"a folder", []string{"import", folder}, "", 1, nil, 1, []string{"is a directory"}, ""},
		{"too large", []string{"import", large}, "", 1, nil, 1, []string{"16777216 bytes", "split it"}, ""},
		{"not JSON", []string{"import", "-"}, "tools:", 1, nil, 1, []string{"-: not one JSON value"}, ""},
		{"no file", []string{"import"}, "", 2, nil, 1, []string{"want one FILE"}, ""},
		{"two files", []string{"import", one, mixed}, "", 2, nil, 1, []string{"got 2"}, ""},
		{"an unknown flag", []string{"import", one, "--replicas=2"}, "", 2, nil, -1, []string{"replicas"}, ""},
		{"a namespace that is none", []string{"import", one, "--namespace=Tools"}, "", 2, nil, 1, []string{`"Tools"`}, ""},
		{"an image that is none", []string{"import", one, "--image=a b"}, "", 2, nil, 1, []string{`"a b"`}, ""},
		{"help", []string{"import", "--help"}, "", 0, nil, -1, []string{"-namespace", "-image", "Usage"}, ""},
		{"no command", nil, "", 2, nil, -1, []string{"import FILE"}, ""},
		{"another command", []string{"export"}, "", 2, nil, -1, []string{`"export"`, "import FILE"}, ""},
		{"help on commands", []string{"--help"}, "", 0, []string{"import FILE"}, 0, nil, ""},
	} {
		t.Run(tc.reason, func(t *testing.T) {
			var stdout, stderr bytes.Buffer
			code := run(tc.args, strings.NewReader(tc.stdin), &stdout, &stderr)
			if code != tc.code {
				t.Errorf("exit code %d, want %d; stderr: %s", code, tc.code, stderr.String())
			}
			if lines := strings.Count(stderr.String(), "\n"); tc.errLines >= 0 && lines != tc.errLines {
				t.Errorf("%d lines on stderr, want %d: %s", lines, tc.errLines, stderr.String())
			}
			if len(tc.out) == 0 && stdout.Len() > 0 || tc.anythingElse != "" && strings.Contains(stdout.String(), tc.anythingElse) {
				t.Errorf("stdout: %s", stdout.String())
			}
			for _, part := range tc.out {
				if !strings.Contains(stdout.String(), part) {
					t.Errorf("stdout lacks %q: %s", part, stdout.String())
				}
			}
			for _, part := range tc.errs {
				if !strings.Contains(stderr.String(), part) {
					t.Errorf("stderr lacks %q: %s", part, stderr.String())
				}
			}
		})
	}
}
