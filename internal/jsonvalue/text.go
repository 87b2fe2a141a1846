package jsonvalue

import (
	"strconv"
	"strings"
	"unicode/utf8"
)

// quoteLimit is how many bytes of a value a message shows.
const quoteLimit = 80

var pointerEscaper = strings.NewReplacer("~", "~0", "/", "~1")

// Pointer returns the JSON pointer (RFC 6901) of the given reference tokens; no token is the whole value, "".
func Pointer(tokens ...string) string {
	var b strings.Builder
	for _, token := range tokens {
		b.WriteByte('/')
		b.WriteString(pointerEscaper.Replace(token))
	}
	return b.String()
}

// Lookup follows a JSON pointer through a decoded value.
func Lookup(value any, pointer string) (any, bool) {
	if pointer == "" {
		return value, true
	}
	for _, token := range strings.Split(pointer, "/")[1:] {
		token = strings.ReplaceAll(strings.ReplaceAll(token, "~1", "/"), "~0", "~")
		switch v := value.(type) {
		case map[string]any:
			member, ok := v[token]
			if !ok {
				return nil, false
			}
			value = member
		case []any:
			index, err := strconv.Atoi(token)
			if err != nil || index < 0 || index >= len(v) {
				return nil, false
			}
			value = v[index]
		default:
			return nil, false
		}
	}
	return value, true
}

// Printable returns s with everything that is not printable (control characters, terminal escapes, bidirectional
// overrides, invalid UTF-8, line ends) written as a visible Go escape such as \x1b. It adds no quotes.
func Printable(s string) string {
	clean := true
	for _, r := range s {
		if r == utf8.RuneError || !strconv.IsPrint(r) {
			clean = false
			break
		}
	}
	if clean {
		return s
	}
	var b strings.Builder
	for len(s) > 0 {
		r, size := utf8.DecodeRuneInString(s)
		switch {
		case r == utf8.RuneError && size == 1:
			b.WriteString(`\x`)
			b.WriteByte("0123456789abcdef"[s[0]>>4])
			b.WriteByte("0123456789abcdef"[s[0]&15])
		case strconv.IsPrint(r):
			b.WriteRune(r)
		default:
			quoted := strconv.QuoteRune(r)
			b.WriteString(quoted[1 : len(quoted)-1])
		}
		s = s[size:]
	}
	return b.String()
}

// Quote shows s in a message: printable, in double quotes, cut after about 80 bytes.
func Quote(s string) string {
	short, cut := head(s, quoteLimit)
	if cut {
		return strconv.Quote(short) + "…"
	}
	return strconv.Quote(short)
}

// Cut returns at most about limit bytes of s, never half a character, and says with … that something is missing.
func Cut(s string, limit int) string {
	short, cut := head(s, limit)
	if cut {
		return short + "…"
	}
	return short
}

func head(s string, limit int) (string, bool) {
	if len(s) <= limit {
		return s, false
	}
	for limit > 0 && !utf8.RuneStart(s[limit]) {
		limit--
	}
	return s[:limit], true
}

// DisplayPointer shows a JSON pointer in a message: printable, long ones cut in the middle; the whole value is called "the
// top level".
func DisplayPointer(pointer string) string {
	if pointer == "" {
		return "the top level"
	}
	const kept = 100 // at each end
	if len(pointer) <= 2*kept {
		return Printable(pointer)
	}
	front, _ := head(pointer, kept)
	from := len(pointer) - kept
	for from < len(pointer) && !utf8.RuneStart(pointer[from]) {
		from++
	}
	return Printable(front) + "…" + Printable(pointer[from:])
}
