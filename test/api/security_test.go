package api

import (
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"callgate.dev/callgate/test/abuse"
)

// The table of attacks in the page about security is that of the tests: the same
// rows, and a result for each runtime under which an attack is made.
func TestSecurityPage(t *testing.T) {
	page, err := os.ReadFile("../../docs/security.md")
	if err != nil {
		t.Fatal(err)
	}
	const none = "–"
	inPage := map[string][]string{}
	for _, line := range strings.Split(string(page), "\n") {
		if m := regexp.MustCompile("^\\| `([a-z-]+)` \\|(.*)\\|(.*)\\|(.*)\\|$").FindStringSubmatch(line); m != nil {
			if inPage[m[1]] != nil {
				t.Errorf("docs/security.md has two rows of %s", m[1])
			}
			inPage[m[1]] = []string{strings.TrimSpace(m[2]), strings.TrimSpace(m[3]), strings.TrimSpace(m[4])}
		}
	}
	source := testsByFolder(t)["test/abuse"]
	for _, a := range abuse.Attacks {
		cells, ok := inPage[a.Name]
		if !ok {
			t.Errorf("docs/security.md has no row of the attack %s", a.Name)
			continue
		}
		delete(inPage, a.Name)
		for i, runtime := range []string{abuse.RuncRuntime, abuse.GVisorRuntime} {
			if made, told := slices.Contains(a.Runtimes, runtime), cells[i] != none; made != told || cells[i] == "" {
				t.Errorf("docs/security.md, %s under %s: the page says %q; the attack is made: %v", a.Name, runtime, cells[i], made)
			}
		}
		if len(cells[2]) < 3 {
			t.Errorf("docs/security.md does not say what holds %s", a.Name)
		}
		if !strings.Contains(source, `"`+a.Name+`"`) {
			t.Errorf("no test in test/abuse makes the attack %s", a.Name)
		}
	}
	for name := range inPage {
		t.Errorf("docs/security.md has the row %s, which no test makes", name)
	}
}
