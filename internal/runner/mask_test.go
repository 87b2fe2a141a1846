//go:build linux

package runner

import (
	"bytes"
	"encoding/json"
	"math/rand/v2"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"
)

func secretsOf(values ...string) *secrets {
	var list [][]byte
	for _, v := range values {
		list = append(list, []byte(v))
	}
	return newSecrets(list)
}

func TestMask(t *testing.T) {
	for _, tt := range []struct {
		reason  string
		secrets []string
		in, out string
		count   int64
	}{
		{"nothing to mask", nil, "hunter2-hunter2", "hunter2-hunter2", 0},
		{"the whole text", []string{"hunter2-hunter2"}, "hunter2-hunter2", "[masked]", 1},
		{"in the middle, twice", []string{"s3cr3t-token"}, "a s3cr3t-token, s3cr3t-token\n", "a [masked], [masked]\n", 2},
		{"eight bytes are masked", []string{"12345678"}, "x12345678x", "x[masked]x", 1},
		{"seven are not: they are found anywhere", []string{"1234567"}, "1234567", "1234567", 0},
		{"a newline at its end is not looked for", []string{"s3cr3t-token\n"}, "s3cr3t-token is\ns3cr3t-token\n", "[masked] is\n[masked]\n", 2},
		{"nor are two, or those of Windows", []string{"s3cr3t-token\n\n", "an0ther-one\r\n"}, "s3cr3t-token. an0ther-one\r\n", "[masked]. [masked]\r\n", 2},
		{"nor the space before it", []string{" \ts3cr3t-token "}, "x=s3cr3t-token;", "x=[masked];", 1},
		{"space within it is", []string{"s3cr3t token"}, "s3cr3ttoken s3cr3t token", "s3cr3ttoken [masked]", 1},
		{"too short without its newline", []string{"1234567\n"}, "1234567 1234567\n", "1234567 [masked]", 1},
		{"the longer of two with one beginning", []string{"password", "password-and-more"}, "password password-and-more password-and", "[masked] [masked] [masked]-and", 3},
		{"two that overlap are one, and no end is left", []string{"abcdefgh", "efghijkl"}, "-abcdefghijkl-", "-[masked]-", 1},
		{"two side by side are two", []string{"abcdefgh", "ijklmnop"}, "abcdefghijklmnop", "[masked][masked]", 2},
		{"one within the other", []string{"0abcdefgh0", "abcdefgh"}, "0abcdefgh0 abcdefgh", "[masked] [masked]", 2},
		{"one that overlaps itself", []string{"abababab"}, "ababababab", "[masked]", 1},
		{"a run of one byte", []string{"aaaaaaaa"}, "aaaaaaaaaaa.aaaaaaa", "[masked].aaaaaaa", 1},
		{"bytes that are no text", []string{"\x00\xff\xfe\x01\x02\x03\x04\x05"}, "a\x00\xff\xfe\x01\x02\x03\x04\x05b", "a[masked]b", 1},
		{"the mask itself as a value", []string{"[masked]"}, "[masked]", "[masked]", 1},
		{"of several lines, in a line of a log in JSON", []string{"-----BEGIN KEY-----\nabc\n-----END KEY-----\n"},
			`{"msg":"bad key","key":"-----BEGIN KEY-----\nabc\n-----END KEY-----\n"}`, `{"msg":"bad key","key":"[masked]\n"}`, 1},
		{"with a quote, there and plain", []string{`pass"word<1`}, `pass"word<1 "pass\"word<1" "pass\"word\u003c1"`, `[masked] "[masked]" "[masked]"`, 3},
		{"a beginning alone passes", []string{"s3cr3t-token"}, "s3cr3t-toke", "s3cr3t-toke", 0},
	} {
		t.Run(tt.reason, func(t *testing.T) {
			s := secretsOf(tt.secrets...)
			in := []byte(tt.in)
			out, count := s.mask(in)
			if string(out) != tt.out || count != tt.count || string(in) != tt.in {
				t.Errorf("%q, %d masked, want %q, %d", out, count, tt.out, tt.count)
			}
			// A stream gives the same, wherever it is cut.
			for size := range len(in) + 1 {
				if out, count := stream(s, in, size+1); out != tt.out || count != tt.count {
					t.Errorf("in pieces of %d bytes: %q, %d masked, want %q, %d", size+1, out, count, tt.out, tt.count)
				}
			}
		})
	}
}

func stream(s *secrets, in []byte, size int) (string, int64) {
	var out bytes.Buffer
	m := &maskWriter{secrets: s, w: &out}
	for rest := in; len(rest) > 0; {
		n := min(size, len(rest))
		_, _ = m.Write(rest[:n]) // never fails
		rest = rest[n:]
	}
	m.flush()
	return out.String(), m.count
}

// TestAStreamIsHeldBackOnlyForAValue: whoever watches a tool sees its words at
// once.
func TestAStreamIsHeldBackOnlyForAValue(t *testing.T) {
	var out bytes.Buffer
	m := &maskWriter{secrets: secretsOf("s3cr3t-token"), w: &out}
	for _, step := range []struct{ in, out string }{
		{"working", "working"}, {"\n", "working\n"}, {"s3cr3t", "working\n"}, {" none", "working\ns3cr3t none"}, {"s3cr3t-tok", "working\ns3cr3t none"}, {"en", "working\ns3cr3t none[masked]"},
	} {
		_, _ = m.Write([]byte(step.in)) // never fails
		if out.String() != step.out {
			t.Fatalf("after %q there is %q, want %q", step.in, out.String(), step.out)
		}
	}
}

func TestMaskJSON(t *testing.T) {
	for _, tt := range []struct {
		reason  string
		secret  string
		in, out string
		count   int64
	}{
		{"a string", "s3cr3t-token", `{"a": "x s3cr3t-token y", "b": [1.0, 1e5, null]}`, `{"a": "x [masked] y", "b": [1.0, 1e5, null]}`, 1},
		{"a key", "s3cr3t-token", `{"s3cr3t-token":1}`, `{"[masked]":1}`, 1},
		{"the whole text is a string", "s3cr3t-token", ` "s3cr3t-token" `, ` "[masked]" `, 1},
		{"several, in several strings", "s3cr3t-token", `["s3cr3t-token","","s3cr3t-tokens3cr3t-token"]`, `["[masked]","","[masked][masked]"]`, 3},
		{"escapes that say the same", "s3cr3t/\"token\"", `["\u00733cr3t\/\"token\u0022"]`, `["[masked]"]`, 1},
		{"a newline within a value", "line one\nline two", `["line one\nline two","line one\u000Aline two"]`, `["[masked]","[masked]"]`, 2},
		{"HTML that an encoder escapes", "<token>&1", `"\u003ctoken\u003e\u00261"`, `"[masked]"`, 1},
		{"beyond ASCII, raw and escaped", "påssword-€-😀", `["påssword-€-😀","p\u00e5ssword-\u20AC-\uD83D\ude00"]`, `["[masked]","[masked]"]`, 2},
		{"the rest of a string stays as it is written", "s3cr3t-token", `"\u00e5\/\t s3cr3t-token \ud800 \u0041"`, `"\u00e5\/\t [masked] \ud800 \u0041"`, 1},
		{"a backslash at the end of a string", "s3cr3t-token", `["\\","s3cr3t-token\\"]`, `["\\","[masked]\\"]`, 1},
		{"numbers stay: they are no strings", "12345678", `{"n":12345678,"s":"12345678"}`, `{"n":12345678,"s":"[masked]"}`, 1},
		{"not across two strings", "aaaa\",\"bbbb", `["aaaa","bbbb"]`, `["aaaa","bbbb"]`, 0},
		{"what is no JSON is masked as bytes", "s3cr3t-token", `{"a": "s3cr3t-token"`, `{"a": "[masked]"`, 1},
		{"two values are no JSON", "s3cr3t-token", `"s3cr3t-token" s3cr3t-token`, `"[masked]" [masked]`, 2},
		{"nothing", "s3cr3t-token", ``, ``, 0},
	} {
		t.Run(tt.reason, func(t *testing.T) {
			out, count := secretsOf(tt.secret).maskJSON([]byte(tt.in))
			if string(out) != tt.out || count != tt.count {
				t.Errorf("%s, %d masked, want %s, %d", out, count, tt.out, tt.count)
			}
		})
	}
}

// FuzzMaskJSON: JSON stays JSON, no string of it has a value any more, nothing
// gets longer, and what has no value stays as it was.
func FuzzMaskJSON(f *testing.F) {
	f.Add([]byte(`{"a":"s3cr3t\u002dtoken","s3cr3t-token":["\ud83d\ude00",1]}`), []byte("s3cr3t-token"))
	f.Add([]byte(`"\u00e5\u00e5\u00e5\u00e5"`), []byte("åååå"))
	f.Add([]byte("\"\xff\""), []byte("aaaaaaaa"))
	f.Fuzz(func(t *testing.T, in, value []byte) {
		s := newSecrets([][]byte{value})
		out, count := s.maskJSON(in)
		if len(out) > len(in) || count == 0 != bytes.Equal(in, out) && !bytes.Contains(in, []byte(masked)) {
			t.Fatalf("%q became %q, %d masked", in, out, count)
		}
		if json.Valid(in) && !json.Valid(out) {
			t.Fatalf("%q became %q, which is no JSON", in, out)
		}
		if streamed, n := stream(s, in, 3); true {
			if whole, m := s.mask(in); streamed != string(whole) || n != m {
				t.Fatalf("%q masked at once is %q, in pieces %q", in, whole, streamed)
			}
		}
		for _, list := range s.byStart {
			// The mask may make a value, with what is beside it, that was not there.
			if bytes.Contains(list[0], []byte("[")) || bytes.Contains(list[0], []byte("]")) {
				return
			}
			var d decoder
			for i := 0; json.Valid(out) && i < len(out); i++ {
				if out[i] != '"' {
					continue
				}
				if i = d.read(out, i+1); bytes.Contains(d.text, list[0]) {
					t.Fatalf("%q became %q, which says %q", in, out, list[0])
				}
			}
		}
	})
}

func TestReadSecrets(t *testing.T) {
	dir := t.TempDir()
	write := func(name, text string) {
		t.Helper()
		if err := os.MkdirAll(filepath.Dir(filepath.Join(dir, name)), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	// As the kubelet writes a Secret: files in a folder with a time for its name,
	// links to them.
	write("..2026_03_01/token", "token-of-a-file\n")
	write("..2026_03_01/deep/er/key", "key-in-a-folder")
	write("..2026_03_01/large", strings.Repeat("x", maxSecretBytes+1))
	for link, to := range map[string]string{"..data": "..2026_03_01", "token": "..data/token", "deep": "..data/deep", "large": "..data/large", "gone": "..data/gone", "self": "."} {
		if err := os.Symlink(to, filepath.Join(dir, link)); err != nil {
			t.Fatal(err)
		}
	}
	s, err := readSecrets([]string{"A=value-of-a-variable", "AB=another-variable", "SHORT=1234567", "EQ=a=b=c=d=e=f"}, []string{"A", "SHORT", "EQ", "NONE"}, []string{dir})
	if err != nil {
		t.Fatal(err)
	}
	got := map[string]bool{}
	for _, list := range s.byStart {
		for _, v := range list {
			got[string(v)] = true
		}
	}
	want := map[string]bool{"value-of-a-variable": true, "a=b=c=d=e=f": true, "token-of-a-file": true, "key-in-a-folder": true}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
	if _, err := readSecrets(nil, nil, []string{filepath.Join(dir, "no-such-folder")}); err == nil || !strings.Contains(err.Error(), "no-such-folder") {
		t.Errorf("a folder that is not there: %v", err)
	}
	if s, err := readSecrets(nil, nil, nil); err != nil || !s.empty() {
		t.Errorf("no names, no folders: %v", err)
	}
}

func TestSecretsAreBounded(t *testing.T) {
	var v secretValues
	for i := range 3 * maxSecretValues {
		v.add(bytes.Repeat([]byte{byte(i), byte(i >> 8)}, 8))
	}
	if len(v.values) != maxSecretValues || !v.full() {
		t.Errorf("%d values", len(v.values))
	}
	v = secretValues{}
	for range 100 {
		v.add(make([]byte, maxSecretBytes))
	}
	if v.total > maxSecretsTotal || !v.full() {
		t.Errorf("%d bytes of values", v.total)
	}
}

// TestMaskingIsFast holds that no tool can be held up by what is masked: the
// bound is far above what it takes, and far below what comparing every value at
// every byte would.
func TestMaskingIsFast(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	var values [][]byte
	for range maxSecretValues {
		v := make([]byte, 1000)
		for i := range v {
			v[i] = 'a' + byte(rng.Uint32()%26)
		}
		values = append(values, v)
	}
	s := newSecrets(values)
	text := make([]byte, 4<<20)
	for i := range text {
		text[i] = 'a' + byte(rng.Uint32()%26)
	}
	copy(text[1<<20:], values[7])
	start := time.Now()
	if _, count := stream(s, text, readSize); count != 1 {
		t.Errorf("%d masked", count)
	}
	if took := time.Since(start); took > 5*time.Second {
		t.Errorf("4 MiB took %s", took)
	}
}
