//go:build linux

package runner

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"io"
	"slices"
	"strings"
	"unicode/utf16"
	"unicode/utf8"
)

const (
	// masked stands for a value of a Secret. It is not longer than any value that
	// is masked, so that masking makes nothing longer.
	masked = "[masked]"
	// minSecretBytes is the shortest value that is masked: a shorter one is found
	// in words that have nothing to do with it.
	minSecretBytes = 8
)

// secrets are the values that are masked. The zero value masks nothing.
type secrets struct {
	// byStart has the values by their first minSecretBytes, the longest first.
	byStart map[uint64][][]byte
	// maybe says by a hash of a start whether there can be one.
	maybe [1 << 16 / 64]uint64
}

// newSecrets takes values as they are stored. The space around them, such as the
// newline or the carriage return and newline that files often end with, is not part
// of what a tool prints, so it is not looked for.
func newSecrets(values [][]byte) *secrets {
	s := &secrets{byStart: map[uint64][][]byte{}}
	for _, v := range values {
		if trimmed := bytes.TrimSpace(v); len(trimmed) >= minSecretBytes {
			v = trimmed
		}
		if len(v) < minSecretBytes {
			continue
		}
		for _, v := range spellings(v) {
			start := binary.BigEndian.Uint64(v)
			s.byStart[start] = append(s.byStart[start], v)
			h := hash(start)
			s.maybe[h/64] |= 1 << (h % 64)
		}
	}
	for start, list := range s.byStart {
		slices.SortFunc(list, func(a, b []byte) int {
			if len(a) != len(b) {
				return len(b) - len(a)
			}
			return bytes.Compare(a, b)
		})
		s.byStart[start] = slices.CompactFunc(list, bytes.Equal)
	}
	return s
}

// spellings are a value as it is, and as it stands in a JSON string where that
// differs: a key of several lines, or a password with a quote, in a line of a log.
func spellings(v []byte) [][]byte {
	list := [][]byte{v}
	if !utf8.Valid(v) {
		return list // JSON has no spelling for it
	}
	for _, html := range []bool{false, true} { // some escape <, > and &, too
		var b bytes.Buffer
		e := json.NewEncoder(&b)
		e.SetEscapeHTML(html)
		if err := e.Encode(string(v)); err != nil {
			continue // never for a string
		}
		if quoted := b.Bytes(); !bytes.Equal(quoted[1:len(quoted)-2], list[len(list)-1]) {
			list = append(list, quoted[1:len(quoted)-2])
		}
	}
	return list
}

// hash spreads a start over 16 bits.
func hash(start uint64) uint64 { return start * 0x9e3779b97f4a7c15 >> 48 }

// empty says that there is nothing to mask; so does nil.
func (s *secrets) empty() bool { return s == nil || len(s.byStart) == 0 }

// at returns the length of the longest value that p begins with, 0 if there is
// none. more says that p is too short to know: a longer value may begin here.
func (s *secrets) at(p []byte) (length int, more bool) {
	if len(p) < minSecretBytes {
		for _, list := range s.byStart {
			if bytes.HasPrefix(list[0], p) {
				return 0, true
			}
		}
		return 0, false
	}
	start := binary.BigEndian.Uint64(p)
	if h := hash(start); s.maybe[h/64]&(1<<(h%64)) == 0 {
		return 0, false
	}
	for _, v := range s.byStart[start] {
		if bytes.HasPrefix(p, v) {
			return len(v), more
		}
		more = more || len(p) < len(v) && bytes.HasPrefix(v, p)
	}
	return 0, more
}

// span is a piece of a text, from start to before end.
type span struct{ start, end int }

// find returns the pieces of p that are values. Values that overlap are one
// piece, so that no end of one is left.
func (s *secrets) find(p []byte) (spans []span) {
	for i := 0; i+minSecretBytes <= len(p); i++ {
		n, _ := s.at(p[i:])
		switch last := len(spans) - 1; {
		case n == 0:
		case last >= 0 && i < spans[last].end:
			spans[last].end = max(spans[last].end, i+n)
		default:
			spans = append(spans, span{i, i + n})
		}
	}
	return spans
}

// mask replaces the values in p, and counts them. p is not changed.
func (s *secrets) mask(p []byte) (out []byte, count int64) {
	if s.empty() {
		return p, 0
	}
	return replace(p, s.find(p))
}

func replace(p []byte, spans []span) (out []byte, count int64) {
	if len(spans) == 0 {
		return p, 0
	}
	done := 0
	for _, at := range spans {
		out = append(append(out, p[done:at.start]...), masked...)
		done = at.end
	}
	return append(out, p[done:]...), int64(len(spans))
}

// maskJSON does so in the strings and keys of a JSON text, as they read: the same
// value has many spellings there. Everything else stays as it is, byte for byte.
// What is no JSON is masked as bytes.
func (s *secrets) maskJSON(p []byte) (out []byte, count int64) {
	if s.empty() {
		return p, 0
	}
	if !json.Valid(p) {
		return s.mask(p)
	}
	var spans []span
	var d decoder
	for i := 0; i < len(p); i++ {
		if p[i] != '"' {
			continue
		}
		i = d.read(p, i+1)
		for _, at := range s.find(d.text) {
			spans = append(spans, span{int(d.places[at.start].start), int(d.places[at.end-1].end)})
		}
	}
	return replace(p, spans)
}

// decoder reads strings of a valid JSON text.
type decoder struct {
	text []byte // as it reads
	// places has for each byte of text where its whole character is written.
	places []place
}

type place struct{ start, end int32 }

// read reads the string whose first byte behind the quote is p[i], and returns
// where its other quote is.
func (d *decoder) read(p []byte, i int) int {
	d.text, d.places = d.text[:0], d.places[:0]
	for p[i] != '"' {
		start := i
		switch {
		case p[i] != '\\':
			_, n := utf8.DecodeRune(p[i:]) // 1 for a byte that is in no character
			d.text = append(d.text, p[i:i+n]...)
			i += n
		case p[i+1] == 'u':
			r := hex(p[i+2:])
			i += 6
			if utf16.IsSurrogate(r) && p[i] == '\\' && p[i+1] == 'u' {
				if pair := utf16.DecodeRune(r, hex(p[i+2:])); pair != utf8.RuneError {
					r = pair
					i += 6
				}
			}
			d.text = utf8.AppendRune(d.text, r)
		default:
			c := p[i+1]
			if at := strings.IndexByte("bfnrt", c); at >= 0 {
				c = "\b\f\n\r\t"[at]
			}
			d.text = append(d.text, c)
			i += 2
		}
		for len(d.places) < len(d.text) {
			d.places = append(d.places, place{int32(start), int32(i)})
		}
	}
	return i
}

// hex reads the four digits of an escape.
func hex(p []byte) (r rune) {
	for _, c := range p[:4] {
		switch {
		case c >= 'a':
			c -= 'a' - 10
		case c >= 'A':
			c -= 'A' - 10
		default:
			c -= '0'
		}
		r = r<<4 | rune(c)
	}
	return r
}

// maskWriter masks a stream. It holds back what may be the beginning of a value
// until it is known, so that none passes for being cut.
type maskWriter struct {
	secrets *secrets
	w       io.Writer // must not fail
	count   int64

	held  []byte
	cover int // how many bytes from here belong to what was masked last
}

func (m *maskWriter) Write(p []byte) (int, error) {
	if m.secrets.empty() {
		return m.w.Write(p)
	}
	m.take(p, false)
	return len(p), nil
}

// flush writes what was held back: the stream has ended.
func (m *maskWriter) flush() { m.take(nil, true) }

func (m *maskWriter) take(p []byte, last bool) {
	m.held = append(m.held, p...)
	var out []byte
	done := 0
	for ; done < len(m.held); done++ {
		n, more := m.secrets.at(m.held[done:])
		if more && !last {
			break
		}
		if n > 0 && m.cover == 0 {
			out = append(out, masked...)
			m.count++
		}
		if m.cover = max(m.cover, n); m.cover > 0 {
			m.cover--
		} else {
			out = append(out, m.held[done])
		}
	}
	m.held = append(m.held[:0], m.held[done:]...)
	if len(out) > 0 {
		_, _ = m.w.Write(out)
	}
}
