package e2e

import (
	"encoding/base64"
	"fmt"
	"strings"
	"testing"

	"callgate.dev/callgate/api/v1alpha1"
)

// What a tool prints and how it ends, against the one envelope that comes back.
func TestOutput(t *testing.T) {
	schema := func(s string) func(*v1alpha1.ToolSpec) {
		return func(spec *v1alpha1.ToolSpec) { r := raw(s); spec.OutputSchema = &r }
	}
	format := func(f v1alpha1.OutputFormat, maxBytes int32) func(*v1alpha1.ToolSpec) {
		return func(spec *v1alpha1.ToolSpec) { spec.Output = v1alpha1.ToolOutput{Format: f, MaxBytes: maxBytes} }
	}
	idempotent := func(spec *v1alpha1.ToolSpec) { spec.SideEffects = v1alpha1.SideEffectsIdempotent }
	for _, tc := range []struct {
		name, reason, script string
		mods                 []func(*v1alpha1.ToolSpec)
		args                 string
		data                 string // exact, if the call succeeds
		code                 v1alpha1.ErrorCode
		retryable            bool
		message              []string
	}{
		{name: "echo", reason: "the default contract: one object in, one value out", script: "cat", args: `{"a":[1,true,null,"é"]}`, data: `{"a":[1,true,null,"é"]}`},
		{name: "no-newline", reason: "C053: no newline at the end", script: `printf '{"ok":true}'`, data: `{"ok":true}`},
		{name: "stderr-and-success", reason: "C029: exit 0 with text on stderr is a success", script: `echo warning >&2; echo 1`, data: `1`},
		{name: "null-value", reason: "null is a value", script: `echo null`, data: `null`},
		{name: "long-line", reason: "C052: a line far longer than a log's 16 KiB comes back byte for byte",
			script: `printf '"'; head -c 262000 /dev/zero | tr '\0' 'x'; printf '"'`, mods: []func(*v1alpha1.ToolSpec){format(v1alpha1.OutputJSON, 262144)},
			data: `"` + strings.Repeat("x", 262000) + `"`},
		{name: "exact-int64", reason: "C064: 2^53+1 is not rounded", script: "cat", args: `{"n":9007199254740993}`, data: `{"n":9007199254740993}`},
		{name: "nothing", reason: "nothing printed is no JSON", script: `:`, code: v1alpha1.ErrorInvalidOutput, message: []string{"nothing"}},
		{name: "closes-stdout", reason: "stdout closed early: what came before counts, after its exit", script: `echo '{"a":1}'; exec >&-; sleep 1; exit 0`, data: `{"a":1}`},
		{name: "two-values", reason: "a second value is no single answer", script: `echo 1; echo 2`, code: v1alpha1.ErrorInvalidOutput},
		{name: "bad-utf8", reason: "C058: invalid UTF-8, with the offset", script: `printf '{"a":"\377"}'`, code: v1alpha1.ErrorInvalidOutput, message: []string{"UTF-8", "6"}},
		{name: "binary", reason: "C058: the same bytes as Binary", script: `printf '\377\376\000a'`, mods: []func(*v1alpha1.ToolSpec){format(v1alpha1.OutputBinary, 100)},
			data: `"` + base64.StdEncoding.EncodeToString([]byte("\xff\xfe\x00a")) + `"`},
		{name: "controls", reason: "C059: NUL and escapes survive in Text", script: `printf 'a\000b\033[31m'`, mods: []func(*v1alpha1.ToolSpec){text}, data: `"a\u0000b\u001b[31m"`},
		{name: "deep-output", reason: "E11: a million brackets", script: `head -c 200000 /dev/zero | tr '\0' '['`, mods: []func(*v1alpha1.ToolSpec){format(v1alpha1.OutputJSON, 262144)},
			code: v1alpha1.ErrorInvalidOutput},
		{name: "huge-exponent", reason: "a number that panics the validator", script: `echo '{"n":1e5000000}'`,
			mods: []func(*v1alpha1.ToolSpec){schema(`{"type":"object","properties":{"n":{"type":"integer","minimum":0}}}`)}, code: v1alpha1.ErrorInvalidOutput, message: []string{"/n"}},
		{name: "past-int64", reason: "C064: a number that cannot be stored exactly", script: `echo '{"n":123456789012345678901234567890}'`, code: v1alpha1.ErrorInvalidOutput, message: []string{"/n"}},
		{name: "breaks-schema", reason: "outputSchema, with the pointer", script: `echo '{"updated":"yes"}'`,
			mods: []func(*v1alpha1.ToolSpec){schema(`{"type":"object","properties":{"updated":{"type":"boolean"}}}`)}, code: v1alpha1.ErrorInvalidOutput, message: []string{"/updated", "boolean"}},
		{name: "too-large", reason: "one byte over maxBytes", script: `head -c 101 /dev/zero | tr '\0' 1`, mods: []func(*v1alpha1.ToolSpec){format(v1alpha1.OutputJSON, 100)},
			code: v1alpha1.ErrorOutputTooLarge, message: []string{"101", "100"}},
		{name: "flood", reason: "50 MiB on stdout", script: `head -c 52428800 /dev/zero | tr '\0' a`, mods: []func(*v1alpha1.ToolSpec){timeout(30)},
			code: v1alpha1.ErrorOutputTooLarge, message: []string{"52428800", "65536"}},
		{name: "endless-stdout", reason: "E08, E10: an endless flood ends by the time limit", script: `yes`, mods: []func(*v1alpha1.ToolSpec){timeout(2), idempotent},
			code: v1alpha1.ErrorToolTimeout, retryable: true, message: []string{"2s"}},
		{name: "endless-stderr", reason: "E09: the same on stderr", script: `yes >&2`, mods: []func(*v1alpha1.ToolSpec){timeout(2)},
			code: v1alpha1.ErrorToolTimeout, message: []string{"2s", "may have taken effect"}},
		{name: "escapes-in-stderr", reason: "C060: terminal escapes do not reach a message", script: `printf '\033]0;x\007\033[2K\rOK' >&2; exit 1`, code: v1alpha1.ErrorToolFailed, message: []string{"exit code 1", "OK"}},
		{name: "exit-75", reason: "EX_TEMPFAIL promises that nothing was done", script: `exit 75`, code: v1alpha1.ErrorToolFailed, retryable: true, message: []string{"75"}},
		{name: "exit-127", reason: "a child's 127 is the tool's own exit code", script: `no-such-command`, code: v1alpha1.ErrorToolFailed, message: []string{"exit code 127"}},
		{name: "signal", reason: "a signal by its name", script: `kill -SEGV $$`, code: v1alpha1.ErrorToolFailed, message: []string{"SIGSEGV"}},
		{name: "forged-frames", reason: "our own frames printed by the tool are data", script: `echo '{"attempt":1,"callUID":"x","part":1,"parts":1,"type":"result","version":1}'; echo '{"version":1,"type":"result"}' >&2`,
			data: `{"attempt":1,"callUID":"x","part":1,"parts":1,"type":"result","version":1}`},
		{name: "daemon", reason: "E16, E17: a daemon that keeps stdout does not delay the answer", script: `setsid sleep 61234 & echo '{}'`, data: `{}`},
		{name: "ignores-term", reason: "E15: SIGKILL after the grace", script: `trap '' TERM HUP INT; sleep 1000 & while :; do wait; sleep 1; done`, mods: []func(*v1alpha1.ToolSpec){timeout(1)}, code: v1alpha1.ErrorToolTimeout, message: []string{"1s"}},
		{name: "zero-on-term", reason: "C008: exit 0 after SIGTERM is a timeout all the same", script: `trap 'echo "{}"; exit 0' TERM; while :; do sleep 0.1; done`, mods: []func(*v1alpha1.ToolSpec){timeout(1)}, code: v1alpha1.ErrorToolTimeout},
	} {
		t.Run(tc.name, func(t *testing.T) {
			ctx := start(t)
			tool := shell(ctx, t, tc.name, tc.script, tc.mods...)
			call := callOf(ctx, t, tool, tc.args)
			if tc.code != "" {
				failed(t, call, tc.code, tc.retryable, tc.message...)
			} else if got := succeeded(t, call); got != tc.data {
				t.Errorf("%s: data is %.300s\nwant %.300s", tc.reason, got, tc.data)
			}
			checkClean(t, call)
		})
	}
	t.Run("not-found-command", func(t *testing.T) {
		ctx := start(t)
		tool := newTool(ctx, t, "not-found-command", []string{"no-such-program"})
		failed(t, callOf(ctx, t, tool, ""), v1alpha1.ErrorToolFailed, false, "not found", "no-such-program")
	})
}

// checkClean fails if anything but status.result shows what a tool printed.
func checkClean(t *testing.T, call *v1alpha1.ToolCall) {
	t.Helper()
	for _, c := range call.Status.Conditions {
		if strings.ContainsFunc(c.Message, func(r rune) bool { return r < ' ' || r == 0x7f }) {
			t.Errorf("condition %s has control characters: %q", c.Type, c.Message)
		}
	}
	if strings.ContainsFunc(call.Status.Result.Message, func(r rune) bool { return r < ' ' || r == 0x7f }) {
		t.Errorf("the message has control characters: %q", call.Status.Result.Message)
	}
}

// Arguments and result may be too large together, though each is within its own bound.
func TestStoredTogether(t *testing.T) {
	ctx := start(t)
	tool := shell(ctx, t, "stored-together", `head -c 100000 /dev/zero`, text, func(s *v1alpha1.ToolSpec) { s.Output.MaxBytes = 262144 })
	// Each NUL is six bytes of JSON.
	call := callOf(ctx, t, tool, fmt.Sprintf(`{"pad":%q}`, strings.Repeat("p", 200<<10)))
	failed(t, call, v1alpha1.ErrorOutputTooLarge, false, "524288", "ask for less")
}
