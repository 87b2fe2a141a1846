package jsonvalue

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
)

// Kind tells what a Token is.
type Kind int

// The kinds of a Token.
const (
	Other  Kind = iota // true, false, null, or the start of an array or object
	Number             // Raw is the number as written
	String             // Raw is the string as written, with its quotes
)

// Token is one value met by Walk.
type Token struct {
	Kind Kind
	Raw  []byte
	// Depth is the number of arrays and objects around the value.
	Depth int

	frames []frame
}

// frame is one open array or object.
type frame struct {
	object  bool
	wantKey bool
	index   int
	key     string
	seen    map[string]struct{}
}

// Pointer returns the JSON pointer of the value. It is built only when asked for.
func (t Token) Pointer() string { return pointer(t.frames) }

// PointerBytes returns about how long Pointer is, without building it.
func (t Token) PointerBytes() int {
	n := 0
	for _, f := range t.frames {
		n += 1 + len(f.key)
	}
	return n
}

func pointer(frames []frame) string {
	tokens := make([]string, 0, len(frames))
	for _, f := range frames {
		if f.object {
			tokens = append(tokens, f.key)
		} else {
			tokens = append(tokens, strconv.Itoa(f.index))
		}
	}
	return Pointer(tokens...)
}

// ValueError is a value (or key) that JSON allows and Callgate does not, with its JSON pointer.
type ValueError struct {
	Pointer string
	Detail  string
}

func (e *ValueError) Error() string {
	return fmt.Sprintf("%s: %s", DisplayPointer(e.Pointer), e.Detail)
}

// Walk calls visit for every value of a text that passed Check, in the order of the text, and stops at its first error.
// An object that has a key twice is a *ValueError: decoders disagree on which one counts, and the Kubernetes API server
// silently keeps the last. So is a key with half a surrogate pair.
func Walk(raw []byte, visit func(Token) error) error {
	decoder := json.NewDecoder(bytes.NewReader(raw))
	decoder.UseNumber()
	var frames []frame
	for {
		before := decoder.InputOffset()
		token, err := decoder.Token()
		if err != nil {
			return syntaxError(raw, err)
		}
		if delim, ok := token.(json.Delim); ok && (delim == ']' || delim == '}') {
			if frames = frames[:len(frames)-1]; len(frames) == 0 {
				return nil
			}
			continue
		}
		text := bytes.TrimLeft(raw[before:decoder.InputOffset()], " \t\r\n,:")
		if len(frames) > 0 {
			top := &frames[len(frames)-1]
			if top.wantKey {
				if err := top.setKey(token.(string), text, frames); err != nil {
					return err
				}
				continue
			}
			if top.object {
				top.wantKey = true
			} else {
				top.index++
			}
		}
		if err := visit(Token{Kind: kind(token), Raw: text, Depth: len(frames), frames: frames}); err != nil {
			return err
		}
		switch token {
		case json.Delim('{'):
			frames = append(frames, frame{object: true, wantKey: true, seen: map[string]struct{}{}})
		case json.Delim('['):
			frames = append(frames, frame{index: -1})
		default:
			if len(frames) == 0 {
				return nil
			}
		}
	}
}

func (f *frame) setKey(key string, text []byte, frames []frame) error {
	f.wantKey = false
	f.key = key
	if _, twice := f.seen[key]; twice {
		return &ValueError{pointer(frames), fmt.Sprintf("the object has the key %s twice", Quote(key))}
	}
	if escape := LoneSurrogate(text); escape != "" {
		return &ValueError{pointer(frames), fmt.Sprintf("the key has %s, half a surrogate pair, which is no character", escape)}
	}
	f.seen[key] = struct{}{}
	return nil
}

func kind(token json.Token) Kind {
	switch token.(type) {
	case json.Number:
		return Number
	case string:
		return String
	default:
		return Other
	}
}

// LoneSurrogate returns the first escape in a JSON string that is only half of a UTF-16 surrogate pair, as written
// (\ud800), or "". Decoders silently replace it by U+FFFD.
func LoneSurrogate(text []byte) string {
	for at := 0; at+1 < len(text); at++ {
		if text[at] != '\\' {
			continue
		}
		at++ // what follows the backslash is never the start of an escape
		if text[at] != 'u' {
			continue
		}
		switch unit := hexUnit(text[at-1:]); {
		case unit >= 0xd800 && unit < 0xdc00 && isLow(hexUnit(text[min(at+5, len(text)):])):
			at += 10
		case unit >= 0xd800 && unit < 0xe000:
			return strings.ToLower(string(text[at-1 : at+5]))
		default:
			at += 4
		}
	}
	return ""
}

// hexUnit reads \uXXXX at the start of text, or returns -1.
func hexUnit(text []byte) int {
	if len(text) < 6 || text[0] != '\\' || text[1] != 'u' {
		return -1
	}
	unit, err := strconv.ParseUint(string(text[2:6]), 16, 16)
	if err != nil {
		return -1
	}
	return int(unit)
}

func isLow(unit int) bool { return unit >= 0xdc00 && unit < 0xe000 }
