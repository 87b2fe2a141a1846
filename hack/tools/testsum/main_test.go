package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestSummary(t *testing.T) {
	for name, tc := range map[string]struct {
		reason  string
		in      string
		verbose bool
		want    []string // in the output
		not     []string
		skips   string
		err     string
	}{
		"passed": {
			reason: "a passed package is one line and its tests stay silent",
			in: `{"Action":"output","Package":"p","Test":"TestA","Output":"noise\n"}
{"Action":"pass","Package":"p","Test":"TestA","Elapsed":1.5}
{"Action":"pass","Package":"p","Elapsed":2}`,
			want: []string{"ok    p (2.0 s, 1 passed, 0 skipped)"},
			not:  []string{"noise", "TestA"},
		},
		"verbose": {
			reason:  "with -v every test is listed with its time",
			verbose: true,
			in: `{"Action":"pass","Package":"p","Test":"TestA","Elapsed":1.5}
{"Action":"pass","Package":"p"}`,
			want: []string{"pass  TestA (1.50 s)"},
		},
		"failed": {
			reason: "a failure shows what its test printed, and what other tests printed does not get in between",
			in: `{"Action":"output","Package":"p","Test":"TestA","Output":"why it failed\n"}
{"Action":"output","Package":"p","Test":"TestB","Output":"noise\n"}
{"Action":"pass","Package":"p","Test":"TestB"}
{"Action":"fail","Package":"p","Test":"TestA"}
{"Action":"fail","Package":"p"}`,
			want: []string{"FAIL  TestA", "why it failed"},
			not:  []string{"noise"},
			err:  "tests failed",
		},
		"skipped": {
			reason: "a skip is told with the last thing the test logged, and recorded",
			in: `{"Action":"output","Package":"p","Test":"TestA","Output":"=== RUN   TestA\n"}
{"Action":"output","Package":"p","Test":"TestA","Output":"    a_test.go:7: looked around\n"}
{"Action":"output","Package":"p","Test":"TestA","Output":"    a_test.go:9: needs root: uid is 1000\n"}
{"Action":"output","Package":"p","Test":"TestA","Output":"--- SKIP: TestA (0.00s)\n"}
{"Action":"skip","Package":"p","Test":"TestA"}
{"Action":"pass","Package":"p"}`,
			want:  []string{"SKIPPED  TestA in p: needs root: uid is 1000", "1 skipped"},
			skips: "p\tTestA\tneeds root: uid is 1000\n",
		},
		"build failed": {
			reason: "the compiler's words are shown and the package counts as failed",
			in: `{"ImportPath":"p [p.test]","Action":"build-output","Output":"p/a.go:3: undefined: x\n"}
{"ImportPath":"p [p.test]","Action":"build-fail"}
{"Action":"fail","Package":"p","Elapsed":0,"FailedBuild":"p [p.test]"}`,
			want: []string{"FAIL  p", "undefined: x"},
			err:  "tests failed",
		},
		"panicked": {
			reason: "a test that never ended shows what it printed",
			in: `{"Action":"run","Package":"p","Test":"TestA"}
{"Action":"output","Package":"p","Test":"TestA","Output":"panic: boom\n"}
{"Action":"fail","Package":"p","Elapsed":0.1}`,
			want: []string{"TestA did not end", "panic: boom"},
			err:  "tests failed",
		},
		"nothing": {
			reason: "a suite without a test is a mistake, not a success",
			in:     `{"Action":"skip","Package":"p","Elapsed":0}`,
			err:    "no test ran",
		},
		"no event": {
			reason: "what go itself says is passed on",
			in:     "go: no such tool\n",
			want:   []string{"go: no such tool"},
			err:    "no test ran",
		},
	} {
		t.Run(name, func(t *testing.T) {
			var out strings.Builder
			s := newSummary(&out, tc.verbose)
			if err := s.read(strings.NewReader(tc.in)); err != nil {
				t.Fatal(err)
			}
			file := filepath.Join(t.TempDir(), "skips")
			err := s.finish(file)
			if got := errorText(err); got != tc.err {
				t.Errorf("error %q, want %q (%s)", got, tc.err, tc.reason)
			}
			for _, want := range tc.want {
				if !strings.Contains(out.String(), want) {
					t.Errorf("output lacks %q (%s):\n%s", want, tc.reason, out.String())
				}
			}
			for _, not := range tc.not {
				if strings.Contains(out.String(), not) {
					t.Errorf("output has %q (%s):\n%s", not, tc.reason, out.String())
				}
			}
			recorded, err := os.ReadFile(file)
			if err != nil && !os.IsNotExist(err) {
				t.Fatal(err)
			}
			if string(recorded) != tc.skips {
				t.Errorf("recorded %q, want %q (%s)", recorded, tc.skips, tc.reason)
			}
		})
	}
}

func TestOutputIsBounded(t *testing.T) {
	m := map[string]*strings.Builder{}
	for range 100 {
		keep(m, "k", strings.Repeat("x", maxOutput/3))
	}
	keep(m, "k", strings.Repeat("y", 4*maxOutput)+"the end")
	if got := m["k"].Len(); got > maxOutput+64 {
		t.Errorf("%d bytes kept, at most about %d wanted", got, maxOutput)
	}
	if !strings.HasSuffix(m["k"].String(), "the end") {
		t.Error("the end is lost")
	}
}

func errorText(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}
