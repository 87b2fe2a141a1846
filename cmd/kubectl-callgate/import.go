package main

import (
	"bufio"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"strings"
	"unicode"
	"unicode/utf8"

	"k8s.io/apimachinery/pkg/util/validation"

	"callgate.dev/callgate/internal/importer"
	"callgate.dev/callgate/internal/jsonvalue"
)

const importUsage = `Usage: kubectl callgate import FILE [--namespace NAMESPACE] [--image IMAGE]

Writes one Tool manifest for each tool definition in FILE ("-" is standard input) to standard output. FILE holds an MCP
tools/list answer or OpenAI function definitions, as JSON. What the manifests lack is the program: fill in
spec.container of each. Exit code 1 says that at least one definition was left out; standard error says which, and why.

`

// importTools is `kubectl callgate import`.
func importTools(args []string, stdin io.Reader, stdout, stderr io.Writer) int {
	var o importer.Options
	flags := flag.NewFlagSet("import", flag.ContinueOnError)
	flags.SetOutput(stderr)
	flags.StringVar(&o.Namespace, "namespace", "", "namespace of the Tools; without it, the one they are applied to")
	flags.StringVar(&o.Image, "image", "", "container image of all the Tools; without it, a placeholder that is refused until it is filled in")
	flags.Usage = func() {
		fmt.Fprint(stderr, importUsage)
		flags.PrintDefaults()
	}
	files, err := parseAnyOrder(flags, args)
	switch {
	case errors.Is(err, flag.ErrHelp):
		return exitOK
	case err != nil: // the flag set has printed it
		return exitUsage
	}
	fail := func(code int, err error) int {
		fmt.Fprintf(stderr, "kubectl callgate import: %v\n", err)
		return code
	}
	if len(files) != 1 {
		return fail(exitUsage, fmt.Errorf("want one FILE, or - for standard input, got %d", len(files)))
	}
	if err := checkOptions(o); err != nil {
		return fail(exitUsage, err)
	}

	raw, err := readBounded(files[0], stdin)
	if err != nil {
		return fail(exitError, err)
	}
	tools, problems, err := importer.Tools(raw, o)
	if err != nil {
		return fail(exitError, fmt.Errorf("%s: %w", files[0], err))
	}
	out := bufio.NewWriter(stdout)
	if err := errors.Join(importer.WriteYAML(out, tools), out.Flush()); err != nil {
		return fail(exitError, err)
	}
	code := exitOK
	for _, problem := range problems {
		fmt.Fprintln(stderr, problem)
		if problem.LeftOut {
			code = exitError
		}
	}
	return code
}

// parseAnyOrder parses flags before and after the other arguments, as kubectl does, and returns those.
func parseAnyOrder(flags *flag.FlagSet, args []string) (others []string, err error) {
	for {
		if err := flags.Parse(args); err != nil {
			return nil, err
		}
		if flags.NArg() == 0 {
			return others, nil
		}
		others = append(others, flags.Arg(0))
		args = flags.Args()[1:]
	}
}

func checkOptions(o importer.Options) error {
	if problems := validation.IsDNS1123Label(o.Namespace); o.Namespace != "" && len(problems) > 0 {
		return fmt.Errorf("--namespace %q: %s", o.Namespace, strings.Join(problems, "; "))
	}
	// As the CRD has it.
	if n := utf8.RuneCountInString(o.Image); n > 1024 || strings.ContainsFunc(o.Image, unicode.IsSpace) {
		return fmt.Errorf("--image %q has %d characters: an image has at most 1024, and no white space", jsonvalue.Cut(o.Image, 80), n)
	}
	return nil
}

// readBounded reads a file, or stdin for "-", of at most importer.MaxBytes; one byte more tells the importer that it is
// too large.
func readBounded(file string, stdin io.Reader) ([]byte, error) {
	source := stdin
	if file != "-" {
		f, err := os.Open(file)
		if err != nil {
			return nil, err
		}
		defer f.Close() // read only
		source = f
	}
	raw, err := io.ReadAll(io.LimitReader(source, importer.MaxBytes+1))
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", file, err)
	}
	return raw, nil
}
