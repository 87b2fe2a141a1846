// Package schema compiles JSON Schemas and validates values against them, for text that nobody trusts: nothing is ever
// fetched, nothing panics, and time and memory are bounded.
//
// The draft (4, 6, 7, 2019-09, 2020-12) is chosen by $schema, 2020-12 without. Formats are asserted where they are known.
// Regular expressions are Go's (RE2). Content (contentEncoding, contentMediaType, contentSchema) is described, not checked.
// Defaults are not applied.
package schema

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"runtime"
	"slices"
	"sync"
	"time"

	"github.com/santhosh-tekuri/jsonschema/v5"

	"callgate.dev/callgate/internal/jsonvalue"
)

// Bounds of a schema and of one validation. Each is named by the BoundError that it causes.
const (
	maxSchemaBytes   = 256 << 10
	maxSchemaDepth   = 128  // arrays and objects of the schema's JSON; compiling recurses
	maxSubschemas    = 5000 // compiling is quadratic in them
	maxCompiled      = 2 * maxSubschemas
	maxInPlaceDepth  = 50              // schemas applied to one value, one inside the other ($ref, allOf …)
	maxEvaluations   = 10_000          // schemas applied to one value in all
	maxSteps         = 1 << 20         // see budget
	maxTime          = 3 * time.Second // of the CPU; a value that fits, within maxSteps, takes one and must pass on a slow one
	maxInstanceBytes = 2 << 20         // 256 KiB of control characters are 1.5 MiB as a JSON string
	maxPathWork      = 1 << 29         // see checkPaths
	maxMetaWork      = 1 << 22         // bytes of a value times schemas applied to it, where a metaschema charges no steps
)

// baseURL is where a schema without $id stands. No loader knows the scheme.
const baseURL = "callgate:///schema"

// Schema is a compiled JSON Schema. It is safe for concurrent use; validations against one Schema run one after the
// other, because the library leaves no other place for the step budget.
type Schema struct {
	properties map[string]struct{}
	doc        any  // the schema as decoded, to explain violations
	secrets    bool // some value must not be shown
	graph      graph
	shape      shape
	patterns   int  // see patternSizes
	longPlace  int  // see longPlace
	metaschema bool // refers to a metaschema of a draft, as the library brings it, which charges no budget

	mu       sync.Mutex
	budget   *budget
	compiled *jsonschema.Schema
}

// Compile compiles a schema. The error is one line for the person who wrote it: the JSON pointer in the schema, the keyword
// or construct, and what to do. Exceeding a bound is a *BoundError. Empty text is an error.
func Compile(raw []byte) (*Schema, error) {
	return compile(raw, options{draft: jsonschema.Draft2020, assertFormats: true})
}

// options are what the tests of the public suite need otherwise than the product.
type options struct {
	draft         *jsonschema.Draft // of a schema without $schema
	assertFormats bool
}

func compile(raw []byte, opts options) (s *Schema, err error) {
	defer func() {
		if r := recover(); r != nil {
			s, err = nil, fmt.Errorf("the schema cannot be compiled: %s", jsonvalue.Cut(jsonvalue.Printable(fmt.Sprint(r)), 200))
		}
	}()
	if len(raw) > maxSchemaBytes {
		return nil, &BoundError{"the schema is %d bytes", len(raw), maxSchemaBytes, "bytes"}
	}
	if err := jsonvalue.Check(raw, maxSchemaDepth); err != nil {
		return nil, fmt.Errorf("the schema is not one JSON value: %w", err)
	}
	if err := checkNumbers(raw); err != nil {
		return nil, fmt.Errorf("in the schema, %w", err)
	}
	doc, err := jsonvalue.Decode(raw)
	if err != nil {
		return nil, fmt.Errorf("the schema is not one JSON value: %w", err)
	}
	switch doc.(type) {
	case map[string]any, bool:
	default:
		return nil, errors.New("the schema is neither a JSON object nor true or false")
	}
	if n := countSubschemas(doc); n > maxSubschemas {
		return nil, &BoundError{"the schema has about %d subschemas", n, maxSubschemas, "subschemas"}
	}
	// Where the metaschema is violated, its own schemas stand four deep at every level of the text.
	if _, err := checkPaths(raw, 4, 0, "schema"); err != nil {
		return nil, err
	}
	if err := checkPlaces(doc); err != nil {
		return nil, err
	}
	if err := checkDialect(doc); err != nil {
		return nil, err
	}
	if err := checkIdentities(doc); err != nil {
		return nil, err
	}
	if err := checkReferences(doc); err != nil {
		return nil, err
	}
	patterns, err := patternSizes(doc)
	if err != nil {
		return nil, err
	}
	text, err := textForLibrary(raw)
	if err != nil {
		return nil, fmt.Errorf("the schema cannot be compiled: %w", err)
	}

	s = &Schema{doc: doc, secrets: hasSecrets(doc), properties: declaredProperties(doc), budget: &budget{}, patterns: patterns}
	compiler := newCompiler(opts)
	compiler.RegisterExtension("callgate", nil, extension{s.budget, new(int)})
	if err := compiler.AddResource(baseURL, bytes.NewReader(text)); err != nil {
		return nil, explainCompile(doc, err)
	}
	if s.compiled, err = compiler.Compile(baseURL); err != nil {
		return nil, explainCompile(doc, err)
	}
	// Definitions that nothing refers to, too: nothing wrong stays unseen.
	defined, err := compileAll(compiler, definitions(doc))
	if err != nil {
		return nil, explainCompile(doc, err)
	}
	anchored, err := compileAll(compiler, dynamicAnchors(doc))
	if err != nil {
		return nil, explainCompile(doc, err)
	}
	for _, compiled := range newGraph(slices.Concat(defined, anchored, []*jsonschema.Schema{s.compiled})).all {
		if compiled.Extensions != nil {
			compiled.UniqueItems = false // the extension does it
		}
	}
	s.graph = newGraph(append(anchored, s.compiled))
	s.shape = s.graph.shape()
	if s.shape.depth > maxInPlaceDepth {
		return nil, &BoundError{"the schema applies %d schemas, one inside the other, to one value ($ref, allOf, anyOf …)",
			s.shape.depth, maxInPlaceDepth, "inside one another"}
	}
	if s.shape.evaluations > maxEvaluations {
		return nil, &BoundError{"the schema applies %d schemas to one value ($ref, allOf, anyOf … multiply)",
			s.shape.evaluations, maxEvaluations, "schemas"}
	}
	s.longPlace = s.graph.longPlace()
	s.metaschema = s.graph.usesMetaschema()
	return s, nil
}

// compileAll compiles what stands at the places, URL fragments.
func compileAll(compiler *jsonschema.Compiler, places []string) ([]*jsonschema.Schema, error) {
	all := make([]*jsonschema.Schema, 0, len(places)+1)
	for _, place := range places {
		compiled, err := compiler.Compile(baseURL + place)
		if err != nil {
			return nil, err
		}
		all = append(all, compiled)
	}
	return all, nil
}

func textForLibrary(raw []byte) ([]byte, error) {
	doc, err := jsonvalue.Decode(raw) // our own stays as it is written, to explain violations
	if err != nil {
		return nil, err
	}
	forLibrary(doc)
	return json.Marshal(doc)
}

func newCompiler(opts options) *jsonschema.Compiler {
	compiler := jsonschema.NewCompiler()
	compiler.Draft = opts.draft
	compiler.AssertFormat = opts.assertFormats
	compiler.LoadURL = func(url string) (io.ReadCloser, error) { return nil, &loadError{url} }
	// In draft 7 the library decodes content and validates what is in it: JSON inside a string, which no bound here knows.
	for name := range jsonschema.Decoders {
		compiler.Decoders[name] = nil
	}
	for name := range jsonschema.MediaTypes {
		compiler.MediaTypes[name] = nil
	}
	return compiler
}

// HasProperty tells whether `properties` of the root schema declares name. It follows nothing else: no $ref, no allOf.
func (s *Schema) HasProperty(name string) bool {
	_, ok := s.properties[name]
	return ok
}

// RequiresProperty tells whether `required` of the root schema lists name. It follows nothing else.
func (s *Schema) RequiresProperty(name string) bool {
	root, _ := s.doc.(map[string]any)
	required, _ := root["required"].([]any)
	return slices.Contains(required, any(name))
}

func declaredProperties(doc any) map[string]struct{} {
	names := map[string]struct{}{}
	if root, ok := doc.(map[string]any); ok {
		if properties, ok := root["properties"].(map[string]any); ok {
			for name := range properties {
				names[name] = struct{}{}
			}
		}
	}
	return names
}

// Validate returns nil if raw is one JSON value that fits the schema, an *InvalidError if it is not, and a *BoundError if
// finding out would cost too much.
func (s *Schema) Validate(raw []byte) (err error) {
	defer func() {
		if r := recover(); r != nil {
			err = recovered(r)
		}
	}()
	if len(raw) > maxInstanceBytes {
		return &BoundError{"the value is %d bytes", len(raw), maxInstanceBytes, "bytes"}
	}
	if work := len(raw) * s.shape.evaluations; s.metaschema && work > maxMetaWork {
		return &BoundError{"validating a value of this size against the metaschema that the schema refers to costs %d units of work",
			work, maxMetaWork, "units"}
	}
	if work := len(raw) * s.patterns; work > maxPatternWork {
		return &BoundError{"matching a value of this size with the regular expressions of the schema costs %d units of work",
			work, maxPatternWork, "units"}
	}
	if err := jsonvalue.Check(raw, jsonvalue.MaxDepth); err != nil {
		return &InvalidError{[]Violation{{Keyword: "json", Message: err.Error()}}}
	}
	if err := checkNumbers(raw); err != nil {
		var value *jsonvalue.ValueError
		if errors.As(err, &value) {
			return &InvalidError{[]Violation{{Pointer: value.Pointer, Keyword: "json", Message: value.Detail}}}
		}
		return err
	}
	depth, err := checkPaths(raw, s.shape.depth, s.longPlace, "value")
	if err != nil {
		return err
	}
	value, err := jsonvalue.Decode(raw)
	if err != nil {
		return &InvalidError{[]Violation{{Keyword: "json", Message: err.Error()}}}
	}
	if err := s.run(value, depth); err != nil {
		return s.explainInvalid(value, err)
	}
	return nil
}

// run validates under the lock that makes the step budget this validation's own. depth is that of the value.
func (s *Schema) run(value any, depth int) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	runtime.LockOSThread() // its time is measured
	defer runtime.UnlockOSThread()
	*s.budget = newBudget(s.longPlace / 64 * (1 + depth) * s.shape.depth)
	if s.metaschema {
		s.budget.interval = 0
	}
	return s.compiled.Validate(value)
}

// recovered turns a panic of the validator into an error.
func recovered(r any) error {
	if bound, ok := r.(*BoundError); ok {
		return bound
	}
	return fmt.Errorf("the validator failed: %s", jsonvalue.Cut(jsonvalue.Printable(fmt.Sprint(r)), 200))
}

// checkNumbers refuses numbers that make exact arithmetic fail or take long: huge exponents, endless digits.
func checkNumbers(raw []byte) error {
	return jsonvalue.Walk(raw, func(t jsonvalue.Token) error {
		if t.Kind == jsonvalue.Number {
			if err := jsonvalue.InRange(string(t.Raw)); err != nil {
				return &jsonvalue.ValueError{Pointer: t.Pointer(), Detail: err.Error()}
			}
		}
		return nil
	})
}

// checkPaths refuses a text for which reporting every part of it as wrong would fill the memory: the library then joins the
// pointer to the part, and the path through the schema, which takes time by the square of its length. inPlace is how many
// schemas stand inside one another at each part, at most, longPlace how many bytes each may have more than usual, what says
// what the text is. It returns how deep the text is.
func checkPaths(raw []byte, inPlace, longPlace int, what string) (depth int, err error) {
	work := 0
	err = jsonvalue.Walk(raw, func(t jsonvalue.Token) error {
		depth = max(depth, t.Depth)
		path := t.Depth * inPlace
		work += 8*(t.PointerBytes()+longPlace*(1+t.Depth)*inPlace) + path*path
		if work > maxPathWork {
			return &BoundError{"the paths to all parts of the " + what + " cost %d units of work", work, maxPathWork, "units"}
		}
		return nil
	})
	return depth, err
}
