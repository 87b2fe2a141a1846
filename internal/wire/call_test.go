package wire

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"reflect"
	"strings"
	"testing"
)

const (
	testCall = "6f1c4b1e-0000-4000-8000-00000000c0de"
	testPod  = "b7a9d7a0-0000-4000-8000-0000000000aa"
)

func validCall() Call {
	return Call{
		Argv:  []string{"orders", "set-status", "4821", "'; rm -rf / #", "", "\xff\xfe", "é\n"},
		Stdin: []byte("{\"a\":\"\x00\xff\"}"),
		Env:   []EnvVar{{Name: "CALLGATE_IDEMPOTENCY_KEY", Value: "ship-\xff$(HOME)"}},

		MaxStdoutBytes: 65536, TimeoutMillis: 8000, AllowSockets: true, MaxFileBytes: 65 << 20, MaxProcesses: 256,
		ResultKey: sealOf(testCall, 1, testPod).Key, StdoutIsJSON: true,
		SecretEnv: []string{"TOKEN", "\xff"}, SecretPaths: []string{"/etc/secret \xfe"},
	}
}

func encode(t testing.TB, attempt int32, c Call) []byte {
	t.Helper()
	var b bytes.Buffer
	if err := WriteCall(&b, testCall, attempt, testPod, c); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

func read(p []byte) (Header, Call, error) {
	return ReadCall(bufio.NewReader(bytes.NewReader(p)), testPod)
}

func TestCallArrivesByteForByte(t *testing.T) {
	want := validCall()
	h, got, err := read(encode(t, 2, want))
	if err != nil {
		t.Fatal(err)
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got  %#v\nwant %#v", got, want)
	}
	if h.CallUID != testCall || h.Attempt != 2 || h.PodUID != testPod {
		t.Errorf("header %+v", h)
	}
}

func TestLargestCallFits(t *testing.T) {
	c := validCall()
	for range 4 {
		c.Argv = append(c.Argv, strings.Repeat("\x01", 131_000)) // 512 KiB of argv
	}
	c.Stdin = bytes.Repeat([]byte("<"), 256<<10)
	if _, got, err := read(encode(t, 1, c)); err != nil || !reflect.DeepEqual(got, c) {
		t.Errorf("the largest call the design allows did not arrive: %v", err)
	}
}

// TestReadCallLeavesTheRest: what follows a call belongs to nobody, but must not
// be swallowed as part of it.
func TestReadCallLeavesTheRest(t *testing.T) {
	r := bufio.NewReader(io.MultiReader(bytes.NewReader(encode(t, 1, validCall())), strings.NewReader("second")))
	if _, _, err := ReadCall(r, testPod); err != nil {
		t.Fatal(err)
	}
	if rest, _ := io.ReadAll(r); string(rest) != "second" {
		t.Errorf("rest is %q", rest)
	}
}

func TestReadCallRefuses(t *testing.T) {
	good := encode(t, 1, validCall())
	header, payload, _ := bytes.Cut(good, []byte("\n"))
	withHeader := func(change func(*Header)) []byte {
		var h Header
		if err := json.Unmarshal(header, &h); err != nil {
			t.Fatal(err)
		}
		change(&h)
		line, _ := json.Marshal(h)
		return append(append(line, '\n'), payload...)
	}
	withBody := func(body string) []byte {
		line, _ := json.Marshal(Header{Version: Version, CallUID: testCall, Attempt: 1, PodUID: testPod,
			BodyLength: int64(len(body)), SHA256: digest([]byte(body))})
		return append(append(line, '\n'), body...)
	}
	flipped := bytes.Clone(good)
	flipped[len(flipped)-10] ^= 1

	tests := []struct {
		reason string
		in     []byte
		says   string
	}{
		{"closed without a byte", nil, "closed before a call came"},
		{"half a header", header[:20], "header ended after 20 bytes"},
		{"a header alone", append(bytes.Clone(header), '\n'), "body ended after 0 of"},
		{"the last byte is missing", good[:len(good)-1], "body ended after"},
		{"one bit of the body is wrong", flipped, "SHA-256"},
		{"not JSON", []byte("hello\n"), "not valid JSON"},
		{"a header without end", bytes.Repeat([]byte("x"), 1<<20), "longer than 8192"},
		{"another version", withHeader(func(h *Header) { h.Version = 1 }), "version 1"},
		{"another pod", withHeader(func(h *Header) { h.PodUID = "other" }), `for pod "other"`},
		{"no attempt", withHeader(func(h *Header) { h.Attempt = 0 }), "attempt is 0"},
		{"no call UID", withHeader(func(h *Header) { h.CallUID = "" }), "call UID has 0 bytes"},
		{"a call UID that would break a frame", withHeader(func(h *Header) { h.CallUID = "a\nb" }), "character other"},
		{"a body over the bound is not even allocated", withHeader(func(h *Header) { h.BodyLength = 1 << 40 }), "allowed are 1 to"},
		{"a negative length", withHeader(func(h *Header) { h.BodyLength = -1 }), "has -1 bytes"},
		{"a body that is not an object", withBody(`[]`), "body is not valid JSON"},
		{"nothing to run", withBody(`{"maxStdoutBytes":1,"timeoutMillis":1}`), "no command"},
		{"no timeout would run for ever", withBody(`{"argv":["YQ=="],"maxStdoutBytes":1}`), "timeoutMillis is 0"},
		{"no bound on stdout", withBody(`{"argv":["YQ=="],"timeoutMillis":1}`), "maxStdoutBytes is 0"},
		{"no key: the result would be readable", withBody(`{"argv":["YQ=="],"maxStdoutBytes":1,"timeoutMillis":1}`), "resultKey has 0 bytes"},
		{"a NUL cannot be passed to exec", withBody(`{"argv":["YQA="],"maxStdoutBytes":1,"timeoutMillis":1}`), "NUL"},
	}
	for _, tt := range tests {
		t.Run(tt.reason, func(t *testing.T) {
			_, c, err := read(tt.in)
			if !errors.Is(err, ErrNoCall) || !strings.Contains(err.Error(), tt.says) {
				t.Errorf("error is %v, want ErrNoCall with %q", err, tt.says)
			}
			if !reflect.DeepEqual(c, Call{}) {
				t.Errorf("a refused call came back: %+v", c)
			}
		})
	}
	if _, _, err := ReadCall(bufio.NewReader(bytes.NewReader(good)), ""); !errors.Is(err, ErrNoCall) {
		t.Errorf("a runner that does not know its pod took a call: %v", err)
	}
}

func TestWriteCallRefusesWhatReadCallWould(t *testing.T) {
	tests := []struct {
		reason string
		change func(*Call)
	}{
		{"empty argv", func(c *Call) { c.Argv = nil }},
		{"NUL in argv", func(c *Call) { c.Argv[1] = "a\x00b" }},
		{"'=' in a name", func(c *Call) { c.Env[0].Name = "A=B" }},
		{"stdin and /dev/null", func(c *Call) { c.DevNullStdin = true }},
		{"capture over the bound", func(c *Call) { c.MaxStdoutBytes = MaxStdoutBytes + 1 }},
		{"a negative bound of files", func(c *Call) { c.MaxFileBytes = -1 }},
		{"a negative bound of processes", func(c *Call) { c.MaxProcesses = -1 }},
		{"a timeout that would overflow", func(c *Call) { c.TimeoutMillis = 1 << 62 }},
		{"a short key", func(c *Call) { c.ResultKey = c.ResultKey[1:] }},
		{"a secret variable without a name", func(c *Call) { c.SecretEnv[0] = "" }},
		{"a relative folder of secrets", func(c *Call) { c.SecretPaths[0] = "etc" }},
		{"body over the bound", func(c *Call) { c.Stdin = make([]byte, MaxBodyBytes) }},
	}
	for _, tt := range tests {
		c := validCall()
		tt.change(&c)
		var b bytes.Buffer
		if err := WriteCall(&b, testCall, 1, testPod, c); err == nil || b.Len() > 0 {
			t.Errorf("%s: error %v, %d bytes written", tt.reason, err, b.Len())
		}
	}
}

// FuzzReadCall: hostile bytes never panic, and whatever is taken as a call says
// the same after another trip.
func FuzzReadCall(f *testing.F) {
	good := encode(f, 1, validCall())
	f.Add(good)
	f.Add(good[:len(good)/2])
	f.Add([]byte("{}\n"))
	f.Fuzz(func(t *testing.T, in []byte) {
		h, c, err := read(in)
		if err != nil {
			if !errors.Is(err, ErrNoCall) {
				t.Fatalf("error without ErrNoCall: %v", err)
			}
			return
		}
		var b bytes.Buffer
		if err := WriteCall(&b, h.CallUID, h.Attempt, h.PodUID, c); err != nil {
			t.Fatalf("a call that was read cannot be written: %v", err)
		}
		if _, again, err := read(b.Bytes()); err != nil || !reflect.DeepEqual(again, c) {
			t.Fatalf("%+v became %+v (%v)", c, again, err)
		}
	})
}
