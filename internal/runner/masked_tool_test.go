//go:build linux

package runner

import (
	"bytes"
	"encoding/json"
	"os"
	"os/exec"
	"strings"
	"testing"

	"callgate.dev/callgate/internal/wire"
)

const (
	envSecret  = "s3cr3t-in-the-environment"
	fileSecret = "s3cr3t \"in\" a file"
)

// withSecrets is a call of a tool that has a Secret in a variable and one in a
// file, and the change that gives it both.
func withSecrets(t *testing.T, script string) (wire.Call, func(*exec.Cmd)) {
	t.Helper()
	dir := t.TempDir()
	if err := os.WriteFile(dir+"/token", []byte(fileSecret+"\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	c := call(sh(script)...)
	c.SecretEnv, c.SecretPaths = []string{"API_TOKEN"}, []string{dir}
	return c, func(cmd *exec.Cmd) { cmd.Env = append(cmd.Env, "API_TOKEN="+envSecret, "FILE="+dir+"/token") }
}

func TestWhatAToolPrintsIsMasked(t *testing.T) {
	jsonText, err := json.Marshal(map[string]string{"token": envSecret, fileSecret: "key"})
	if err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		reason, script, stdin string
		json                  bool
		stdout, stderr        string
		inStdout, inStderr    int64
	}{
		{reason: "JSON: its strings and keys, as they read", script: "cat", stdin: string(jsonText), json: true,
			stdout: `{"[masked]":"key","token":"[masked]"}`, inStdout: 2},
		{reason: "text: its bytes", script: `echo "$API_TOKEN and $(cat $FILE)"`, stdout: "[masked] and [masked]\n", inStdout: 2},
		{reason: "bytes beside it", script: `printf '\377\000%s\376' "$API_TOKEN"`, stdout: "\xff\x00[masked]\xfe", inStdout: 1},
		{reason: "stderr", script: `cat $FILE >&2; env | grep API_TOKEN >&2`, stderr: "[masked]\nAPI_TOKEN=[masked]\n", inStderr: 2},
		{reason: "a value in two writes", script: `printf s3cr3t-in- >&2; sleep 0.2; printf the-environment >&2`, stderr: "[masked]", inStderr: 1},
		{reason: "what only begins like one arrives in the end", script: `printf s3cr3t-in- >&2`, stderr: "s3cr3t-in-"},
		{reason: "numbers are no values", script: "cat", stdin: `{"n":1.50}`, json: true, stdout: `{"n":1.50}`},
	} {
		t.Run(tt.reason, func(t *testing.T) {
			t.Parallel()
			c, change := withSecrets(t, tt.script)
			c.Stdin, c.StdoutIsJSON = []byte(tt.stdin), tt.json
			s := open(t, change)
			s.send(c)
			r := s.result()
			if string(r.Stdout) != tt.stdout || string(r.StderrTail) != tt.stderr || r.StdoutMasked != tt.inStdout || r.StderrMasked != tt.inStderr {
				t.Errorf("stdout %q, stderr %q, masked %d and %d", r.Stdout, r.StderrTail, r.StdoutMasked, r.StderrMasked)
			}
			if r.StdoutBytes != int64(len(r.Stdout))+r.StdoutShrunk || r.StderrBytes != int64(len(r.StderrTail)) {
				t.Errorf("%d bytes of stdout, %d kept and %d fewer for masking; %d of stderr, %d kept",
					r.StdoutBytes, len(r.Stdout), r.StdoutShrunk, r.StderrBytes, len(r.StderrTail))
			}
			if live := s.Snapshot().Stderr; string(live) != tt.stderr {
				t.Errorf("live stderr is %q", live)
			}
		})
	}
}

// TestACutLeavesNoEndOfAValue: the tail of stderr begins anywhere, the live frames
// end anywhere.
func TestACutLeavesNoEndOfAValue(t *testing.T) {
	t.Parallel()
	for shift := range 4 {
		c, change := withSecrets(t, `printf '`+strings.Repeat("x", shift)+`' >&2; yes "$API_TOKEN" | head -n 6000 >&2`)
		s := open(t, change)
		s.send(c)
		r := s.result()
		if len(r.StderrTail) != wire.MaxStderrTailBytes || r.StderrMasked != 6000 {
			t.Fatalf("%d bytes of the tail, %d masked", len(r.StderrTail), r.StderrMasked)
		}
		for name, text := range map[string][]byte{"tail": r.StderrTail, "live": s.Snapshot().Stderr} {
			for i := 0; i+4 <= len(envSecret); i++ {
				if piece := envSecret[i : i+4]; bytes.Contains(text, []byte(piece)) {
					t.Errorf("the %s has %q of the value", name, piece)
				}
			}
		}
	}
}

func TestWordsAboutAStartAreMasked(t *testing.T) {
	t.Parallel()
	c, change := withSecrets(t, "")
	c.Argv = []string{"/opt/" + envSecret + "/run"}
	if r := run(t, c, change); strings.Contains(r.StartError, "s3cr3t") || !strings.Contains(r.StartError, "/opt/[masked]/run") || r.StderrMasked != 1 {
		t.Errorf("start error %q, %d masked", r.StartError, r.StderrMasked)
	}
}

// TestAToolDoesNotRunUnmasked: a folder that is not there is no reason to run
// without it.
func TestAToolDoesNotRunUnmasked(t *testing.T) {
	t.Parallel()
	c := call("touch", "ran")
	c.SecretPaths = []string{"/no/such/folder"}
	s := open(t)
	s.send(c)
	if r := s.result(); r.StartErrorKind != wire.StartRunnerFault || !strings.Contains(r.StartError, "/no/such/folder") {
		t.Errorf("start error %q: %q", r.StartErrorKind, r.StartError)
	}
	if _, err := os.Stat(s.dir + "/ran"); err == nil {
		t.Error("the tool ran")
	}
}

// TestNothingOfAnAnswerIsPrintedPlainly: what the runner prints is the node's
// log.
func TestNothingOfAnAnswerIsPrintedPlainly(t *testing.T) {
	t.Parallel()
	s := open(t)
	s.send(call("echo", "the answer of the tool"))
	if r := s.result(); string(r.Stdout) != "the answer of the tool\n" {
		t.Fatalf("stdout %q", r.Stdout)
	}
	printed := s.output()
	for _, line := range strings.Split(strings.TrimSpace(printed), "\n") {
		var f struct{ Data []byte }
		if err := json.Unmarshal([]byte(line), &f); err != nil {
			t.Fatalf("%q: %v", line, err)
		}
		if strings.Contains(line+string(f.Data), "answer") || bytes.Contains(f.Data, testSeal.Key) {
			t.Errorf("printed: %s", line)
		}
	}
}
