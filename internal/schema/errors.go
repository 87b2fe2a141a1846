package schema

import (
	"fmt"
	"strings"

	"callgate.dev/callgate/internal/jsonvalue"
)

// Violation is one reason why a value does not fit.
type Violation struct {
	// Pointer is the JSON pointer (RFC 6901) of the offending value; "" is the whole value. It may hold any character that
	// a property name holds.
	Pointer string
	// Keyword is the keyword of the schema that is not met ("json" if the text is no acceptable JSON at all).
	Keyword string
	// Message says what was expected and what came, one printable line.
	Message string
}

func (v Violation) String() string {
	return fmt.Sprintf("%s: %s: %s", jsonvalue.DisplayPointer(v.Pointer), v.Keyword, v.Message)
}

// maxViolations is how many causes one answer lists.
const maxViolations = 5

// InvalidError says that a value does not fit the schema: one to five violations, sorted by pointer.
type InvalidError struct {
	Violations []Violation
}

// Error returns all violations in one printable line.
func (e *InvalidError) Error() string {
	parts := make([]string, len(e.Violations))
	for i, v := range e.Violations {
		parts[i] = v.String()
	}
	return strings.Join(parts, "; ")
}

// BoundError says that a schema or a validation exceeds one of the bounds of this package.
type BoundError struct {
	format string // says what was measured, with one %d
	Actual int
	Limit  int
	unit   string
}

// Error names the bound, what was measured and the limit.
func (e *BoundError) Error() string {
	return fmt.Sprintf(e.format, e.Actual) + fmt.Sprintf(", at most %d %s are accepted", e.Limit, e.unit)
}

// loadError is how the compiler hears that nothing is ever loaded.
type loadError struct{ url string }

func (e *loadError) Error() string { return "not loaded: " + e.url }
