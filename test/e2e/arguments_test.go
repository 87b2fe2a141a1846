package e2e

import (
	"fmt"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"callgate.dev/callgate/api/v1alpha1"
)

// Arguments reach the tool byte for byte, and are data there.
func TestArgumentsAreData(t *testing.T) {
	ctx := start(t)
	onStdin := shell(ctx, t, "stdin-exact", "cat")
	inArgv := newTool(ctx, t, "argv-exact", []string{"printf", "%s", "$(args.v)"}, text, func(s *v1alpha1.ToolSpec) {
		s.InputSchema = raw(`{"type":"object","properties":{"v":{}}}`)
	})
	for _, tc := range []struct{ reason, value string }{
		{"C070: nothing expands $(VAR) and $$", `$(KUBERNETES_SERVICE_HOST) $$ $(HOME) $${x} $`},
		{"C071: quotes, backquotes and newlines are no code", "'; touch /tmp/pwn; '`id`\n\"night's rate\""},
		{"C072: no second template pass", `{{args.secret}} {{ printf 1 }} ${x} $(args.v)`},
		{"C059: control characters", "a\x01\x1b[31m\u007f"},
	} {
		args := fmt.Sprintf(`{"v":%s}`, jsonOf(t, tc.value))
		if got := unquoteField(t, succeeded(t, callOf(ctx, t, onStdin, args))); got != tc.value {
			t.Errorf("%s: on stdin the tool got %q, want %q", tc.reason, got, tc.value)
		}
		if got := unquote(t, succeeded(t, callOf(ctx, t, inArgv, args))); got != tc.value {
			t.Errorf("%s: in argv the tool got %q, want %q", tc.reason, got, tc.value)
		}
	}
	if got := unquoteField(t, succeeded(t, callOf(ctx, t, onStdin, `{"v":"a\u0000b"}`))); got != "a\x00b" {
		t.Errorf("a NUL on stdin arrived as %q", got)
	}
}

// Arguments that no tool shall see end with a clear error.
func TestArgumentsRefused(t *testing.T) {
	ctx := start(t)
	tool := newTool(ctx, t, "refuses", []string{"echo", "$(args.v)"}, text, func(s *v1alpha1.ToolSpec) {
		s.InputSchema = raw(`{"type":"object","properties":{"v":{"type":["string","number","array"]}},"additionalProperties":true}`)
	})
	for _, tc := range []struct {
		reason, args string
		parts        []string
	}{
		{"the schema's word, with the pointer", `{"v":true}`, []string{"/v", "boolean"}},
		{"C064: past int64", `{"v":9223372036854775808}`, []string{"/v", "string"}},
		{"C065: written as a float", `{"v":1e30}`, []string{"/v", "string"}},
		{"nested 1,000 deep", `{"v":` + strings.Repeat("[", 1000) + strings.Repeat("]", 1000) + `}`, []string{"512"}},
		{"300 KiB", `{"v":"` + strings.Repeat("a", 300<<10) + `"}`, []string{"262144"}},
		{"a NUL cannot be in argv", `{"v":"a\u0000b"}`, []string{"NUL"}},
		{"C077: a value that would be an option", `{"v":"--output=/etc/x"}`, []string{"-"}},
	} {
		call := callOf(ctx, t, tool, tc.args)
		failed(t, call, v1alpha1.ErrorInvalidArguments, false, tc.parts...)
		if len(call.Status.Attempts) != 0 {
			t.Errorf("%s: a sandbox was used", tc.reason)
		}
	}
}

// What is nested deeper than a JSON library follows is refused by the API
// server itself, or ends like any other; nothing crashes.
func TestArgumentsNestedTenThousandDeep(t *testing.T) {
	ctx := start(t)
	tool := shell(ctx, t, "deep-args", "cat")
	clientset, err := kubernetes.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	body := fmt.Sprintf(`{"apiVersion":"callgate.dev/v1alpha1","kind":"ToolCall","metadata":{"name":"deep-args","namespace":%q},
		"spec":{"toolRef":{"name":%q,"namespace":%q},"args":{"v":%s%s}}}`,
		agentsNS, tool.Name, tool.Namespace, strings.Repeat("[", 10000), strings.Repeat("]", 10000))
	err = clientset.RESTClient().Post().AbsPath("/apis/callgate.dev/v1alpha1/namespaces/"+agentsNS+"/toolcalls").
		Body([]byte(body)).SetHeader("Content-Type", "application/json").Do(ctx).Error()
	if err != nil {
		t.Logf("refused when created: %.200s", err)
		if !strings.Contains(err.Error(), "depth") {
			t.Errorf("the API server's refusal does not name the depth: %v", err)
		}
		return
	}
	call := &v1alpha1.ToolCall{ObjectMeta: metav1.ObjectMeta{Namespace: agentsNS, Name: "deep-args"}}
	// The admin made it, whom no policy allows: what counts is that it ends.
	failed(t, finish(ctx, t, call), v1alpha1.ErrorToolNotAllowed, false)
}

// Names of arguments are no names of variables, and the environment holds
// nothing of the cluster.
func TestEnvironment(t *testing.T) {
	ctx := start(t)
	value := "$(HOME) $$ ${x}"
	tool := shell(ctx, t, "environment", "env", text, func(s *v1alpha1.ToolSpec) {
		s.Container.Env = []v1alpha1.EnvVar{{Name: "EXACT", Value: &value}}
	})
	env := unquote(t, succeeded(t, callOf(ctx, t, tool, `{"PATH":"/evil","LD_PRELOAD":"x","HOME":"/evil","db:conn":"1","a b":"2","":"3","1x":"4"}`)))
	for _, want := range []string{"EXACT=" + value + "\n", "HOME=/tmp\n", "TMPDIR=/tmp\n", "CALLGATE_IDEMPOTENCY_KEY="} {
		if !strings.Contains(env, want) {
			t.Errorf("the environment lacks %q: %s", want, env)
		}
	}
	for _, not := range []string{"evil", "LD_PRELOAD", "KUBERNETES_", "_SERVICE_HOST", "_SERVICE_PORT", "CALLGATE_POD_UID"} {
		if strings.Contains(env, not) {
			t.Errorf("the environment has %q: %s", not, env)
		}
	}
}
