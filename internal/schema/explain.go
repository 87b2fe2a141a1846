package schema

import (
	"cmp"
	"errors"
	"fmt"
	"net/url"
	"regexp"
	"regexp/syntax"
	"slices"
	"strconv"
	"strings"

	"github.com/santhosh-tekuri/jsonschema/v5"

	"callgate.dev/callgate/internal/jsonvalue"
)

// explainCompile turns what the compiler says into one line for the author of the schema.
func explainCompile(doc any, err error) error {
	var invalid *jsonschema.ValidationError
	var load *loadError
	var loop jsonschema.InfiniteLoopError
	var bound *BoundError
	switch {
	case errors.As(err, &bound):
		return bound
	case errors.As(err, &invalid):
		return &CompileError{explainMeta(doc, invalid)}
	case errors.As(err, &load):
		return explainLoad(doc, load.url)
	case errors.As(err, &loop):
		return fmt.Errorf("the schema refers to itself without end: %s", cleanLocation(string(loop)))
	}
	text := strings.TrimPrefix(err.Error(), "jsonschema: ")
	var whole *jsonschema.SchemaError
	if errors.As(err, &whole) && whole.Err != nil {
		text = strings.TrimPrefix(whole.Err.Error(), "jsonschema: ")
	}
	if target, ok := strings.CutSuffix(text, " not found"); ok {
		if tokens, ref, ok := findReference(doc, target); ok {
			return leadsToNothing(tokens, ref)
		}
	}
	var index *strconv.NumError // a token of a reference that leads into a list
	if errors.As(err, &index) {
		var dangling error
		visitReferences(doc, func(tokens []string, ref string) bool {
			if slices.Contains(strings.Split(unescape(ref), "/"), index.Num) {
				dangling = leadsToNothing(tokens, ref)
			}
			return dangling == nil
		})
		if dangling != nil {
			return dangling
		}
	}
	return fmt.Errorf("the schema cannot be compiled: %s", cleanLocation(text))
}

func leadsToNothing(tokens []string, reference string) error {
	return fmt.Errorf("%s: the reference %s leads to nothing in this schema", jsonvalue.DisplayPointer(jsonvalue.Pointer(tokens...)),
		jsonvalue.Quote(reference))
}

// CompileError lists where a schema breaks the rules of its draft, one to five places, sorted by pointer.
type CompileError struct{ Violations []Violation }

// Error returns all places in one printable line.
func (e *CompileError) Error() string { return (&InvalidError{e.Violations}).Error() }

func explainLoad(doc any, target string) error {
	tokens, ref, ok := findReference(doc, target)
	if !ok {
		return fmt.Errorf("the schema refers to %s, and nothing is ever loaded: put the schema under $defs and refer to it by #/$defs/NAME",
			jsonvalue.Quote(cleanLocation(target)))
	}
	return fmt.Errorf("%s: %s is outside this schema, and nothing is ever loaded: put that schema under $defs and refer to it by #/$defs/NAME",
		jsonvalue.DisplayPointer(jsonvalue.Pointer(tokens...)), jsonvalue.Quote(ref))
}

// cleanLocation removes our own base URL from a text of the library.
func cleanLocation(text string) string {
	return jsonvalue.Cut(jsonvalue.Printable(strings.ReplaceAll(text, baseURL, "")), 300)
}

// explainMeta explains a schema that its metaschema refuses. The metaschema itself is not at hand, so the expectation is
// the library's own text.
func explainMeta(doc any, err *jsonschema.ValidationError) []Violation {
	return explain(err, func(leaf *jsonschema.ValidationError) Violation {
		v := Violation{Pointer: instancePointer(leaf), Keyword: lastKeyword(leaf.KeywordLocation)}
		got, found := jsonvalue.Lookup(doc, v.Pointer)
		if pattern, ok := wrongPattern(leaf, v.Pointer, got); ok {
			if byPattern, ok := got.(map[string]any); ok && byPattern[pattern] != nil { // drafts 4 and 6 point to all of them
				v = Violation{Pointer: v.Pointer + jsonvalue.Pointer(pattern), Keyword: "patternProperties"}
			}
			v.Message = regexpMessage(pattern)
			return v
		}
		if _, isArray := got.([]any); isArray && strings.HasSuffix(v.Pointer, "/items") {
			v.Message = "a list of schemas under items is of the drafts before 2020-12: name the draft in $schema, or use prefixItems"
			return v
		}
		v.Message = expectation(leaf)
		if found && v.Keyword != "required" {
			v.Message += gotSeparator + describe(got)
		}
		return v
	})
}

// wrongPattern returns the regular expression that a leaf of a metaschema is about: the value itself, the name of the
// value, or the first wrong name in it.
func wrongPattern(leaf *jsonschema.ValidationError, pointer string, got any) (string, bool) {
	if !strings.HasSuffix(leaf.Message, "is not valid 'regex'") && !strings.HasSuffix(leaf.Message, "is not valid regex") {
		return "", false
	}
	if text, ok := got.(string); ok {
		return text, true
	}
	name := lastToken(pointer)
	if _, err := regexp.Compile(name); err != nil {
		return name, true
	}
	byPattern, _ := got.(map[string]any)
	for _, pattern := range sortedKeys(byPattern) {
		if _, err := regexp.Compile(pattern); err != nil {
			return pattern, true
		}
	}
	return "", false
}

// expectation is what the library says it expects, without what came.
func expectation(leaf *jsonschema.ValidationError) string {
	text, _, _ := strings.Cut(leaf.Message, " but got ")
	text, _, _ = strings.Cut(text, " but found ")
	return jsonvalue.Cut(jsonvalue.Printable(strings.TrimSuffix(text, ",")), 300)
}

// regexpMessage says why Go does not accept a regular expression.
func regexpMessage(pattern string) string {
	_, err := regexp.Compile(pattern)
	var parse *syntax.Error
	if !errors.As(err, &parse) {
		return fmt.Sprintf("%s is not a regular expression", jsonvalue.Quote(pattern))
	}
	return fmt.Sprintf("%s is not a regular expression of Go (RE2): %s: %s; RE2 has no look-around, no back-references and at most 1000 repetitions",
		jsonvalue.Quote(pattern), parse.Code, jsonvalue.Quote(parse.Expr))
}

// explainInvalid turns what the validator says into an *InvalidError.
func (s *Schema) explainInvalid(value any, err error) error {
	var invalid *jsonschema.ValidationError
	var loop jsonschema.InfiniteLoopError
	switch {
	case errors.As(err, &invalid):
		return &InvalidError{explain(invalid, (&explainer{s, value, map[string]bool{}}).leaf)}
	case errors.As(err, &loop):
		return fmt.Errorf("the schema refers to itself without end: %s", cleanLocation(string(loop)))
	}
	return fmt.Errorf("the validator failed: %s", cleanLocation(err.Error()))
}

// maxWorded is how many errors are worded, however alike they turn out: wording one may compile all the regular expressions
// of a schema.
const maxWorded = 64

// wording words errors, as long as there are some left to word.
type wording struct {
	word func(*jsonschema.ValidationError) Violation
	left int
}

// explain picks the relevant leaves of an error tree and words each, sorted so that the same value gets the same answer.
func explain(root *jsonschema.ValidationError, word func(*jsonschema.ValidationError) Violation) []Violation {
	violations := []Violation{}
	seen := map[string]bool{}
	leaves := relevant(root)
	slices.SortFunc(leaves, func(a, b *jsonschema.ValidationError) int {
		return cmp.Or(
			cmp.Compare(len(a.InstanceLocation), len(b.InstanceLocation)), // item 2 before item 10
			cmp.Compare(a.InstanceLocation, b.InstanceLocation),
			cmp.Compare(a.KeywordLocation, b.KeywordLocation))
	})
	words := wording{word, maxWorded}
	for _, leaf := range leaves {
		v := words.of(leaf)
		if line := v.String(); !seen[line] {
			seen[line] = true
			violations = append(violations, v)
		}
		if len(violations) == maxViolations || words.left <= 0 {
			break
		}
	}
	return violations
}

// of words one leaf.
func (w *wording) of(leaf *jsonschema.ValidationError) Violation {
	if isChoice(leaf) && len(leaf.Causes) > 0 {
		return w.choice(leaf)
	}
	w.left--
	return w.word(leaf)
}

// relevant returns the errors that say something: it looks through $ref, allOf and if, and for anyOf and oneOf it takes
// the alternative that was meant (see closest), or the choice itself if there is none.
func relevant(e *jsonschema.ValidationError) []*jsonschema.ValidationError {
	keyword := lastKeyword(e.KeywordLocation)
	switch {
	case len(e.Causes) == 0 || keyword == "minContains":
		return []*jsonschema.ValidationError{e}
	case isChoice(e):
		if best := closest(e); best != nil {
			return best
		}
		return []*jsonschema.ValidationError{e}
	}
	var leaves []*jsonschema.ValidationError
	for _, cause := range e.Causes {
		leaves = append(leaves, relevant(cause)...)
	}
	return leaves
}

func isChoice(e *jsonschema.ValidationError) bool {
	return e.Message == "anyOf failed" || e.Message == "oneOf failed"
}

// closest returns the leaves of the alternative that the value comes closest to, or nil if it fails all of them at the
// value itself. An alternative is out if the value has another type or fails a const or enum, which is how alternatives
// are told apart; of the others the one that fails deepest wins, then the one with fewest errors, then the first.
func closest(choice *jsonschema.ValidationError) []*jsonschema.ValidationError {
	var best []*jsonschema.ValidationError
	var bestRank [3]int
	for _, cause := range choice.Causes {
		leaves := relevant(cause)
		rank := [3]int{0, 0, len(leaves)}
		own := depth(choice)
		for _, leaf := range leaves {
			keyword := lastKeyword(leaf.KeywordLocation)
			below := depth(leaf) - own
			rank[1] = min(rank[1], -below)
			switch {
			case below == 0 && (keyword == "type" || keyword == "const" || keyword == "enum" || isChoice(leaf)):
				rank[0] = 2
			case keyword == "const" || keyword == "enum":
				rank[0] = max(rank[0], 1)
			}
		}
		if rank[0] == 2 {
			continue
		}
		if best == nil || slices.Compare(rank[:], bestRank[:]) < 0 {
			best, bestRank = leaves, rank
		}
	}
	return best
}

func depth(e *jsonschema.ValidationError) int { return strings.Count(e.InstanceLocation, "/") }

// choice words a choice of which no alternative fits the value itself: what each of the first few expects.
func (w *wording) choice(choice *jsonschema.ValidationError) Violation {
	v := Violation{Pointer: instancePointer(choice), Keyword: lastKeyword(choice.KeywordLocation)}
	const shown = 4
	var expected []string
	got := ""
	unworded := 0
	for i, cause := range choice.Causes {
		if i > 0 && w.left <= 0 {
			unworded = len(choice.Causes) - i
			break
		}
		message := w.of(relevant(cause)[0]).Message // never empty: an error is its own cause at least
		before, after, cut := strings.Cut(message, gotSeparator)
		if cut {
			got = after
		}
		if !slices.Contains(expected, before) {
			expected = append(expected, before)
		}
	}
	more := ""
	if n := max(0, len(expected)-shown) + unworded; n > 0 {
		more = fmt.Sprintf("; or one of %d more", n)
		expected = expected[:min(len(expected), shown)]
	}
	v.Message = strings.Join(expected, "; or ") + more
	if got != "" {
		v.Message += gotSeparator + got
	}
	return v
}

// ofName tells whether the error is about the name of a property (propertyNames), not about its value.
func ofName(e *jsonschema.ValidationError) bool {
	tokens := strings.Split(e.KeywordLocation, "/")
	for i := 1; i < len(tokens); i++ {
		switch {
		case tokens[i] == "propertyNames":
			return true
		case schemaMaps[tokens[i]]:
			i++ // a name
		}
	}
	return false
}

// parentPointer returns the JSON pointer of what is around, "" for the whole value.
func parentPointer(pointer string) string {
	return pointer[:max(strings.LastIndexByte(pointer, '/'), 0)]
}

// lastToken returns the last reference token of a JSON pointer, unescaped.
func lastToken(pointer string) string {
	token := pointer[strings.LastIndexByte(pointer, '/')+1:]
	return strings.ReplaceAll(strings.ReplaceAll(token, "~1", "/"), "~0", "~")
}

// lastKeyword returns the keyword at the end of a keyword location, without the index or name that may follow it.
func lastKeyword(location string) string {
	tokens := strings.Split(location, "/")
	for i := len(tokens) - 1; i >= 0; i-- {
		if i > 0 && (schemaMaps[tokens[i-1]] || tokens[i-1] == "dependentRequired") {
			return tokens[i-1] // tokens[i] is a name
		}
		if _, err := strconv.Atoi(tokens[i]); err == nil && i > 0 {
			continue
		}
		if tokens[i] != "" {
			return tokens[i]
		}
	}
	return "false"
}

// instancePointer returns the JSON pointer of the offending value. The library also escapes each token as a URL path.
func instancePointer(e *jsonschema.ValidationError) string { return unescape(e.InstanceLocation) }

func unescape(location string) string {
	plain, err := url.PathUnescape(location)
	if err != nil {
		return location
	}
	return plain
}
