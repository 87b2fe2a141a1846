package jsonvalue

import (
	"fmt"
	"math"
	"math/big"
	"strconv"
	"strings"
)

// maxNumberBytes bounds a number as written. float64 and int64 never need more than about 770 digits; what is longer
// only costs time.
const maxNumberBytes = 1024

// IsInt64 tells whether a number as written is an int64: no fraction, no exponent, in range.
func IsInt64(number string) bool {
	_, err := strconv.ParseInt(number, 10, 64)
	return err == nil
}

// InRange returns an error if the number is too large or too small in its exponent, or too long, for exact arithmetic:
// it would be infinite, or zero without being written as zero, as a float64. Such a number also makes JSON Schema
// validators fail.
func InRange(number string) error {
	if len(number) > maxNumberBytes {
		return fmt.Errorf("a number of %d characters, at most %d are accepted", len(number), maxNumberBytes)
	}
	f, err := strconv.ParseFloat(number, 64)
	switch {
	case err != nil || math.IsInf(f, 0):
		return fmt.Errorf("the number %s is larger than any float64 (1.8e308); send it as a string", Cut(number, 40))
	case f == 0 && !isZero(number):
		return fmt.Errorf("the number %s is smaller than any float64 (4.9e-324) and would become 0; send it as a string", Cut(number, 40))
	}
	return nil
}

func isZero(number string) bool {
	mantissa, _, _ := strings.Cut(strings.ToLower(number), "e")
	return strings.Trim(mantissa, "-0.") == ""
}

// Held returns an error if no int64 or float64 holds the number: an integer beyond int64 written in digits, one written
// with fraction or exponent whose value float64 would round, or one outside InRange. Fractions are allowed to lose what
// is past their 17th digit, as in every program that uses float64.
func Held(number string) error {
	if IsInt64(number) {
		return nil
	}
	if !strings.ContainsAny(number, ".eE") {
		return fmt.Errorf("the integer %s is beyond int64 (±9.2e18) and cannot be kept exactly; send it as a string", Cut(number, 40))
	}
	if err := InRange(number); err != nil {
		return err
	}
	f, _ := strconv.ParseFloat(number, 64) // InRange parsed it
	exact, ok := new(big.Rat).SetString(number)
	if !ok || !exact.IsInt() {
		return nil
	}
	if kept, ok := new(big.Rat).SetString(strconv.FormatFloat(f, 'g', -1, 64)); !ok || kept.Cmp(exact) != 0 {
		return fmt.Errorf("the integer %s cannot be kept exactly as a float64; send it as a string", Cut(number, 40))
	}
	return nil
}

// Canonical returns one text for all ways to write the same number: decimal digits for what is an int64 (1, 1.0, 1e0),
// the shortest float64 form for everything else.
func Canonical(number string) (string, error) {
	if i, err := strconv.ParseInt(number, 10, 64); err == nil {
		return strconv.FormatInt(i, 10), nil
	}
	f, err := strconv.ParseFloat(number, 64)
	if err != nil || math.IsInf(f, 0) {
		return "", fmt.Errorf("the number %s is larger than any float64", Cut(number, 40))
	}
	if f == math.Trunc(f) && math.Abs(f) < 1<<63 {
		return strconv.FormatInt(int64(f), 10), nil
	}
	return strconv.FormatFloat(f, 'g', -1, 64), nil
}
