package schema

import (
	"encoding/json"
	"strconv"
	"strings"
)

// duplicate returns the indexes of the first two items that are equal as JSON Schema defines it (1 and 1.0 are). The
// library compares all items whose hash is the same with one another, and its hash is the same for [[],[]] and [[[]]], so
// that a value of a megabyte can take it a minute.
func duplicate(items []any) (first, second int, found bool) {
	seen := make(map[string]int, len(items))
	for i, item := range items {
		key := string(appendKey(nil, item))
		if j, ok := seen[key]; ok {
			return j, i, true
		}
		seen[key] = i
	}
	return 0, 0, false
}

// appendKey appends a text that two values share exactly if they are equal.
func appendKey(key []byte, value any) []byte {
	switch v := value.(type) {
	case nil:
		return append(key, 'n')
	case bool:
		return strconv.AppendBool(key, v)
	case json.Number:
		return append(append(append(key, '#'), plainNumber(string(v))...), ';')
	case string:
		return appendText(key, v)
	case []any:
		key = append(key, '[')
		for _, item := range v {
			key = appendKey(key, item)
		}
		return append(key, ']')
	case map[string]any:
		key = append(key, '{')
		for _, name := range sortedKeys(v) {
			key = appendKey(appendText(key, name), v[name])
		}
		return append(key, '}')
	}
	return append(key, '?') // of no JSON type
}

// appendText writes the length first, so that no text looks like the end of another.
func appendText(key []byte, text string) []byte {
	return append(append(strconv.AppendInt(key, int64(len(text)), 10), '"'), text...)
}

// plainNumber returns one text for all ways to write the same decimal number: its digits without zeros around them, and
// the exponent of the last one.
func plainNumber(number string) string {
	mantissa, power, _ := strings.Cut(strings.ToLower(number), "e")
	mantissa, negative := strings.CutPrefix(mantissa, "-")
	whole, fraction, _ := strings.Cut(mantissa, ".")
	digits := strings.TrimLeft(whole+fraction, "0")
	exponent, _ := strconv.Atoi(power) // checkNumbers has refused what is out of range, but for 0
	exponent += len(digits) - len(fraction)
	digits = strings.TrimRight(digits, "0")
	exponent -= len(digits)
	if digits == "" {
		return "0"
	}
	if negative {
		digits = "-" + digits
	}
	return digits + "e" + strconv.Itoa(exponent)
}
