package schema

import (
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/santhosh-tekuri/jsonschema/v5"
)

// suiteVariable names the environment variable with the folder `tests` of the public JSON Schema Test Suite.
const suiteVariable = "JSON_SCHEMA_TEST_SUITE"

// suiteDrafts are the folders of the suite whose required tests must pass, each with the draft of its schemas that name none.
var suiteDrafts = []struct {
	folder string
	draft  *jsonschema.Draft
}{
	{"draft4", jsonschema.Draft4},
	{"draft6", jsonschema.Draft6},
	{"draft7", jsonschema.Draft7},
	{"draft2019-09", jsonschema.Draft2019},
	{"draft2020-12", jsonschema.Draft2020},
}

// suiteException is a group of tests (all groups of the file if group is "") that fails, and why that is right or not ours.
type suiteException struct {
	folders, file, group string // folders: all of them if ""
	refusal              string // part of the error of Compile; "" if the schema compiles and the verdict is wrong
	reason               string
}

const (
	outside = "is outside this schema, and nothing is ever loaded"
	dialect = "the dialect"
)

var suiteExceptions = []suiteException{
	{"", "refRemote.json", "", outside, "references to other documents are refused by design"},
	{"draft2020-12", "dynamicRef.json", "strict-tree schema, guards against misspelled properties", outside, "refers to another document"},
	{"draft2020-12", "dynamicRef.json", "tests for implementation dynamic anchor and reference link", outside, "refers to another document"},
	{"draft2020-12", "dynamicRef.json", "$ref and $dynamicAnchor are independent of order - $defs first", outside, "refers to another document"},
	{"draft2020-12", "dynamicRef.json", "$ref and $dynamicAnchor are independent of order - $ref first", outside, "refers to another document"},
	{"draft2020-12", "dynamicRef.json", "$ref to $dynamicRef finds detached $dynamicAnchor", outside, "refers to another document"},
	{"draft2020-12", "dynamicRef.json", "$dynamicRef skips over intermediate resources - direct reference", "",
		"the library counts the $dynamicAnchor of a resource embedded in a resource on the dynamic path, which was not entered itself"},
	{"draft2019-09 draft2020-12", "vocabulary.json", "", dialect, "dialects of other documents are refused by design"},
}

type suiteGroup struct {
	Description string
	Schema      json.RawMessage
	Tests       []struct {
		Description string
		Data        json.RawMessage
		Valid       bool
	}
}

// TestSuite runs the required tests of the public suite, and fails for every failure that is not a suiteException and for
// every suiteException that is none.
func TestSuite(t *testing.T) {
	root := os.Getenv(suiteVariable)
	if root == "" {
		t.Skipf("SKIPPED: set %s to the folder tests of github.com/json-schema-org/JSON-Schema-Test-Suite to run its required tests", suiteVariable)
	}
	used := make([]bool, len(suiteExceptions))
	for _, of := range suiteDrafts {
		files, err := filepath.Glob(filepath.Join(root, of.folder, "*.json"))
		if err != nil || len(files) == 0 {
			t.Fatalf("%s=%s has no %s/*.json (%v)", suiteVariable, root, of.folder, err)
		}
		passed, excepted, failed := 0, 0, 0
		for _, file := range files {
			name := filepath.Base(file)
			for _, group := range readSuite(t, file) {
				failures, compileError := runSuiteGroup(group, options{draft: of.draft, assertFormats: name != "format.json"})
				passed += len(group.Tests) - len(failures)
				at := exceptionOf(of.folder, name, group.Description)
				if at < 0 || (len(failures) > 0 && !refusedAs(compileError, suiteExceptions[at].refusal)) {
					failed += len(failures)
					for _, failure := range failures {
						t.Errorf("%s/%s: %s: %s", of.folder, name, group.Description, failure)
					}
					continue
				}
				used[at] = true
				excepted += len(failures)
				if len(failures) == 0 {
					t.Errorf("%s/%s: %s passes: it is no exception any more", of.folder, name, group.Description)
				}
			}
		}
		t.Logf("%-12s %d passed, %d failed, of which %d are listed exceptions", of.folder, passed, excepted+failed, excepted)
	}
	for i, exception := range suiteExceptions {
		if !used[i] {
			t.Errorf("no group of the suite is %s %s %q: it is no exception any more", exception.folders, exception.file, exception.group)
		}
	}
}

func readSuite(t *testing.T, file string) (groups []suiteGroup) {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(text, &groups); err != nil {
		t.Fatalf("%s: %v", file, err)
	}
	return groups
}

// runSuiteGroup returns a line for each test that fails, and why the schema does not compile.
func runSuiteGroup(group suiteGroup, opts options) (failures []string, compileError error) {
	s, compileError := compile(group.Schema, opts)
	for _, test := range group.Tests {
		err := compileError
		if compileError == nil {
			err = s.Validate(test.Data)
		}
		var invalid *InvalidError
		switch {
		case test.Valid && err != nil:
			failures = append(failures, test.Description+": must be valid, but: "+err.Error())
		case !test.Valid && err == nil:
			failures = append(failures, test.Description+": must not be valid")
		case !test.Valid && !errors.As(err, &invalid):
			failures = append(failures, test.Description+": must be found invalid, but: "+err.Error())
		case err != nil && !printable(err.Error()):
			failures = append(failures, test.Description+": not one printable line: "+err.Error())
		}
	}
	return failures, compileError
}

// exceptionOf returns the index of the exception for a group, or -1.
func exceptionOf(folder, file, group string) int {
	for i, e := range suiteExceptions {
		if (e.folders == "" || strings.Contains(e.folders, folder)) && e.file == file && (e.group == "" || e.group == group) {
			return i
		}
	}
	return -1
}

func refusedAs(err error, refusal string) bool {
	if refusal == "" {
		return err == nil
	}
	return err != nil && strings.Contains(err.Error(), refusal)
}
