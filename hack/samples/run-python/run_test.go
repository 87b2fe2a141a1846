// Package runpython holds the script of the sample tool run-python; the Go
// part is its test.
package runpython

import (
	"bytes"
	"encoding/json"
	"errors"
	"os/exec"
	"reflect"
	"strings"
	"testing"
)

func TestRun(t *testing.T) {
	python, err := exec.LookPath("python3")
	if err != nil {
		t.Skip("no python3 on this machine; the demo runs the script in its image")
	}
	tests := []struct {
		reason, code string
		wantExit     int
		wantOut      string // the whole JSON answer, for exit 0
		wantStderr   string // the end of stderr, otherwise
	}{
		{"what is printed and the result are returned", "print('hi')\nresult = {'n': 6 * 7}", 0, `{"stdout":"hi\n","result":{"n":42}}`, ""},
		{"no result is null", "x = 1", 0, `{"stdout":"","result":null}`, ""},
		{"text beyond ASCII", "print('h\u00e4')\nresult = '\u65e5'", 0, `{"stdout":"hä\n","result":"日"}`, ""},
		{"output of a child process is captured too", "import subprocess, sys\nprint('a', flush=True)\nsubprocess.run([sys.executable, '-c', 'print(\"b\")'])", 0, `{"stdout":"a\nb\n","result":null}`, ""},
		{"bytes that are no UTF-8 do not break the answer", "import os\nos.write(1, b'\\xff')", 0, `{"stdout":"\ufffd","result":null}`, ""},
		{"functions see the module's names, as in a script", "n = 2\ndef f(): return n\nresult = f()", 0, `{"stdout":"","result":2}`, ""},
		{"sys.exit() is a normal end", "import sys\nprint('x')\nsys.exit()", 0, `{"stdout":"x\n","result":null}`, ""},
		{"the exit code is the code's own", "import sys\nsys.exit(75)", 75, "", ""},
		{"an exception shows the author's line", "def f():\n    return 1 / 0\nf()", 1, "", "    return 1 / 0\n           ~~^~~\nZeroDivisionError: division by zero\n"},
		{"a syntax error", "x = (", 1, "", "SyntaxError: '(' was never closed\n"},
		{"a result that is no JSON", "result = {1, 2}", 1, "", "cannot be sent as JSON: Object of type set is not JSON serializable\n"},
		{"NaN is no JSON", "result = float('nan')", 1, "", "Out of range float values are not JSON compliant\n"},
		{"reading stdin finds its end", "import sys\nresult = sys.stdin.read()", 0, `{"stdout":"","result":""}`, ""},
	}
	for _, tt := range tests {
		t.Run(tt.reason, func(t *testing.T) {
			args, err := json.Marshal(map[string]string{"code": tt.code})
			if err != nil {
				t.Fatal(err)
			}
			var stdout, stderr bytes.Buffer
			cmd := exec.CommandContext(t.Context(), python, "-I", "run.py")
			cmd.Stdin, cmd.Stdout, cmd.Stderr = bytes.NewReader(args), &stdout, &stderr
			err = cmd.Run()
			var exit *exec.ExitError
			if err != nil && !errors.As(err, &exit) {
				t.Fatal(err)
			}
			if got := cmd.ProcessState.ExitCode(); got != tt.wantExit {
				t.Fatalf("exit %d, want %d; stderr: %s", got, tt.wantExit, stderr.String())
			}
			if tt.wantExit != 0 {
				if stdout.Len() > 0 || !strings.HasSuffix(stderr.String(), tt.wantStderr) || strings.Contains(stderr.String(), "run.py") {
					t.Errorf("stdout %q, stderr %q, want the latter to end in %q and not to show run.py", stdout.String(), stderr.String(), tt.wantStderr)
				}
				return
			}
			var got, want any
			if err := errors.Join(json.Unmarshal(stdout.Bytes(), &got), json.Unmarshal([]byte(tt.wantOut), &want)); err != nil {
				t.Fatal(err, stdout.String())
			}
			if !reflect.DeepEqual(got, want) {
				t.Errorf("got %s, want %s", stdout.String(), tt.wantOut)
			}
		})
	}
}
