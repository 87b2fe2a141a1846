package result

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"unicode/utf8"

	"callgate.dev/callgate/internal/jsonvalue"
)

// data returns stdout as one compact JSON value, or says what is wrong with it.
func (s Spec) data(stdout []byte) (data []byte, problem string) {
	switch s.Format {
	case FormatBinary:
		return quoted(base64.StdEncoding.EncodeToString(stdout))
	case FormatText:
		var invalid *jsonvalue.Error
		if err := jsonvalue.CheckUTF8(stdout); errors.As(err, &invalid) {
			return nil, "stdout is not text: " + invalid.Detail + "; use output.format Binary for other bytes"
		}
		return quoted(string(stdout))
	case FormatJSON, "":
		return jsonData(stdout)
	default:
		return nil, "output.format is neither JSON, Text nor Binary"
	}
}

func quoted(s string) (data []byte, problem string) {
	var b bytes.Buffer
	encoder := json.NewEncoder(&b)
	encoder.SetEscapeHTML(false) // three more bytes for every < are of no use here
	if err := encoder.Encode(s); err != nil {
		return nil, "stdout cannot be written as a JSON string"
	}
	return bytes.TrimSuffix(b.Bytes(), []byte("\n")), ""
}

// jsonData accepts exactly one value that the Kubernetes API server stores as it is: it would silently round numbers,
// replace half surrogates by U+FFFD and drop all but the last of equal keys. What remains is written in another way only
// (1.0 becomes 1), and fractions keep 17 digits.
func jsonData(stdout []byte) (data []byte, problem string) {
	var wrong *jsonvalue.Error
	if err := jsonvalue.Check(stdout, jsonvalue.MaxDepth); errors.As(err, &wrong) {
		switch wrong.Reason {
		case jsonvalue.Empty:
			return nil, "the tool printed nothing on stdout; output.format JSON needs exactly one JSON value"
		case jsonvalue.Trailing:
			return nil, "stdout holds more than one JSON value: " + wrong.Detail + "; print one value, and everything else on stderr"
		case jsonvalue.Syntax:
			return nil, "stdout is not JSON: " + wrong.Detail + "; use output.format Text for plain text"
		default:
			return nil, "stdout is not acceptable JSON: " + wrong.Detail
		}
	}
	err := jsonvalue.Walk(stdout, func(t jsonvalue.Token) error {
		switch t.Kind {
		case jsonvalue.Number:
			if err := jsonvalue.Held(string(t.Raw)); err != nil {
				return &jsonvalue.ValueError{Pointer: t.Pointer(), Detail: err.Error()}
			}
		case jsonvalue.String:
			if escape := jsonvalue.LoneSurrogate(t.Raw); escape != "" {
				return &jsonvalue.ValueError{Pointer: t.Pointer(), Detail: fmt.Sprintf(
					"the string has %s, half a surrogate pair, which is no character", escape)}
			}
		}
		return nil
	})
	if err != nil {
		return nil, "stdout cannot be kept exactly: " + err.Error()
	}
	var compact bytes.Buffer
	if err := json.Compact(&compact, stdout); err != nil {
		return nil, "stdout is not JSON: " + jsonvalue.Printable(err.Error())
	}
	return compact.Bytes(), ""
}

// stderrLimit bounds the part of stderr that a message holds, in bytes of the message.
const stderrLimit = 1024

// lastWords returns the end of stderr as one printable line: its lines, without empty ones, joined by " | ", everything
// that is not printable as a visible escape, … in front if something is missing.
func lastWords(tail []byte, total int64) string {
	missing := total > int64(len(tail))
	if missing { // the tail may begin in the middle of a character
		for n := 0; n < utf8.UTFMax && len(tail) > 0 && !utf8.RuneStart(tail[0]); n++ {
			tail = tail[1:]
		}
	}
	var lines []string
	length := 0
	rest := string(tail)
	for rest != "" && length < stderrLimit {
		line := rest
		if at := strings.LastIndexAny(rest, "\n"); at >= 0 {
			rest, line = rest[:at], rest[at+1:]
		} else {
			rest = ""
		}
		if line = strings.TrimSpace(line); line == "" {
			continue
		}
		// Only the end of a line can be shown, and an escape is at most ten times as long as what it stands for.
		if len(line) > stderrLimit {
			line = lastBytes(line, stderrLimit)
			missing, rest = true, ""
		}
		line = jsonvalue.Printable(line)
		lines = append(lines, line)
		length += len(line) + len(" | ")
	}
	missing = missing || strings.TrimSpace(rest) != ""
	for i, j := 0, len(lines)-1; i < j; i, j = i+1, j-1 {
		lines[i], lines[j] = lines[j], lines[i]
	}
	words := strings.Join(lines, " | ")
	if len(words) > stderrLimit {
		words, missing = lastBytes(words, stderrLimit), true
	}
	if missing && words != "" {
		return "…" + words
	}
	return words
}

// lastBytes returns at most the last n bytes of s, never beginning inside a character.
func lastBytes(s string, n int) string {
	at := max(len(s)-n, 0)
	for at < len(s) && !utf8.RuneStart(s[at]) {
		at++
	}
	return s[at:]
}
