package api

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// cases are the numbers of what went wrong in other systems, that the page
// about reliability answers.
var cases = strings.Fields(`C002 C005 C008 C009 C010 C013 C014 C015 C016 C017 C018 C020 C022 C023 C024 C026 C027 C028 C029
	C030 C032 C033 C034 C035 C036 C037 C039 C041 C042 C043 C044 C045 C046 C047 C048 C050`)

// Every test that the page about reliability names exists where it says, and
// every case is answered.
func TestReliabilityPage(t *testing.T) {
	page, err := os.ReadFile("../../docs/reliability.md")
	if err != nil {
		t.Fatal(err)
	}
	tests := testsByFolder(t)
	named := regexp.MustCompile("`(Test[A-Za-z]+)(?:/([A-Za-z]+))?`").FindAllStringSubmatchIndex(string(page), -1)
	if len(named) < 30 {
		t.Errorf("the page names %d tests: was its form changed?", len(named))
	}
	folder := regexp.MustCompile("^ in ([a-z0-9/]+)")
	for _, n := range named {
		name, where := string(page[n[2]:n[3]]), "test/faults"
		if m := folder.FindSubmatch(page[n[1]:]); m != nil {
			where = string(m[1])
		}
		source := tests[where]
		if !strings.Contains(source, "\nfunc "+name+"(t *testing.T)") {
			t.Errorf("docs/reliability.md names %s in %s, which has none", name, where)
		}
		if n[4] >= 0 && !strings.Contains(source, `"`+string(page[n[4]:n[5]])+`"`) {
			t.Errorf("docs/reliability.md names %s in %s, which has no test of that name", page[n[2]:n[5]], where)
		}
	}
	for _, c := range cases {
		if !strings.Contains(string(page), c) {
			t.Errorf("docs/reliability.md has no word about case %s", c)
		}
	}
}

// testsByFolder is the source of all tests.
func testsByFolder(t *testing.T) map[string]string {
	t.Helper()
	tests := map[string]string{}
	for _, root := range []string{"controllers", "internal", "test"} {
		err := filepath.WalkDir(filepath.Join("../..", root), func(path string, _ fs.DirEntry, err error) error {
			if err != nil || !strings.HasSuffix(path, "_test.go") {
				return err
			}
			source, err := os.ReadFile(path)
			if err != nil {
				return err
			}
			where, err := filepath.Rel("../..", filepath.Dir(path))
			tests[where] += string(source)
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	return tests
}
