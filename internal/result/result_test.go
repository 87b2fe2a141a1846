package result

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"
	"unicode"

	apijson "k8s.io/apimachinery/pkg/util/json"

	"callgate.dev/callgate/internal/schema"
	"callgate.dev/callgate/internal/wire"
)

func printed(stdout string) wire.Result {
	return wire.Result{Stdout: []byte(stdout), StdoutBytes: int64(len(stdout))}
}

func failedWith(code int, stderr string) wire.Result {
	return wire.Result{ExitCode: code, StderrTail: []byte(stderr), StderrBytes: int64(len(stderr))}
}

func compiled(t *testing.T, text string) *schema.Schema {
	t.Helper()
	s, err := schema.Compile([]byte(text))
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func TestNormalize(t *testing.T) {
	updated := compiled(t, `{"type":"object","required":["updated"]}`)
	integer := compiled(t, `{"type":"integer","minimum":0}`)
	jsonSpec := Spec{Format: FormatJSON, MaxBytes: 65536}
	text := Spec{Format: FormatText, MaxBytes: 65536}
	binary := Spec{Format: FormatBinary, MaxBytes: 65536}
	for _, tc := range []struct {
		reason    string
		spec      Spec
		run       wire.Result
		data      string // of a success
		code      string // of a failure
		retryable bool
		message   []string
	}{
		// Success
		{reason: "one value, no newline at the end", spec: jsonSpec, run: printed(`{"ok":true}`), data: `{"ok":true}`},
		{reason: "white space goes", spec: jsonSpec, run: printed(" {\n  \"a\": [1, \"x y\"]\n}\n"), data: `{"a":[1,"x y"]}`},
		{reason: "null is a value", spec: jsonSpec, run: printed("null\n"), data: `null`},
		{reason: "int64 stays exact", spec: jsonSpec, run: printed(`[9007199254740993,9223372036854775807,-9223372036854775808]`),
			data: `[9007199254740993,9223372036854775807,-9223372036854775808]`},
		{reason: "other numbers stay as written here", spec: jsonSpec, run: printed(`[1.0,1e2,-0,0.1,1e23]`), data: `[1.0,1e2,-0,0.1,1e23]`},
		{reason: "a whole surrogate pair, escaped controls", spec: jsonSpec, run: printed(`"\ud83d\ude00\u0000\u001b[31m"`), data: `"\ud83d\ude00\u0000\u001b[31m"`},
		{reason: "text on stderr is no failure", spec: jsonSpec, data: `1`,
			run: wire.Result{Stdout: []byte("1"), StdoutBytes: 1, StderrTail: []byte("warning"), StderrBytes: 7}},
		{reason: "no format is JSON, no bound is the default", spec: Spec{}, run: printed(`{}`), data: `{}`},
		{reason: "the output schema fits", spec: Spec{Schema: updated}, run: printed(`{"updated":true}`), data: `{"updated":true}`},
		{reason: "exactly maxBytes", spec: Spec{MaxBytes: 4}, run: printed(`null`), data: `null`},
		{reason: "text with NUL and escapes survives as JSON escapes", spec: text, run: printed("a\x00b\x1b[31m<é>\n"), data: `"a\u0000b\u001b[31m<é>\n"`},
		{reason: "no text at all is an empty string", spec: text, run: printed(""), data: `""`},
		{reason: "text that is a replacement character", spec: text, run: printed("\ufffd"), data: "\"\ufffd\""},
		{reason: "binary", spec: binary, run: printed("\xff\x00\xfe"), data: `"/wD+"`},
		{reason: "no bytes at all", spec: binary, run: printed(""), data: `""`},

		// The output
		{reason: "nothing printed", spec: jsonSpec, run: printed(" \n"), code: CodeInvalidOutput, message: []string{"printed nothing", "exactly one JSON value"}},
		{reason: "a second value", spec: jsonSpec, run: printed("{\"a\":1}\n{\"b\":2}\n"), code: CodeInvalidOutput, message: []string{"more than one", "byte 7", `{\"b\":2}`}},
		{reason: "a log line first", spec: jsonSpec, run: printed("Loading...\n{}"), code: CodeInvalidOutput, message: []string{"byte 0", "Loading", "Text"}},
		{reason: "half a value", spec: jsonSpec, run: printed(`{"a":[1,`), code: CodeInvalidOutput, message: []string{"ends after 8 bytes"}},
		{reason: "invalid UTF-8", spec: jsonSpec, run: printed("{\"a\":\"\xff\"}"), code: CodeInvalidOutput, message: []string{"byte 6 (0xff)", "UTF-8"}},
		{reason: "UTF-16", spec: jsonSpec, run: printed("\xff\xfe{\"a\":1}"), code: CodeInvalidOutput, message: []string{"byte 0 (0xff)"}},
		{reason: "a million brackets", spec: Spec{MaxBytes: 2 << 20}, run: printed(strings.Repeat("[", 1000000)), code: CodeInvalidOutput, message: []string{"deeper than 512"}},
		{reason: "an integer past int64", spec: jsonSpec, run: printed(`{"a":{"b/c":9223372036854775808}}`), code: CodeInvalidOutput,
			message: []string{"/a/b~1c", "9223372036854775808", "string"}},
		{reason: "30 digits", spec: jsonSpec, run: printed(`123456789012345678901234567890`), code: CodeInvalidOutput, message: []string{"the top level", "int64"}},
		{reason: "an integer that float64 would round", spec: jsonSpec, run: printed(`9007199254740993.0`), code: CodeInvalidOutput, message: []string{"exactly"}},
		{reason: "past float64", spec: jsonSpec, run: printed(`[0,1e400]`), code: CodeInvalidOutput, message: []string{"/1", "1e400"}},
		{reason: "a huge exponent under a schema", spec: Spec{Schema: integer}, run: printed(`1e5000000`), code: CodeInvalidOutput, message: []string{"1e5000000", "float64"}},
		{reason: "a number that would become 0", spec: jsonSpec, run: printed(`1e-400`), code: CodeInvalidOutput, message: []string{"would become 0"}},
		{reason: "half a surrogate pair", spec: jsonSpec, run: printed(`{"a":"x\uD800"}`), code: CodeInvalidOutput, message: []string{"/a", `\ud800`, "surrogate"}},
		{reason: "half a surrogate pair in a key", spec: jsonSpec, run: printed(`{"\udc00":1}`), code: CodeInvalidOutput, message: []string{"surrogate"}},
		{reason: "a key twice", spec: jsonSpec, run: printed(`[{"a":1,"\u0061":2}]`), code: CodeInvalidOutput, message: []string{"/0/a", "twice"}},
		{reason: "the output schema", spec: Spec{Schema: updated}, run: printed(`{"a":1}`), code: CodeInvalidOutput, message: []string{"outputSchema", "the top level: required", `missing "updated"`}},
		{reason: "numbers come before the schema", spec: Spec{Schema: updated}, run: printed(`{"a":1e400}`), code: CodeInvalidOutput, message: []string{"/a", "1e400"}},
		{reason: "text that is not UTF-8", spec: text, run: printed("ab\xff"), code: CodeInvalidOutput, message: []string{"byte 2 (0xff)", "Binary"}},
		{reason: "an unknown format", spec: Spec{Format: "XML"}, run: printed("1"), code: CodeInvalidOutput, message: []string{"JSON, Text nor Binary"}},
		{reason: "too large, both sizes named", spec: Spec{MaxBytes: 4}, run: printed(`false`), code: CodeOutputTooLarge, message: []string{"5 bytes", "allows 4"}},
		{reason: "50 MiB of which a part was kept", spec: jsonSpec, run: wire.Result{Stdout: []byte("y\ny"), StdoutBytes: 50 << 20}, code: CodeOutputTooLarge,
			message: []string{"52428800", "65536"}},
		{reason: "a part is never taken for the whole", spec: jsonSpec, run: wire.Result{Stdout: []byte("1"), StdoutBytes: 2}, code: CodeInvalidOutput,
			message: []string{"2 bytes", "first 1"}},

		// The end of the run
		{reason: "a timeout of a tool that may act twice", spec: Spec{Timeout: 8 * time.Second, SideEffects: "NonIdempotent"}, run: wire.Result{TimedOut: true, Signal: "SIGKILL", ExitCode: -1},
			code: CodeToolTimeout, message: []string{"limit of 8s", "may have taken effect"}},
		{reason: "side effects unsaid count as the worst", spec: Spec{Timeout: 1500 * time.Millisecond}, run: wire.Result{TimedOut: true}, code: CodeToolTimeout,
			message: []string{"limit of 1.5s", "may have taken effect"}},
		{reason: "a timeout of an idempotent tool", spec: Spec{Timeout: time.Second, SideEffects: "Idempotent"}, run: wire.Result{TimedOut: true}, code: CodeToolTimeout, retryable: true},
		{reason: "a timeout of a tool that only reads", spec: Spec{Timeout: time.Second, SideEffects: "None"}, run: wire.Result{TimedOut: true}, code: CodeToolTimeout, retryable: true},
		{reason: "a timeout wins over exit code 0 and output", spec: jsonSpec, run: wire.Result{TimedOut: true, Stdout: []byte("1"), StdoutBytes: 1}, code: CodeToolTimeout},
		{reason: "a timeout wins over exit code 75", spec: jsonSpec, run: wire.Result{TimedOut: true, ExitCode: 75}, code: CodeToolTimeout},
		{reason: "command not found", spec: jsonSpec, run: wire.Result{ExitCode: -1, StartErrorKind: wire.StartCommandNotFound, StartError: "ordres: not in PATH"},
			code: CodeToolFailed, message: []string{"not found", "ordres: not in PATH", "did not run"}},
		{reason: "command not executable", spec: jsonSpec, run: wire.Result{ExitCode: -1, StartErrorKind: wire.StartNotExecutable, StartError: "permission denied"},
			code: CodeToolFailed, message: []string{"cannot be executed", "permission denied"}},
		{reason: "a file that grew too large", spec: Spec{MaxFileBytes: 68157440}, run: wire.Result{ExitCode: -1, Signal: "SIGXFSZ"},
			code: CodeToolFailed, message: []string{"SIGXFSZ", "a file grew past 68157440 bytes", "isolation.scratchSizeLimit"}},
		{reason: "… of a command of a shell", spec: Spec{MaxFileBytes: 68157440}, run: failedWith(153, "File size limit exceeded"),
			code: CodeToolFailed, message: []string{"exit code 153 (a file grew past 68157440 bytes", "File size limit exceeded"}},
		{reason: "… where the limit is not known", spec: Spec{}, run: wire.Result{ExitCode: -1, Signal: "SIGXFSZ"},
			code: CodeToolFailed, message: []string{"a file grew past the limit"}},
		{reason: "another refusal of the kernel", spec: jsonSpec, run: wire.Result{ExitCode: -1, StartErrorKind: wire.StartRefused, StartError: "out of memory"},
			code: CodeToolFailed, message: []string{"could not be started", "out of memory"}},
		{reason: "a fault of the runner is ours", spec: jsonSpec, run: wire.Result{ExitCode: -1, StartErrorKind: wire.StartRunnerFault, StartError: "no seccomp"},
			code: CodeInternalError, retryable: true, message: []string{"no seccomp", "did not run"}},
		{reason: "a signal", spec: jsonSpec, run: wire.Result{ExitCode: -1, Signal: "SIGSEGV"}, code: CodeToolFailed, message: []string{"SIGSEGV", "nothing on stderr"}},
		{reason: "killed", spec: jsonSpec, run: wire.Result{ExitCode: -1, Signal: "SIGKILL"}, code: CodeToolFailed, message: []string{"SIGKILL", "memory"}},
		{reason: "killed, and known for what", spec: jsonSpec, run: wire.Result{ExitCode: -1, Signal: "SIGKILL", OOMKills: 1}, code: CodeToolFailed, message: []string{"SIGKILL", "ran out of memory", "limits.memory"}},
		{reason: "C027: a child was killed for memory, and the tool said nothing of it: half an answer is none", spec: jsonSpec,
			run: wire.Result{Stdout: []byte("1"), StdoutBytes: 1, OOMKills: 1}, code: CodeToolFailed, message: []string{"exit code 0", "ran out of memory", "limits.memory"}},
		{reason: "a child was killed for memory, and the tool says so", spec: jsonSpec, run: wire.Result{ExitCode: 9, OOMKills: 1}, code: CodeToolFailed, message: []string{"exit code 9", "ran out of memory"}},
		{reason: "exit 75 may be tried again", spec: Spec{SideEffects: "NonIdempotent"}, run: failedWith(75, "shop is closed\n"), code: CodeToolFailed, retryable: true,
			message: []string{"try again later", "75", "shop is closed"}},
		{reason: "an exit code and the last words", spec: jsonSpec, run: failedWith(1, "Traceback (most recent call last):\n  File \"t.py\"\n\nValueError: no order 7\n"),
			code: CodeToolFailed, message: []string{"exit code 1", "Traceback", " | ValueError: no order 7"}},
		{reason: "126 from the tool itself is an exit code", spec: jsonSpec, run: failedWith(126, ""), code: CodeToolFailed, message: []string{"exit code 126", "nothing on stderr"}},
		{reason: "terminal escapes stay visible", spec: jsonSpec, run: failedWith(1, "\x1b]0;x\x07\x1b[2K\rOK\x00\xff\u202e"), code: CodeToolFailed,
			message: []string{`\x1b]0;x\a\x1b[2K\rOK\x00\xff\u202e`}},
		{reason: "a flood of stderr is cut in front", spec: jsonSpec, run: failedWith(1, strings.Repeat("y\n", 8000)+"the end"), code: CodeToolFailed,
			message: []string{": …y | ", "| y | the end"}},
		{reason: "one endless line is cut in front", spec: jsonSpec, run: wire.Result{ExitCode: 1, StderrTail: []byte(strings.Repeat("é", 8192)[1:]), StderrBytes: 1 << 30}, code: CodeToolFailed,
			message: []string{": …é"}},
		{reason: "a flood of escapes", spec: jsonSpec, run: failedWith(1, strings.Repeat("\x1b", 16384)), code: CodeToolFailed, message: []string{"…"}},
		{reason: "a failed tool's output is not looked at", spec: Spec{MaxBytes: 1}, run: wire.Result{ExitCode: 2, Stdout: []byte("lots"), StdoutBytes: 4}, code: CodeToolFailed},
	} {
		t.Run(tc.reason, func(t *testing.T) {
			e := Normalize(tc.spec, tc.run)
			checkEnvelope(t, e)
			if tc.code == "" {
				if !e.OK || string(e.Data) != tc.data {
					t.Errorf("got %+v with data %s, want data %s", e, e.Data, tc.data)
				}
				return
			}
			if e.ErrorCode != tc.code || e.Retryable != tc.retryable {
				t.Errorf("got %+v, want %s, retryable %t", e, tc.code, tc.retryable)
			}
			for _, part := range tc.message {
				if !strings.Contains(e.Message, part) {
					t.Errorf("message %q lacks %q", e.Message, part)
				}
			}
		})
	}
}

// checkEnvelope holds for every envelope, whatever the run was.
func checkEnvelope(t *testing.T, e Envelope) {
	t.Helper()
	if e.OK {
		if e.ErrorCode != "" || e.Message != "" && !strings.HasPrefix(e.Message, "values of the Tool's Secrets were replaced") || e.Retryable || !json.Valid(e.Data) {
			t.Errorf("a success with %+v, data %q", e, e.Data)
		}
		checkStored(t, e.Data)
		return
	}
	if e.Data != nil || e.ErrorCode == "" || e.Message == "" {
		t.Errorf("a failure with %+v", e)
	}
	if len(e.Message) > 8000 || strings.ContainsFunc(e.Message, func(r rune) bool { return !unicode.IsPrint(r) }) {
		t.Errorf("the message is not one short printable line: %.3000q", e.Message)
	}
	if e.Retryable && e.ErrorCode == CodeInvalidOutput {
		t.Error("the same call would print the same")
	}
}

// checkStored does what the API server does, decode and encode, and demands that nothing but fractions past their 17th
// digit and the way a number is written has changed.
func checkStored(t *testing.T, data []byte) {
	t.Helper()
	var once, twice any
	if err := apijson.Unmarshal(data, &once); err != nil {
		t.Errorf("the API server refuses %.200s: %v", data, err)
		return
	}
	stored, err := apijson.Marshal(once)
	if err != nil {
		t.Errorf("the API server cannot store %.200s: %v", data, err)
		return
	}
	if err := apijson.Unmarshal(stored, &twice); err != nil {
		t.Errorf("the API server cannot read back %.200s: %v", stored, err)
	}
	sent, kept := decoded(t, data), decoded(t, stored)
	if difference := differs(sent, kept); difference != "" {
		t.Errorf("%.200s is stored as %.200s: %s", data, stored, difference)
	}
}

func decoded(t *testing.T, text []byte) any {
	t.Helper()
	decoder := json.NewDecoder(bytes.NewReader(text))
	decoder.UseNumber()
	var value any
	if err := decoder.Decode(&value); err != nil {
		t.Error(err)
	}
	return value
}

func differs(sent, kept any) string {
	switch s := sent.(type) {
	case map[string]any:
		k, ok := kept.(map[string]any)
		if !ok || len(k) != len(s) {
			return "another object"
		}
		for key := range s {
			if d := differs(s[key], k[key]); d != "" {
				return d
			}
		}
	case []any:
		k, ok := kept.([]any)
		if !ok || len(k) != len(s) {
			return "another array"
		}
		for i := range s {
			if d := differs(s[i], k[i]); d != "" {
				return d
			}
		}
	case json.Number:
		k, ok := kept.(json.Number)
		if !ok {
			return "no number"
		}
		a, errA := s.Int64()
		b, errB := k.Int64()
		if errA == nil && errB == nil && a != b {
			return fmt.Sprintf("%s became %s", s, k)
		}
		x, errX := s.Float64()
		y, errY := k.Float64()
		if errX != nil || errY != nil || x != y {
			return fmt.Sprintf("%s became %s", s, k)
		}
	default:
		if sent != kept {
			return fmt.Sprintf("%v became %v", sent, kept)
		}
	}
	return ""
}

// FuzzNormalize: no panic, every envelope holds together, and what is ok is stored unchanged.
func FuzzNormalize(f *testing.F) {
	f.Add("JSON", []byte(`{"a":[1,1.0,"\ud83d\ude00"]}`), []byte(""), 0, "")
	f.Add("JSON", []byte(`[1e400,-0,1e-400,9223372036854775808,0.1]`), []byte(""), 0, "")
	f.Add("JSON", []byte(`{"a":1,"a":2}`), []byte("x\x1b"), 0, "")
	f.Add("Text", []byte("a\x00\xff"), []byte(""), 0, "")
	f.Add("Binary", []byte("\xff"), []byte("\xff\xfe"), 75, "")
	f.Add("JSON", []byte(``), []byte("line\nline\r\n\xe2"), -1, "SIGKILL")
	f.Fuzz(func(t *testing.T, format string, stdout, stderr []byte, code int, signal string) {
		run := wire.Result{ExitCode: code, Signal: signal, Stdout: stdout, StdoutBytes: int64(len(stdout)), StderrTail: stderr, StderrBytes: int64(len(stderr)) + 1}
		e := Normalize(Spec{Format: format}, run)
		checkEnvelope(t, e)
		if e.OK && (code != 0 || signal != "") {
			t.Errorf("exit code %d and signal %q are a success", code, signal)
		}
	})
}
