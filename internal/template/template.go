// Package template expands $(args.NAME) in the command of a Tool, once, into the final argv. The names are those of the
// arguments' top level. Values are data: what they hold is never looked at again.
package template

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"path"
	"slices"
	"strings"

	"callgate.dev/callgate/internal/jsonvalue"
)

// Bounds of the final argv.
const (
	// MaxElementBytes is the kernel's own limit for one string of argv (MAX_ARG_STRLEN, 128 KiB with the final NUL).
	MaxElementBytes = 131071
	// MaxArgvBytes bounds all elements together, each with its final NUL.
	MaxArgvBytes = 512 << 10
)

// part is either literal text or, where isArg, the name of an argument.
type part struct {
	text  string
	isArg bool
}

// parse splits an element. $$( is a literal $(; $( without "args." or without a closing parenthesis is literal, too.
func parse(element string) []part {
	var parts []part
	var literal strings.Builder
	for element != "" {
		if rest, ok := strings.CutPrefix(element, "$$("); ok {
			literal.WriteString("$(")
			element = rest
			continue
		}
		if rest, ok := strings.CutPrefix(element, "$(args."); ok {
			if name, after, closed := strings.Cut(rest, ")"); closed {
				if literal.Len() > 0 {
					parts = append(parts, part{text: literal.String()})
					literal.Reset()
				}
				parts = append(parts, part{name, true})
				element = after
				continue
			}
		}
		literal.WriteByte(element[0])
		element = element[1:]
	}
	if literal.Len() > 0 {
		parts = append(parts, part{text: literal.String()})
	}
	return parts
}

func argNames(parts []part) []string {
	var names []string
	for _, p := range parts {
		if p.isArg && !slices.Contains(names, p.text) {
			names = append(names, p.text)
		}
	}
	return names
}

// Check tells whether command may be the command of a Tool whose input schema declares the properties that hasProperty
// knows. The error is one line for the Tool's author and names the element, counted from 0 as in spec.container.command[0].
func Check(command []string, hasProperty func(string) bool) error {
	if len(command) == 0 || command[0] == "" {
		return errors.New("container.command: the program is missing: command[0] must name it")
	}
	scripts := shellScripts(command)
	for i, element := range command {
		for _, name := range argNames(parse(element)) {
			shown := jsonvalue.Quote("$(args." + name + ")")
			switch {
			case i == 0:
				return fmt.Errorf("container.command[0]: %s cannot choose the program: name the program, and pass the argument in a later element", shown)
			case slices.Contains(scripts, i):
				return fmt.Errorf("container.command[%d]: %s stands in a shell script, where its value would be run as code: "+
					`pass it as a positional argument, such as ["sh", "-c", "echo \"$1\"", "sh", %s]`, i, shown, shown)
			case !hasProperty(name):
				return fmt.Errorf("container.command[%d]: %s: `properties` of inputSchema declares no %s (only top-level names can be used)",
					i, shown, jsonvalue.Quote(name))
			}
		}
	}
	return nil
}

var shells = []string{"sh", "bash", "dash", "ash", "ksh", "mksh", "zsh"}

// shellScripts returns the indexes of the elements that a shell in the command runs as a script (sh -c SCRIPT), also
// behind another program (env sh -c SCRIPT, busybox sh -c SCRIPT) and with other options around -c.
func shellScripts(command []string) []int {
	var scripts []int
	for i, element := range command {
		if slices.Contains(shells, path.Base(element)) {
			if script := scriptAfter(command, i+1); script >= 0 {
				scripts = append(scripts, script)
			}
		}
	}
	return scripts
}

// scriptAfter reads a shell's options from element at on, and returns the index of the script of -c, or -1.
func scriptAfter(command []string, at int) int {
	runsScript := false
	for ; at < len(command); at++ {
		option := command[at]
		switch {
		case option == "--" || option == "-":
			at++
		case strings.HasPrefix(option, "--"):
			if option == "--rcfile" || option == "--init-file" {
				at++ // its value
			}
			continue
		case len(option) > 1 && (option[0] == '-' || option[0] == '+'):
			runsScript = runsScript || option[0] == '-' && strings.Contains(option, "c")
			if strings.HasSuffix(option, "o") || strings.HasSuffix(option, "O") {
				at++ // the name of a shell option, as in -o pipefail
			}
			continue
		}
		break
	}
	if runsScript && at < len(command) {
		return at
	}
	return -1
}

// Expand returns the final argv. args is a JSON object (omitted means {}) that fits the Tool's schema, and command has
// passed Check. The error is one line for the caller of the Tool (invalid_arguments): it names the argument, the limit and
// the actual size, never a value.
//
// Strings are taken as they are, other values as compact JSON with their numbers as written. An element that names an
// absent argument, or one that is null, is dropped.
func Expand(command []string, args []byte) ([]string, error) {
	var raw map[string]json.RawMessage
	if err := json.Unmarshal(jsonvalue.ArgsOrEmpty(args), &raw); err != nil || raw == nil {
		return nil, errors.New("the arguments are not a JSON object")
	}
	values := map[string]*string{} // nil for absent and null
	argv := make([]string, 0, len(command))
	total, optionsEnded := 0, false
	for i, element := range command {
		parts := parse(element)
		size, absent := 0, false
		for _, p := range parts {
			if !p.isArg {
				size += len(p.text)
				continue
			}
			if _, known := values[p.text]; !known {
				value, err := argument(p.text, raw[p.text])
				if err != nil {
					return nil, err
				}
				values[p.text] = value
			}
			if values[p.text] == nil {
				absent = true
				break
			}
			size += len(*values[p.text])
		}
		if absent {
			continue
		}
		if size > MaxElementBytes {
			return nil, fmt.Errorf("%s would make element %d of the command %d bytes, at most %d are possible; pass large values on stdin",
				arguments(parts), i, size, MaxElementBytes)
		}
		if total += size + 1; total > MaxArgvBytes {
			return nil, fmt.Errorf("%s would make the command more than %d bytes (%d up to element %d), at most %d are accepted; pass large values on stdin",
				arguments(parts), MaxArgvBytes, total, i, MaxArgvBytes)
		}
		final := join(parts, values, size)
		if len(parts) == 1 && parts[0].isArg && strings.HasPrefix(final, "-") && !optionsEnded {
			return nil, fmt.Errorf("%s begins with \"-\" and would be read as an option of the tool: it stands alone in element %d of the command, "+
				"and no \"--\" stands before it", arguments(parts), i)
		}
		// One with an ending of the command's is an option as well: --output=x.txt.
		if len(parts) > 1 && parts[0].isArg && strings.HasPrefix(final, "-") && !optionsEnded {
			return nil, fmt.Errorf("with %s element %d of the command would begin with \"-\" and be read as an option of the tool, "+
				"and no \"--\" stands before it", arguments(parts), i)
		}
		if strings.IndexByte(final, 0) >= 0 {
			return nil, fmt.Errorf("element %d of the command holds a NUL character, which no command line can carry", i)
		}
		optionsEnded = optionsEnded || element == "--"
		argv = append(argv, final)
	}
	return argv, nil
}

// argument returns the text of an argument's value, or nil if it is absent or null.
func argument(name string, raw json.RawMessage) (*string, error) {
	if len(raw) == 0 || string(raw) == "null" {
		return nil, nil
	}
	var text string
	if raw[0] == '"' {
		if err := json.Unmarshal(raw, &text); err != nil {
			return nil, fmt.Errorf("the argument %s is not a JSON string", jsonvalue.Quote(name))
		}
		if strings.IndexByte(text, 0) >= 0 {
			return nil, fmt.Errorf("the argument %s holds a NUL character, which no command line can carry", jsonvalue.Quote(name))
		}
		return &text, nil
	}
	var compact bytes.Buffer
	if err := json.Compact(&compact, raw); err != nil {
		return nil, fmt.Errorf("the argument %s is not JSON", jsonvalue.Quote(name))
	}
	text = compact.String()
	return &text, nil
}

func join(parts []part, values map[string]*string, size int) string {
	var b strings.Builder
	b.Grow(size)
	for _, p := range parts {
		if p.isArg {
			b.WriteString(*values[p.text])
		} else {
			b.WriteString(p.text)
		}
	}
	return b.String()
}

// arguments names the arguments of an element for a message.
func arguments(parts []part) string {
	names := argNames(parts)
	if len(names) == 0 {
		return "the command itself"
	}
	for i, name := range names {
		names[i] = jsonvalue.Quote(name)
	}
	if len(names) == 1 {
		return "the argument " + names[0]
	}
	return "the arguments " + strings.Join(names, ", ")
}
