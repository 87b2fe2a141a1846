package main

import (
	"bytes"
	"strings"
	"testing"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"

	"callgate.dev/callgate/api/v1alpha1"
)

// What somebody decides about is what they see: nothing in the arguments hides
// another part of them, or speaks to the terminal.
func TestArguments(t *testing.T) {
	const more = "\nNot everything is shown. All of it: kubectl -n agents get toolcall refund -o jsonpath='{.spec.args}'"
	long := strings.Repeat("x", 5000)
	for _, tc := range []struct{ reason, args, want string }{
		{"none", "", "{}"},
		{"numbers as they are, in the order of their names", `{"b":12345678901234567890,"a":1.50}`, "{\n  \"a\": 1.50,\n  \"b\": 12345678901234567890\n}"},
		{"no HTML escapes", `{"a":"\u003ca href=\"x\"\u003e \u0026"}`, "{\n  \"a\": \"<a href=\\\"x\\\"> &\"\n}"},
		{"terminal escapes and bidirectional overrides", "{\"a\":\"\\u001b[2J\u202e\u009b1A\",\"\u2066\":1}", "{\n  \"a\": \"\\u001b[2J\\u202e\\u009b1A\",\n  \"\\u2066\": 1\n}"},
		{"line ends stay in their text", `{"a":"1\n\"b\": 2"}`, "{\n  \"a\": \"1\\n\\\"b\\\": 2\"\n}"},
		{"a long text hides nothing behind it", `{"a":["` + long + `"],"b":1}`, "{\n  \"a\": [\n    \"" + long[:1024] + "… (5000 bytes)\"\n  ],\n  \"b\": 1\n}" + more},
	} {
		call := &v1alpha1.ToolCall{}
		call.Namespace, call.Name = "agents", "refund"
		if tc.args != "" {
			call.Spec.Args = &apiextensionsv1.JSON{Raw: []byte(tc.args)}
		}
		if got := arguments(call); got != tc.want {
			t.Errorf("%s:\n%s\nwant\n%s", tc.reason, got, tc.want)
		}
	}
	call := &v1alpha1.ToolCall{Spec: v1alpha1.ToolCallSpec{Args: &apiextensionsv1.JSON{Raw: []byte(`{"a":[` + strings.Repeat("1,", 50000) + `1]}`)}}}
	if got := arguments(call); len(got) > maxShownArgs+200 || !strings.Contains(got, "Not everything is shown") {
		t.Errorf("%d bytes are shown", len(got))
	}
}

func TestApproveUsage(t *testing.T) {
	for _, tc := range []struct {
		reason string
		args   []string
		code   int
		stderr []string
	}{
		{"help", []string{"approve", "--help"}, 0, []string{"Usage: kubectl callgate approve NAME", "Approves the ToolCall", "-reason", "-namespace", "-kubeconfig", "-context", "-as-group"}},
		{"help", []string{"deny", "-h"}, 0, []string{"Usage: kubectl callgate deny NAME", "Denies the ToolCall"}},
		{"no name", []string{"approve"}, 2, []string{"kubectl callgate approve: want the NAME of one ToolCall, got 0"}},
		{"two names", []string{"deny", "a", "b"}, 2, []string{"kubectl callgate deny: want the NAME of one ToolCall, got 2"}},
		{"an unknown flag", []string{"approve", "a", "--all"}, 2, []string{"-all"}},
	} {
		var stdout, stderr bytes.Buffer
		if code := run(tc.args, strings.NewReader(""), &stdout, &stderr); code != tc.code || stdout.Len() > 0 {
			t.Errorf("%s: exit code %d, want %d; stdout %q", tc.reason, code, tc.code, stdout.String())
		}
		for _, part := range tc.stderr {
			if !strings.Contains(stderr.String(), part) {
				t.Errorf("%s: stderr lacks %q: %s", tc.reason, part, stderr.String())
			}
		}
	}
}
