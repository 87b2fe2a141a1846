package result

import (
	"strings"
	"testing"

	"callgate.dev/callgate/internal/wire"
)

// TestMaskingIsNeverSilent: whoever reads a call sees that something was masked,
// whatever became of it.
func TestMaskingIsNeverSilent(t *testing.T) {
	long := compiled(t, `{"type":"object","properties":{"token":{"minLength":20}}}`)
	onStdout := func(stdout string, before int64) wire.Result {
		return wire.Result{Stdout: []byte(stdout), StdoutBytes: before, StdoutShrunk: before - int64(len(stdout)), StdoutMasked: 1}
	}
	const both = "values of the Tool's Secrets were replaced by [masked]: 2 on stdout, 3 on stderr"
	for _, tc := range []struct {
		reason string
		spec   Spec
		run    wire.Result
		code   string
		data   string
		says   []string // in the message
	}{
		{"nothing was masked", Spec{}, printed(`{}`), "", `{}`, nil},
		{"in the data of a success", Spec{}, onStdout(`{"token":"[masked]"}`, 60), "", `{"token":"[masked]"}`,
			[]string{"values of the Tool's Secrets were replaced by [masked]: 1 on stdout"}},
		{"in text", Spec{Format: FormatText}, onStdout("[masked]", 8), "", `"[masked]"`, []string{"1 on stdout"}},
		{"on stdout and stderr", Spec{}, wire.Result{Stdout: []byte("1"), StdoutBytes: 1, StdoutMasked: 2, StderrMasked: 3}, "", `1`, []string{both}},
		{"in the words of a failure", Spec{}, wire.Result{ExitCode: 3, StderrTail: []byte("no [masked]"), StderrBytes: 11, StderrMasked: 1}, CodeToolFailed, "",
			[]string{"exit code 3: no [masked]; ", "replaced by [masked]: 1 on stderr"}},
		{"data that breaks its schema for it", Spec{Schema: long}, onStdout(`{"token":"[masked]"}`, 60), CodeInvalidOutput, "", []string{"/token", "minLength", "1 on stdout"}},
		{"two keys that are one for it", Spec{}, onStdout(`{"[masked]":1,"[masked]":2}`, 60), CodeInvalidOutput, "", []string{"[masked]", "1 on stdout"}},
		{"the size is that of what the tool printed", Spec{MaxBytes: 50}, onStdout(`{"token":"[masked]"}`, 60), CodeOutputTooLarge, "", []string{"printed 60 bytes", "1 on stdout"}},
		{"a part is still no whole", Spec{}, wire.Result{Stdout: []byte(`"[masked]"`), StdoutBytes: 100, StdoutShrunk: 10, StdoutMasked: 1}, CodeInvalidOutput, "",
			[]string{"only the first 20 were kept"}},
		{"a time limit", Spec{}, wire.Result{TimedOut: true, StderrMasked: 1}, CodeToolTimeout, "", []string{"1 on stderr"}},
		{"a long message does not push it out", Spec{}, wire.Result{ExitCode: 1, StderrTail: []byte(strings.Repeat("\x1b", 16384)), StderrBytes: 16384, StderrMasked: 1}, CodeToolFailed, "",
			[]string{"1 on stderr"}},
	} {
		t.Run(tc.reason, func(t *testing.T) {
			e := Normalize(tc.spec, tc.run)
			checkEnvelope(t, e)
			if e.ErrorCode != tc.code || string(e.Data) != tc.data || len(e.Message) > 4096 {
				t.Errorf("got %+v with data %s", e, e.Data)
			}
			for _, part := range tc.says {
				if !strings.Contains(e.Message, part) {
					t.Errorf("message %q lacks %q", e.Message, part)
				}
			}
			if (e.Message == "") != (tc.says == nil) {
				t.Errorf("message %q", e.Message)
			}
		})
	}
}
