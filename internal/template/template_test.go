package template

import (
	"encoding/json"
	"slices"
	"strings"
	"testing"
)

func TestExpand(t *testing.T) {
	large := strings.Repeat("x", 131071)
	for _, tc := range []struct {
		reason  string
		command []string
		args    string
		want    []string
		err     string // a part of the error instead
	}{
		{"strings as they are, numbers as written", []string{"orders", "set", "$(args.id)", "--to=$(args.s)"},
			`{"id":4821,"s":"shipped"}`, []string{"orders", "set", "4821", "--to=shipped"}, ""},
		{"numbers keep their text", []string{"t", "$(args.a)", "$(args.b)", "$(args.c)"},
			`{"a":9007199254740993,"b":1.0,"c":1e2}`, []string{"t", "9007199254740993", "1.0", "1e2"}, ""},
		{"other values as compact JSON", []string{"t", "$(args.o)", "$(args.l)", "$(args.b)"},
			`{"o": {"k" : "v<é"}, "l": [1, null], "b": true}`, []string{"t", `{"k":"v<é"}`, `[1,null]`, "true"}, ""},
		{"absent or null drops the element, and only that", []string{"t", "$(args.a)", "--x=$(args.n)", "$(args.b)$(args.a)", "$(args.b)"},
			`{"n":null,"b":"B"}`, []string{"t", "B"}, ""},
		{"omitted arguments", []string{"t", "$(args.a)", "end"}, ``, []string{"t", "end"}, ""},
		{"an empty string stays", []string{"t", "$(args.a)"}, `{"a":""}`, []string{"t", ""}, ""},
		{"$$( is a literal $(", []string{"t", "$$(args.a)", "$$$(args.a)", "$(args.a)"}, `{"a":"A"}`, []string{"t", "$(args.a)", "$$(args.a)", "A"}, ""},
		{"any other $( is literal", []string{"t", "$(HOME)", "$(arg.a)", "$(args.a", "$", "$$", "$(args)", "${a}"}, `{"a":"A"}`,
			[]string{"t", "$(HOME)", "$(arg.a)", "$(args.a", "$", "$$", "$(args)", "${a}"}, ""},
		{"values are never scanned again", []string{"t", "$(args.a)"}, `{"a":"$(args.b) $$( $(KUBERNETES_SERVICE_HOST) {{args.secret}} ${x}","b":"B"}`,
			[]string{"t", "$(args.b) $$( $(KUBERNETES_SERVICE_HOST) {{args.secret}} ${x}"}, ""},
		{"two values never make a third reference", []string{"t", "$(args.a)args.b)", "$(args.a)$(args.b)"}, `{"a":"$(","b":"args.a)"}`,
			[]string{"t", "$(args.b)", "$(args.a)"}, ""},
		{"shell metacharacters are data", []string{"t", "$(args.a)"}, `{"a":"'; touch /tmp/pwn; '\n` + "`id`" + ` night's rate"}`,
			[]string{"t", "'; touch /tmp/pwn; '\n`id` night's rate"}, ""},
		{"names are top-level names, dots and all", []string{"t", "$(args.a.b)", "$(args.db:conn)", "$(args.)"}, `{"a":{"b":1},"a.b":"dot","db:conn":"c","":"e"}`,
			[]string{"t", "dot", "c", "e"}, ""},
		{"an option by itself", []string{"t", "$(args.a)"}, `{"a":"--output=/etc/x"}`, nil, `the argument "a" begins with "-"`},
		{"a negative number by itself", []string{"t", "$(args.a)"}, `{"a":-5}`, nil, `the argument "a" begins with "-"`},
		{"an option with an ending of the command's", []string{"t", "$(args.a).txt"}, `{"a":"--output=/etc/x"}`, nil, `with the argument "a" element 1 of the command would begin with "-"`},
		{"an option of two arguments", []string{"t", "$(args.a)$(args.b)"}, `{"a":"-","b":"rf"}`, nil, `with the arguments "a", "b" element 1`},
		{"an option behind an empty argument", []string{"t", "$(args.a)-rf"}, `{"a":""}`, nil, `would begin with "-"`},
		{"an ending behind --", []string{"t", "--", "$(args.a).txt"}, `{"a":"-x"}`, []string{"t", "--", "-x.txt"}, ""},
		{"the command's own option with an argument in it", []string{"t", "-$(args.a)", ""}, `{"a":"-x"}`, []string{"t", "--x", ""}, ""},
		{"-- by itself does not end options", []string{"t", "$(args.a)", "$(args.b)"}, `{"a":"--","b":"-x"}`, nil, `the argument "a" begins with "-"`},
		{"made of parts, -- does not end options", []string{"t", "-$(args.a)", "$(args.b)"}, `{"a":"-","b":"-x"}`, nil, `the argument "b" begins with "-"`},
		{"behind -- anything goes", []string{"t", "--", "$(args.a)"}, `{"a":"-rf"}`, []string{"t", "--", "-rf"}, ""},
		{"-- must stand before", []string{"t", "$(args.a)", "--"}, `{"a":"-rf"}`, nil, `no "--" stands before it`},
		{"as a part of an element it is no option", []string{"t", "--n=$(args.a)", "x$(args.a)"}, `{"a":"-5"}`, []string{"t", "--n=-5", "x-5"}, ""},
		{"NUL in a string", []string{"t", "a$(args.n)"}, `{"n":"secret\u0000"}`, nil, `the argument "n" holds a NUL`},
		{"NUL in an object is only an escape", []string{"t", "$(args.n)"}, `{"n":{"a":"\u0000"}}`, []string{"t", `{"a":"\u0000"}`}, ""},
		{"NUL in the command", []string{"t\x00"}, `{}`, nil, "NUL"},
		{"the largest element", []string{"t", "$(args.a)"}, `{"a":"` + large + `"}`, []string{"t", large}, ""},
		{"one byte more", []string{"t", "$(args.a)y"}, `{"a":"` + large + `"}`, nil, `the argument "a" would make element 1 of the command 131072 bytes, at most 131071`},
		{"many large elements", []string{"t", "$(args.a)", "$(args.a)", "$(args.a)", "$(args.a)"}, `{"a":"` + large + `"}`, nil, "at most 524288"},
		{"not an object", []string{"t"}, `[1]`, nil, "not a JSON object"},
		{"null", []string{"t"}, `null`, nil, "not a JSON object"},
	} {
		t.Run(tc.reason, func(t *testing.T) {
			got, err := Expand(tc.command, []byte(tc.args))
			if tc.err != "" {
				if err == nil || !strings.Contains(err.Error(), tc.err) {
					t.Fatalf("got %q, %v, want the error %q", got, err, tc.err)
				}
				if strings.Contains(err.Error(), "secret") || strings.Contains(err.Error(), "/etc/x") || len(err.Error()) > 500 {
					t.Errorf("the error shows a value: %.600s", err)
				}
				return
			}
			if err != nil || !slices.Equal(got, tc.want) {
				t.Errorf("got %.300q, %v, want %.300q", got, err, tc.want)
			}
		})
	}
}

func TestCheck(t *testing.T) {
	declared := func(name string) bool { return name == "a" || name == "b" }
	for _, tc := range []struct {
		reason  string
		command []string
		want    string // a part of the error; empty if accepted
	}{
		{"references to properties", []string{"t", "$(args.a)", "x=$(args.b)$(args.a)"}, ""},
		{"escaped and literal text", []string{"$$(args.z)", "$$(args.z)", "$(HOME)", "$(args.z"}, ""},
		{"no program", nil, "command[0]"},
		{"an empty program", []string{"", "x"}, "command[0]"},
		{"a name that properties lacks", []string{"t", "x", "--y=$(args.c)"}, `command[2]: "$(args.c)": ` + "`properties`"},
		{"nested names", []string{"t", "$(args.a.b)"}, "only top-level names"},
		{"an argument as the program", []string{"$(args.a)"}, "command[0]"},
		{"in a part of the program", []string{"/bin/$(args.a)", "x"}, "command[0]"},
		{"in a shell script", []string{"sh", "-c", "echo $(args.a)"}, "command[2]: \"$(args.a)\" stands in a shell script"},
		{"with a path", []string{"/usr/bin/bash", "-c", "echo $(args.a)"}, "positional argument"},
		{"dash", []string{"dash", "-c", "$(args.a)"}, "positional argument"},
		{"busybox", []string{"busybox", "ash", "-c", "$(args.a)"}, "positional argument"},
		{"behind env", []string{"/usr/bin/env", "LANG=C", "sh", "-c", "$(args.a)"}, "positional argument"},
		{"joined options", []string{"bash", "-euxc", "$(args.a)"}, "positional argument"},
		{"options around -c", []string{"bash", "--norc", "-o", "pipefail", "-c", "-e", "$(args.a)"}, "positional argument"},
		{"joined -o", []string{"bash", "-ceuo", "pipefail", "$(args.a)"}, "positional argument"},
		{"-- before the script", []string{"sh", "-c", "--", "$(args.a)"}, "positional argument"},
		{"as a positional argument", []string{"sh", "-c", "echo \"$1\"", "sh", "$(args.a)"}, ""},
		{"escaped in a script", []string{"sh", "-c", "echo $$(args.a)"}, ""},
		{"a script in a file has arguments, too", []string{"sh", "/run.sh", "-c", "$(args.a)"}, ""},
	} {
		t.Run(tc.reason, func(t *testing.T) {
			err := Check(tc.command, declared)
			if tc.want == "" {
				if err != nil {
					t.Error(err)
				}
			} else if err == nil || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("got %v, want %q", err, tc.want)
			}
		})
	}
}

// FuzzExpand: no panic, no NUL and no oversized element ever comes out, literal elements pass unchanged, and a value that
// stands alone is never an option.
func FuzzExpand(f *testing.F) {
	f.Add("$(args.a)", "--x=$(args.b)$$(", `{"a":"-x","b":[1]}`)
	f.Add("$(args.a)$(args.a)", "$$$(args.", `{"a":"$(args.a)"}`)
	f.Add("literal", "$(args.é)", `{"é":"\u0000"}`)
	f.Fuzz(func(t *testing.T, one, two, args string) {
		argv, err := Expand([]string{"tool", one, two}, []byte(args))
		if err != nil {
			return
		}
		if len(argv) == 0 || argv[0] != "tool" || len(argv) > 3 {
			t.Fatalf("argv %q", argv)
		}
		total := 0
		for _, element := range argv {
			if strings.ContainsRune(element, 0) || len(element) > MaxElementBytes {
				t.Errorf("element %q", element)
			}
			total += len(element) + 1
		}
		if total > MaxArgvBytes {
			t.Errorf("argv of %d bytes", total)
		}
		if !strings.Contains(one, "$") && !slices.Contains(argv, one) {
			t.Errorf("the literal %q is not in %q", one, argv)
		}
		var values map[string]any
		if json.Unmarshal([]byte(args), &values) == nil && one == "$(args.a)" {
			if value, ok := values["a"].(string); ok && (argv[1] != value || strings.HasPrefix(value, "-")) {
				t.Errorf("the value %q became %q", value, argv[1])
			}
		}
	})
}
