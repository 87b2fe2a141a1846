package jsonvalue

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"math"
	"slices"
	"strconv"
)

// MaxArgsBytes is how large the arguments of a call may be, as JSON text.
const MaxArgsBytes = 256 << 10

// ArgsOrEmpty returns raw, or {} where arguments were omitted: omitting them means no arguments.
func ArgsOrEmpty(raw []byte) []byte {
	if len(bytes.TrimSpace(raw)) == 0 {
		return []byte("{}")
	}
	return raw
}

// CheckArgs tells whether raw may be the arguments of a call: one JSON object of at most 256 KiB, nested at most 512
// deep, no key twice, and no number past int64 however it is written. The error is one line and names the limit, the
// actual value and the JSON pointer. Omitted arguments are {}.
func CheckArgs(raw []byte) error {
	if len(raw) > MaxArgsBytes {
		return fmt.Errorf("the arguments are %d bytes of JSON, at most %d are accepted (as stored: <, > and & take six bytes each)", len(raw), MaxArgsBytes)
	}
	raw = ArgsOrEmpty(raw)
	if err := Check(raw, MaxDepth); err != nil {
		return fmt.Errorf("the arguments are not one JSON object: %w", err)
	}
	if first := bytes.TrimLeft(raw, " \t\r\n"); first[0] != '{' {
		return fmt.Errorf("the arguments are not a JSON object: they are %s", Quote(string(first)))
	}
	return Walk(raw, func(t Token) error {
		if t.Kind == Number && pastInt64(string(t.Raw)) {
			return &ValueError{t.Pointer(), fmt.Sprintf(
				"the number %s is past int64 (±9.2e18) and would not arrive exactly; send it as a string", Cut(string(t.Raw), 40))}
		}
		return nil
	})
}

func pastInt64(number string) bool {
	if IsInt64(number) {
		return false
	}
	f, err := strconv.ParseFloat(number, 64)
	return err != nil || math.Abs(f) >= 1<<63
}

// CanonicalDigest returns "sha256:<hex>" over the value of raw, whatever its white space, key order, escapes and ways to
// write a number: keys sorted by their bytes, int64 kept exact, other numbers as Canonical writes them. Omitted arguments
// are {}. It refuses what Check and Walk refuse.
func CanonicalDigest(raw []byte) (string, error) {
	raw = ArgsOrEmpty(raw)
	if err := Check(raw, MaxDepth); err != nil {
		return "", err
	}
	if err := Walk(raw, func(Token) error { return nil }); err != nil {
		return "", err
	}
	value, err := Decode(raw)
	if err != nil {
		return "", err
	}
	var canonical bytes.Buffer
	if err := writeCanonical(&canonical, value); err != nil {
		return "", err
	}
	sum := sha256.Sum256(canonical.Bytes())
	return "sha256:" + hex.EncodeToString(sum[:]), nil
}

func writeCanonical(b *bytes.Buffer, value any) error {
	switch v := value.(type) {
	case map[string]any:
		keys := make([]string, 0, len(v))
		for key := range v {
			keys = append(keys, key)
		}
		slices.Sort(keys)
		b.WriteByte('{')
		for i, key := range keys {
			if i > 0 {
				b.WriteByte(',')
			}
			writeCanonicalString(b, key)
			b.WriteByte(':')
			if err := writeCanonical(b, v[key]); err != nil {
				return err
			}
		}
		b.WriteByte('}')
	case []any:
		b.WriteByte('[')
		for i, item := range v {
			if i > 0 {
				b.WriteByte(',')
			}
			if err := writeCanonical(b, item); err != nil {
				return err
			}
		}
		b.WriteByte(']')
	case json.Number:
		number, err := Canonical(v.String())
		if err != nil {
			return err
		}
		b.WriteString(number)
	case string:
		writeCanonicalString(b, v)
	default: // bool, nil
		text, err := json.Marshal(v)
		if err != nil {
			return err
		}
		b.Write(text)
	}
	return nil
}

// writeCanonicalString escapes only what JSON requires. encoding/json has changed its escapes between Go versions, and a
// digest must not change with the toolchain.
func writeCanonicalString(b *bytes.Buffer, s string) {
	b.WriteByte('"')
	for i := range len(s) {
		switch c := s[i]; {
		case c == '"' || c == '\\':
			b.WriteByte('\\')
			b.WriteByte(c)
		case c < 0x20:
			fmt.Fprintf(b, `\u%04x`, c)
		default:
			b.WriteByte(c)
		}
	}
	b.WriteByte('"')
}
