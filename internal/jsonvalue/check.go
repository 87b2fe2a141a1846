// Package jsonvalue holds the rules of Callgate for JSON text that comes from outside: arguments, schemas and tool output.
// Everything here works on the raw text, because decoding already hides what matters (rounded numbers, replaced
// surrogates, lost duplicate keys).
package jsonvalue

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"unicode/utf8"
)

// MaxDepth is how deep arrays and objects may nest, in arguments and in results.
const MaxDepth = 512

// Reason says why a text is not exactly one acceptable JSON value.
type Reason string

// The reasons of an Error.
const (
	Empty       Reason = "Empty"       // nothing but white space
	InvalidUTF8 Reason = "InvalidUTF8" // a byte that is no UTF-8
	TooDeep     Reason = "TooDeep"     // nested deeper than the limit
	Syntax      Reason = "Syntax"      // not JSON, or it ends too early
	Trailing    Reason = "Trailing"    // something after the first value
)

// Error is what Check found: one line, safe to print.
type Error struct {
	Reason Reason
	// Offset is the byte at which the problem stands, counted from 0.
	Offset int
	Detail string
}

func (e *Error) Error() string { return e.Detail }

// Check returns an *Error unless raw is exactly one JSON value in valid UTF-8 that nests at most maxDepth deep. Depth is
// looked at before the syntax, so a flood of brackets costs no stack.
func Check(raw []byte, maxDepth int) error {
	if len(bytes.TrimLeft(raw, " \t\r\n")) == 0 {
		return &Error{Empty, 0, "there is nothing but white space"}
	}
	if err := CheckUTF8(raw); err != nil {
		return err
	}
	if bytes.HasPrefix(raw, []byte("\xef\xbb\xbf")) {
		return &Error{Syntax, 0, "it begins with a byte order mark (EF BB BF), which JSON does not allow"}
	}
	if at := deeperThan(raw, maxDepth); at >= 0 {
		return &Error{TooDeep, at, fmt.Sprintf("arrays and objects nest deeper than %d levels (at byte %d)", maxDepth, at)}
	}
	decoder := json.NewDecoder(bytes.NewReader(raw))
	var first json.RawMessage
	if err := decoder.Decode(&first); err != nil {
		return syntaxError(raw, err)
	}
	end := int(decoder.InputOffset())
	if rest := bytes.TrimLeft(raw[end:], " \t\r\n"); len(rest) > 0 {
		return &Error{Trailing, len(raw) - len(rest), fmt.Sprintf("the first JSON value ends at byte %d, but %s follows",
			end, Quote(string(rest)))}
	}
	return nil
}

// CheckUTF8 returns an *Error that names the first byte of raw that is not valid UTF-8, or nil.
func CheckUTF8(raw []byte) error {
	if at := invalidUTF8(raw); at >= 0 {
		return &Error{InvalidUTF8, at, fmt.Sprintf("byte %d (0x%02x) is not valid UTF-8", at, raw[at])}
	}
	return nil
}

func syntaxError(raw []byte, err error) error {
	var syntax *json.SyntaxError
	switch {
	case errors.Is(err, io.ErrUnexpectedEOF), errors.Is(err, io.EOF):
		return &Error{Syntax, len(raw), fmt.Sprintf("it ends after %d bytes, in the middle of a value", len(raw))}
	case errors.As(err, &syntax):
		// SyntaxError.Offset counts the bytes read, so the offending byte is the one before.
		at := min(max(int(syntax.Offset)-1, 0), len(raw)-1)
		return &Error{Syntax, at, fmt.Sprintf("byte %d: %s, in %s", at, Printable(syntax.Error()), around(raw, at))}
	default:
		return &Error{Syntax, 0, Printable(err.Error())}
	}
}

// around quotes a few bytes before and after at.
func around(raw []byte, at int) string {
	from, to := max(at-20, 0), min(at+20, len(raw))
	return Quote(string(raw[from:to]))
}

// invalidUTF8 returns the offset of the first byte that is not valid UTF-8, or -1.
func invalidUTF8(raw []byte) int {
	if utf8.Valid(raw) {
		return -1
	}
	for at := 0; at < len(raw); {
		r, size := utf8.DecodeRune(raw[at:])
		if r == utf8.RuneError && size == 1 {
			return at
		}
		at += size
	}
	return -1
}

// deeperThan returns the offset of the first bracket that opens level limit+1, or -1. It reads any bytes: only what
// stands inside a string is told apart.
func deeperThan(raw []byte, limit int) int {
	depth, inString := 0, false
	for at := 0; at < len(raw); at++ {
		switch c := raw[at]; {
		case inString && c == '\\':
			at++
		case c == '"':
			inString = !inString
		case inString:
		case c == '[' || c == '{':
			if depth++; depth > limit {
				return at
			}
		case c == ']' || c == '}':
			depth--
		}
	}
	return -1
}

// Decode returns the value of a text that passed Check, with every number as json.Number. Of duplicate keys the last
// one stays, as with the Kubernetes API server.
func Decode(raw []byte) (any, error) {
	decoder := json.NewDecoder(bytes.NewReader(raw))
	decoder.UseNumber()
	var value any
	if err := decoder.Decode(&value); err != nil {
		return nil, syntaxError(raw, err)
	}
	return value, nil
}
