package jsonvalue

import (
	"errors"
	"strings"
	"testing"
)

func TestCheck(t *testing.T) {
	for _, tc := range []struct {
		reason, raw string
		want        Reason
		offset      int
	}{
		{"one value", ` {"a":[1,"]}"]} ` + "\n", "", 0},
		{"512 levels", strings.Repeat("[", 512) + strings.Repeat("]", 512), "", 0},
		{"513 levels", strings.Repeat("[", 513) + strings.Repeat("]", 513), TooDeep, 512},
		{"brackets in strings do not nest", `"` + strings.Repeat("[", 1000) + `\"{"`, "", 0},
		{"a flood of brackets", strings.Repeat("[", 1000000), TooDeep, 512},
		{"empty", "", Empty, 0},
		{"white space", " \n\t\r", Empty, 0},
		{"UTF-16", "\xff\xfe{\x00", InvalidUTF8, 0},
		{"invalid UTF-8 in a string", "{\"a\":\"x\xffy\"}", InvalidUTF8, 7},
		{"half a character at the end", "\"\xe2\x82", InvalidUTF8, 1},
		{"byte order mark", "\xef\xbb\xbf{}", Syntax, 0},
		{"a word", "Hello", Syntax, 0},
		{"half a value", `{"a":1`, Syntax, 6},
		{"NaN", `{"a":NaN}`, Syntax, 5},
		{"a second value", "{}\n{}", Trailing, 3},
		{"a closing bracket too many", "{}}", Trailing, 2},
		{"a raw NUL", "\"\x00\"", Syntax, 1},
	} {
		t.Run(tc.reason, func(t *testing.T) {
			err := Check([]byte(tc.raw), MaxDepth)
			var got *Error
			if tc.want == "" {
				if err != nil {
					t.Error(err)
				}
				return
			}
			if !errors.As(err, &got) || got.Reason != tc.want || got.Offset != tc.offset {
				t.Errorf("got %#v, want %s at %d", err, tc.want, tc.offset)
			}
		})
	}
}

func TestCheckArgs(t *testing.T) {
	for _, tc := range []struct{ reason, raw, want string }{
		{"omitted", "", ""},
		{"an object", `{"order_id":4821,"x":[null,true,{"y":"z"}]}`, ""},
		{"the largest and smallest int64", `{"a":9223372036854775807,"b":-9223372036854775808,"c":9007199254740993}`, ""},
		{"fractions, exponents, minus zero", `{"a":1.0,"b":1e2,"c":-0,"d":1e-400,"e":0.1,"f":1e18}`, ""},
		{"one past int64", `{"a":{"b/c":[0,9223372036854775808]}}`, "/a/b~1c/1: the number 9223372036854775808"},
		{"one below int64", `{"a":-9223372036854775809}`, "/a: the number"},
		{"with a fraction", `{"a":9223372036854775808.0}`, "/a: the number"},
		{"with an exponent", `{"a":1e19}`, "/a: the number 1e19"},
		{"past float64", `{"a":1e400}`, "/a: the number 1e400"},
		{"far past float64", `{"a":-1E5000000}`, "/a: the number -1E5000000"},
		{"30 digits", `{"a":123456789012345678901234567890}`, "send it as a string"},
		{"an array", `[1]`, `not a JSON object: they are "[1]"`},
		{"a string", `"x"`, "not a JSON object"},
		{"null", `null`, "not a JSON object"},
		{"two objects", `{}{}`, "follows"},
		{"a key twice", `{"a":1,"\u0061":2}`, `/a: the object has the key "a" twice`},
		{"300 KiB", `{"a":"` + strings.Repeat("x", 300<<10) + `"}`, "307208 bytes of JSON, at most 262144"},
		{"nested 10,000 deep", `{"a":` + strings.Repeat("[", 10000) + strings.Repeat("]", 10000) + `}`, "deeper than 512"},
		{"terminal escapes in a name", `{"a\u001b[31m":1e400}`, `/a\x1b[31m: `},
	} {
		t.Run(tc.reason, func(t *testing.T) {
			err := CheckArgs([]byte(tc.raw))
			if tc.want == "" {
				if err != nil {
					t.Error(err)
				}
			} else if err == nil || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("got %v, want %q", err, tc.want)
			}
		})
	}
}

func TestCanonicalDigest(t *testing.T) {
	for _, tc := range []struct {
		reason, a, b string
		same         bool
	}{
		{"omitted arguments are an empty object", "", "{}", true},
		{"white space and key order", `{"a":1,"b":[1,2]}`, " { \"b\" : [1, 2],\n \"a\" : 1 }", true},
		{"ways to write one", `{"a":1.0,"b":1e0,"c":10E-1}`, `{"a":1,"b":1,"c":1}`, true},
		{"zeros", `{"a":-0,"b":-0.0,"c":0e9}`, `{"a":0,"b":0,"c":0}`, true},
		{"fractions", `{"a":0.10,"b":1.5e300}`, `{"a":1e-1,"b":15e299}`, true},
		{"escapes", `{"a":"\u0041\/"}`, `{"a":"A/"}`, true},
		{"int64 is exact", `{"a":9007199254740993}`, `{"a":9007199254740992}`, false},
		{"order of items", `{"a":[1,2]}`, `{"a":[2,1]}`, false},
		{"a string is no number", `{"a":"1"}`, `{"a":1}`, false},
		{"null is not absent", `{"a":null}`, `{}`, false},
		{"keys and values are told apart", `{"a":"b,c"}`, `{"a":"b","c":""}`, false},
	} {
		t.Run(tc.reason, func(t *testing.T) {
			a, errA := CanonicalDigest([]byte(tc.a))
			b, errB := CanonicalDigest([]byte(tc.b))
			if errA != nil || errB != nil {
				t.Fatal(errA, errB)
			}
			if (a == b) != tc.same || !strings.HasPrefix(a, "sha256:") || len(a) != 71 {
				t.Errorf("digests %s and %s, want same = %t", a, b, tc.same)
			}
		})
	}
	for _, raw := range []string{`{"a":1,"a":1}`, `{"a":1e400}`, `{`, `{}{}`} {
		if digest, err := CanonicalDigest([]byte(raw)); err == nil {
			t.Errorf("%s has the digest %s, want an error", raw, digest)
		}
	}
}

// A digest that changes from one version to the next would end calls that are under way. It was computed elsewhere, over
// {"a":{"b":9223372036854775807},"z":[1,-0.5,"é<\u0000",null,true]}.
func TestCanonicalDigestIsStable(t *testing.T) {
	const want = "sha256:7469a7e90d96d1eb2c4e42e54d28e42bfa84c3b4e5669e91b4cab8f9bc4395df"
	got, err := CanonicalDigest([]byte(`{"z":[1,-0.5,"é<\u0000",null,true],"a":{"b":9223372036854775807}}`))
	if err != nil || got != want {
		t.Errorf("got %s, %v, want %s", got, err, want)
	}
}

func TestHeld(t *testing.T) {
	for number, want := range map[string]bool{
		"0": true, "-0": true, "1.0": true, "1e2": true, "9223372036854775807": true, "-9223372036854775808": true,
		"9007199254740993": true, "0.1": true, "3.14159265358979323846": true, "1.5e300": true, "1e23": true, "5e-324": true,
		"0e999999999": true, "0.0": true,
		"9223372036854775808": false, "-9223372036854775809": false, "123456789012345678901234567890": false,
		"9007199254740993.0": false, "9007199254740993e0": false, "1e400": false, "-1e5000000": false, "1e-400": false, "1e-5000000": false,
	} {
		if err := Held(number); (err == nil) != want {
			t.Errorf("Held(%s) = %v, want held = %t", number, err, want)
		}
	}
}

func TestLoneSurrogate(t *testing.T) {
	for text, want := range map[string]string{
		`"\ud83d\ude00"`: "", `"a"`: "", `"\\ud800"`: "", `"\u00e9\n\\"`: "", `"😀"`: "",
		`"\ud800"`: `\ud800`, `"\uD83D"`: `\ud83d`, `"\udc00\ud800"`: `\udc00`, `"x\ud83d\u0041"`: `\ud83d`, `"\ud83dx"`: `\ud83d`,
		`"\ud83d\ud83d\ude00"`: `\ud83d`, `"\\\ud800"`: `\ud800`,
	} {
		if got := LoneSurrogate([]byte(text)); got != want {
			t.Errorf("LoneSurrogate(%s) = %q, want %q", text, got, want)
		}
	}
}

func TestPrintable(t *testing.T) {
	for raw, want := range map[string]string{
		"plain é 😀 �": "plain é 😀 �", "\x1b]0;x\x07\x1b[2K\rOK": `\x1b]0;x\a\x1b[2K\rOK`, "a\nb\x00": `a\nb\x00`,
		"\xff\xfe": `\xff\xfe`, "\u202egnp": `\u202egnp`, "\u2028": `\u2028`,
	} {
		if got := Printable(raw); got != want {
			t.Errorf("Printable(%q) = %q, want %q", raw, got, want)
		}
	}
}

func TestPointers(t *testing.T) {
	value, err := Decode([]byte(`{"a/b":{"~":[0,{"":7}]}}`))
	if err != nil {
		t.Fatal(err)
	}
	pointer := Pointer("a/b", "~", "1", "")
	if pointer != "/a~1b/~0/1/" {
		t.Errorf("pointer %s", pointer)
	}
	if got, ok := Lookup(value, pointer); !ok || got == nil {
		t.Errorf("Lookup finds %v, %t", got, ok)
	}
	for _, missing := range []string{"/a", "/a~1b/~0/2", "/a~1b/~0/-1", "/a~1b/~0/0/x"} {
		if got, ok := Lookup(value, missing); ok {
			t.Errorf("Lookup(%s) finds %v", missing, got)
		}
	}
	if long := DisplayPointer("/" + strings.Repeat("k", 500) + "/end"); len(long) > 250 || !strings.HasSuffix(long, "/end") {
		t.Errorf("a long pointer is shown as %s", long)
	}
}
