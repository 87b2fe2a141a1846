// Command testsum reads the output of `go test -json` on stdin and prints what a person needs of it: one line per package,
// the whole output of what failed, and every skipped test with its reason, because a skipped test looks like a passed
// one everywhere else. With -v it prints a line per top-level test and subtest as it ends.
//
// It exits with 1 if anything failed or nothing ran. If CALLGATE_SKIPS names a file, a line "package<TAB>test<TAB>reason"
// is appended to it for each skipped test.
package main

import (
	"bufio"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"regexp"
	"strings"
)

// event is one line of `go test -json` (see `go doc test2json`).
type event struct {
	Action      string
	Package     string
	ImportPath  string // instead of Package in build-output and build-fail
	Test        string
	Elapsed     float64 // seconds
	Output      string
	FailedBuild string
}

// Output kept per test and per package; the end matters more than the beginning, but a test that prints without end must
// not fill our memory.
const maxOutput = 256 << 10

type test struct{ pkg, name string }

type summary struct {
	out     io.Writer
	verbose bool

	output  map[test]*strings.Builder // of a test that has not ended; name "" for the package itself
	builds  map[string]*strings.Builder
	counts  map[string]*counts
	skipped []skip
	ran     int
	failed  bool
}

type counts struct{ passed, failed, skipped int }

type skip struct{ pkg, test, reason string }

func main() {
	verbose := flag.Bool("v", false, "print every test")
	flag.Parse()
	s := newSummary(os.Stdout, *verbose)
	err := s.read(os.Stdin)
	if err == nil {
		err = s.finish(os.Getenv("CALLGATE_SKIPS"))
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "testsum:", err)
		os.Exit(1)
	}
}

func newSummary(out io.Writer, verbose bool) *summary {
	return &summary{
		out:     out,
		verbose: verbose,
		output:  map[test]*strings.Builder{},
		builds:  map[string]*strings.Builder{},
		counts:  map[string]*counts{},
	}
}

// read takes in everything up to EOF. Lines that are no event (go's own messages) are passed on.
func (s *summary) read(in io.Reader) error {
	lines := bufio.NewReader(in)
	for {
		line, err := lines.ReadBytes('\n')
		if len(line) > 0 {
			var e event
			if json.Unmarshal(line, &e) == nil && e.Action != "" {
				s.event(e)
			} else {
				fmt.Fprint(s.out, string(line))
			}
		}
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
	}
}

func (s *summary) event(e event) {
	switch {
	case e.Action == "build-output":
		keep(s.builds, e.ImportPath, e.Output)
	case e.Action == "output":
		keep(s.output, test{e.Package, e.Test}, e.Output)
	case e.Action != "pass" && e.Action != "fail" && e.Action != "skip":
		// start, run, pause, cont, bench, attr: nothing ended.
	case e.Test == "":
		s.endPackage(e)
	default:
		s.endTest(e)
	}
}

func (s *summary) endTest(e event) {
	key := test{e.Package, e.Test}
	printed := text(s.output[key])
	delete(s.output, key)
	if s.counts[e.Package] == nil {
		s.counts[e.Package] = &counts{}
	}
	c := s.counts[e.Package]
	s.ran++
	switch e.Action {
	case "pass":
		c.passed++
		s.line("  pass  %s (%.2f s)", e.Test, e.Elapsed)
	case "skip":
		c.skipped++
		reason := skipReason(printed)
		s.skipped = append(s.skipped, skip{e.Package, e.Test, reason})
		s.line("  SKIP  %s: %s", e.Test, reason)
	case "fail":
		c.failed++
		s.failed = true
		fmt.Fprintf(s.out, "  FAIL  %s (%.2f s) in %s\n%s", e.Test, e.Elapsed, e.Package, indent(printed))
	}
}

func (s *summary) endPackage(e event) {
	printed := text(s.output[test{e.Package, ""}])
	delete(s.output, test{e.Package, ""})
	c := s.counts[e.Package]
	switch {
	case e.Action == "fail":
		s.failed = true
		fmt.Fprintf(s.out, "FAIL  %s (%.1f s)\n%s%s", e.Package, e.Elapsed, indent(text(s.builds[e.FailedBuild])), indent(printed))
		// A panic or a timeout ends the process before its tests have ended: what they printed is all there is.
		for key, b := range s.output {
			if key.pkg == e.Package {
				fmt.Fprintf(s.out, "  FAIL  %s did not end\n%s", key.name, indent(text(b)))
				delete(s.output, key)
			}
		}
	case c == nil:
		s.line("--    %s: no tests", e.Package)
	default:
		cached := ""
		if strings.Contains(printed, "(cached)") {
			cached = ", cached"
		}
		fmt.Fprintf(s.out, "ok    %s (%.1f s, %d passed, %d skipped%s)\n", e.Package, e.Elapsed, c.passed, c.skipped, cached)
	}
}

// finish prints the skipped tests and returns an error if the run must not count as passed.
func (s *summary) finish(skipsFile string) error {
	for _, k := range s.skipped {
		fmt.Fprintf(s.out, "SKIPPED  %s in %s: %s\n", k.test, k.pkg, k.reason)
	}
	if skipsFile != "" && len(s.skipped) > 0 {
		f, err := os.OpenFile(skipsFile, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o644)
		if err != nil {
			return err
		}
		for _, k := range s.skipped {
			fmt.Fprintf(f, "%s\t%s\t%s\n", k.pkg, k.test, k.reason)
		}
		if err := f.Close(); err != nil {
			return err
		}
	}
	if s.failed {
		return errors.New("tests failed")
	}
	if s.ran == 0 {
		return errors.New("no test ran")
	}
	return nil
}

// line prints if every test is to be listed.
func (s *summary) line(format string, args ...any) {
	if s.verbose {
		fmt.Fprintf(s.out, format+"\n", args...)
	}
}

// logLine is what t.Skip and t.Log print: the place, then the text.
var logLine = regexp.MustCompile(`^\s+[^\s:]+\.go:\d+: (.*)$`)

// skipReason is the last thing a skipped test logged: that is where t.Skip writes.
func skipReason(output string) string {
	reason := "no reason given"
	for line := range strings.Lines(output) {
		if m := logLine.FindStringSubmatch(strings.TrimRight(line, "\n")); m != nil {
			reason = strings.TrimSpace(m[1])
		}
	}
	return strings.ReplaceAll(reason, "\t", " ")
}

func keep[K comparable](m map[K]*strings.Builder, key K, s string) {
	b := m[key]
	if b == nil {
		b = &strings.Builder{}
		m[key] = b
	}
	if b.Len()+len(s) > maxOutput {
		tail := b.String()[b.Len()/2:]
		b.Reset()
		b.WriteString("[… cut …]\n" + tail)
		if len(s) > maxOutput/2 {
			s = s[len(s)-maxOutput/2:]
		}
	}
	b.WriteString(s)
}

func text(b *strings.Builder) string {
	if b == nil {
		return ""
	}
	return b.String()
}

func indent(s string) string {
	if s == "" {
		return ""
	}
	return "    " + strings.ReplaceAll(strings.TrimRight(s, "\n"), "\n", "\n    ") + "\n"
}
