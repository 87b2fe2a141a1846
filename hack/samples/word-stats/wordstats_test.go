// Package wordstats tests the sample tool word-stats, which has no source but
// the command in its manifest.
package wordstats

import (
	"encoding/json"
	"os"
	"os/exec"
	"reflect"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"
)

func TestWordStats(t *testing.T) {
	data, err := os.ReadFile("../../../config/samples/tool-word-stats.yaml")
	if err != nil {
		t.Fatal(err)
	}
	var tool struct {
		Spec struct {
			Container struct {
				Command []string `yaml:"command"`
			} `yaml:"container"`
		} `yaml:"spec"`
	}
	if err := yaml.Unmarshal(data, &tool); err != nil {
		t.Fatal(err)
	}
	command := tool.Spec.Container.Command
	if len(command) != 5 || command[3] != "--" || command[4] != "$(args.text)" {
		t.Fatalf("command %q, want sh -c SCRIPT -- $(args.text)", command)
	}
	if lines := strings.Count(command[2], "\n"); lines > 10 {
		t.Errorf("the script has %d lines; it is there to show how little a tool needs", lines)
	}

	tests := []struct{ reason, text, want string }{
		{"words are counted without regard to case", "To be, or not\nto be", `{"lines":2,"words":6,"bytes":19,"top":[{"word":"be","count":2},{"word":"to","count":2},{"word":"not","count":1}]}`},
		{"nothing", "", `{"lines":0,"words":0,"bytes":0,"top":[]}`},
		{"no letters", "1 2\n", `{"lines":1,"words":2,"bytes":4,"top":[]}`},
		{"text is never code, format or option", "-n $(exit 3) `exit 3` %d \\ \"", `{"lines":1,"words":8,"bytes":28,"top":[{"word":"exit","count":2},{"word":"d","count":1},{"word":"n","count":1}]}`},
		{"letters beyond ASCII separate the words of top", "häh", `{"lines":1,"words":1,"bytes":4,"top":[{"word":"h","count":2}]}`},
	}
	for _, tt := range tests {
		t.Run(tt.reason, func(t *testing.T) {
			args := append(append([]string{}, command[1:4]...), tt.text)
			cmd := exec.CommandContext(t.Context(), command[0], args...)
			cmd.Env = []string{"PATH=" + os.Getenv("PATH"), "LC_ALL=C"}
			out, err := cmd.Output()
			if err != nil {
				t.Fatal(err)
			}
			var got, want any
			if err := json.Unmarshal(out, &got); err != nil {
				t.Fatalf("%s: %v", out, err)
			}
			if err := json.Unmarshal([]byte(tt.want), &want); err != nil {
				t.Fatal(err)
			}
			if !reflect.DeepEqual(got, want) {
				t.Errorf("got  %swant %s", out, tt.want)
			}
		})
	}
}
