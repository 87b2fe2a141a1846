package wire

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"reflect"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"
)

func sampleResult(stdout int) Result {
	out := make([]byte, stdout)
	rng := rand.New(rand.NewPCG(1, 2))
	for i := range out {
		out[i] = byte(rng.Uint32())
	}
	start := time.Date(2026, 3, 1, 12, 0, 0, 123456789, time.UTC)
	return Result{
		ExitCode: -1, Signal: "SIGKILL", TimedOut: true,
		Stdout: out, StdoutBytes: int64(stdout) + 7, StderrTail: []byte("no\xff\x00\n{\"version\":2"), StderrBytes: 99,
		StdoutShrunk: 4, StdoutMasked: 3, StderrMasked: 5, OOMKills: 2, Start: start, End: start.Add(8 * time.Second),
	}
}

// whole is everything a runner prints in one life.
func whole(t testing.TB, r Result) []byte {
	t.Helper()
	var b bytes.Buffer
	for _, err := range []error{WriteReady(&b), WriteAccepted(&b, testCall, 1)} {
		if err != nil {
			t.Fatal(err)
		}
	}
	if _, err := WriteStderr(&b, 0, []byte("warning: \xff\n")); err != nil {
		t.Fatal(err)
	}
	if err := WriteResult(&b, sealOf(testCall, 1, testPod), r); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

func take(chunks ...[]byte) *Transcript {
	t := Transcript{Seal: sealOf(testCall, 1, testPod)}
	for _, c := range chunks {
		_, _ = t.Write(c) // never fails
	}
	return &t
}

func lines(p []byte) []string { return slices.Collect(strings.Lines(string(p))) }

func concat(l []string) string { return strings.Join(l, "") }

func TestTranscriptInAnyChunking(t *testing.T) {
	want := sampleResult(20_000)
	in := whole(t, want)
	for _, size := range []int{1, 2, 7, 100, 8191, 8192, 8193, len(in)} {
		tr := Transcript{Seal: sealOf(testCall, 1, testPod)}
		for rest := in; len(rest) > 0; {
			n := min(size, len(rest))
			_, _ = tr.Write(rest[:n])
			rest = rest[n:]
		}
		if !tr.Ready || tr.Accepted == nil || *tr.Accepted != (Accepted{testCall, 1}) || string(tr.Stderr) != "warning: \xff\n" {
			t.Fatalf("chunks of %d: %+v", size, tr.State)
		}
		if tr.Result == nil || !reflect.DeepEqual(*tr.Result, want) || tr.Damaged != "" || tr.Bytes != int64(len(in)) {
			t.Fatalf("chunks of %d: result %+v, damaged %q", size, tr.Result, tr.Damaged)
		}
	}
}

func TestOutputStaysWithinItsBounds(t *testing.T) {
	r := sampleResult(MaxStdoutBytes)
	r.StderrTail = make([]byte, MaxStderrTailBytes)
	r.StartError = strings.Repeat("\x01", 10_000)
	in := whole(t, r)
	if len(in) > MaxOutputBytes-256<<10 {
		t.Errorf("the largest result is %d bytes of %d: no room for 256 KiB of live stderr frames", len(in), MaxOutputBytes)
	}
	for _, l := range lines(in) {
		if len(l) > MaxLineBytes {
			t.Fatalf("a line of %d bytes", len(l))
		}
	}
	if tr := take(in); tr.Result == nil || !bytes.Equal(tr.Result.Stdout, r.Stdout) {
		t.Errorf("the largest result did not come back: %q", tr.Damaged)
	}
	r.Stdout = make([]byte, MaxStdoutBytes+1)
	if err := WriteResult(&bytes.Buffer{}, sealOf(testCall, 1, testPod), r); err == nil {
		t.Error("a result over the bound was written")
	}
	var b bytes.Buffer
	longest := strings.Repeat("u", maxUIDBytes)
	if err := WriteResult(&b, sealOf(longest, 1<<30, testPod), sampleResult(100_000)); err != nil {
		t.Errorf("the longest UID: %v", err)
	}
	if err := WriteNoCall(&b, strings.Repeat("\x01", 1<<20)); err != nil {
		t.Errorf("the worst reason: %v", err)
	}
}

func TestTranscriptOfStreamsThatAreNotPerfect(t *testing.T) {
	result := sampleResult(20_000)
	in := whole(t, result)
	all := lines(in) // ready, accepted, stderr, result parts 1…
	parts := all[3:]
	if len(parts) < 4 {
		t.Fatalf("the sample has only %d parts", len(parts))
	}
	join := func(l ...string) []byte { return []byte(strings.Join(l, "")) }
	var other bytes.Buffer
	if err := WriteResult(&other, sealOf("another-call", 1, testPod), result); err != nil {
		t.Fatal(err)
	}
	var retry bytes.Buffer
	if err := WriteResult(&retry, sealOf(testCall, 2, testPod), result); err != nil {
		t.Fatal(err)
	}
	mangled := strings.Replace(parts[1], `"data":"`, `"data":"AAAA`, 1)

	tests := []struct {
		reason  string
		in      []byte
		whole   bool
		damaged string // part of Damaged
	}{
		{"a stream that begins inside a line", join(all[0][5:], concat(all[1:])), true, ""},
		{"a stream that begins inside the result", join(parts[1:]...), false, "part 1 did not"},
		{"… then the log from its beginning", join(parts[2], parts[3], concat(all)), true, ""},
		{"a torn line with the log's first line behind it", join(parts[1][:100], concat(all)), true, ""},
		{"a torn part with the whole result behind it", join(concat(all[:4]), parts[1][:100], concat(parts)), true, ""},
		{"the result twice", join(concat(all), concat(parts)), true, ""},
		{"no accepted frame: the result names the call", join(parts...), true, ""},
		{"foreign lines between", join(all[0], "hello\n", all[1], "{\"version\":2}\n", "{\"version\":2,\"type\":\"new\",\"data\":7}\n", concat(parts)), true, ""},
		{"a line longer than any of ours", join(all[0], strings.Repeat("x", 1<<20), "\n", concat(all)), true, ""},
		{"CR LF", []byte(strings.ReplaceAll(string(in), "\n", "\r\n")), true, ""},

		{"a part is missing", join(parts[0], concat(parts[2:])), false, "part 3 of"},
		{"a part is missing, then the whole result", join(parts[0], concat(parts[2:]), concat(parts)), true, ""},
		{"parts out of order", join(parts[1], parts[0], concat(parts[2:])), false, "part 3 of"},
		{"a part twice", join(parts[0], parts[1], parts[1], concat(parts[2:])), false, "part 2 of"},
		{"the last part is missing", join(parts[:len(parts)-1]...), false, fmt.Sprintf("%d of %d parts", len(parts)-1, len(parts))},
		{"the last line has no end", in[:len(in)-1], false, fmt.Sprintf("%d of %d parts", len(parts)-1, len(parts))},
		{"changed data", join(parts[0], mangled, concat(parts[2:])), false, "SHA-256"},
		{"the result of another call", join(all[1], other.String()), false, "another one"},
		{"the result of another attempt", join(all[1], retry.String()), false, "attempt 2, which is another one"},
		{"another protocol version", []byte(strings.ReplaceAll(string(in), `"version":2`, `"version":1`)), false, ""},
		{"nothing", nil, false, ""},
	}
	for _, tt := range tests {
		t.Run(tt.reason, func(t *testing.T) {
			tr := take(tt.in)
			if (tr.Result != nil) != tt.whole {
				t.Fatalf("result %v, damaged %q", tr.Result != nil, tr.Damaged)
			}
			if tt.whole && !reflect.DeepEqual(*tr.Result, result) {
				t.Errorf("result differs: %+v", tr.Result)
			}
			if (tr.Damaged == "") != (tt.damaged == "") || !strings.Contains(tr.Damaged, tt.damaged) {
				t.Errorf("damaged is %q, want %q", tr.Damaged, tt.damaged)
			}
		})
	}
}

func TestStderrIsBoundedAndNeverTwice(t *testing.T) {
	text := make([]byte, 0, 100_000)
	for i := 0; len(text) < 100_000; i++ {
		text = fmt.Appendf(text, "line %d\n", i)
	}
	var b bytes.Buffer
	printed, err := WriteStderr(&b, 0, text[:30_000])
	if err != nil || printed != int64(b.Len()) {
		t.Fatalf("printed %d of %d, %v", printed, b.Len(), err)
	}
	if _, err := WriteStderr(&b, 30_000, text[30_000:]); err != nil {
		t.Fatal(err)
	}
	tr := take(b.Bytes(), b.Bytes())
	if !bytes.Equal(tr.Stderr, text[:MaxLiveStderrBytes]) {
		t.Errorf("%d bytes of stderr, or other ones", len(tr.Stderr))
	}
}

func TestNoCallSaysWhy(t *testing.T) {
	var b bytes.Buffer
	if err := WriteNoCall(&b, "cannot create the marker: \"read-only\""); err != nil {
		t.Fatal(err)
	}
	if tr := take(b.Bytes()); tr.NoCall != "cannot create the marker: \"read-only\"" || tr.Accepted != nil {
		t.Errorf("%+v", tr.State)
	}
}

func TestSomebodyElseIsTold(t *testing.T) {
	tr := Transcript{Seal: sealOf(testCall, 1, testPod)}
	accepted, result := tr.AcceptedSeen(), tr.ResultSeen()
	go func() { _, _ = tr.Write(whole(t, sampleResult(10))) }()
	for name, c := range map[string]<-chan struct{}{"accepted": accepted, "result": result, "result, asked later": tr.ResultSeen()} {
		select {
		case <-c:
		case <-time.After(10 * time.Second):
			t.Fatalf("%s was not told", name)
		}
	}
	if s := tr.Snapshot(); s.Result == nil || s.Accepted == nil {
		t.Errorf("snapshot %+v", s)
	}
}

func TestMemoryStaysFlat(t *testing.T) {
	tr := Transcript{Seal: sealOf(testCall, 1, testPod)}
	var b bytes.Buffer
	f := frame{Type: frameResult, CallUID: testCall, Attempt: 1, Parts: 1 << 30, Data: make([]byte, maxChunkBytes)}
	chunk := bytes.Repeat([]byte("no newline anywhere"), 1000)
	for i := range 2000 { // 11 MB of parts and 38 MB of one line
		f.Part = i + 1
		b.Reset()
		if err := writeFrame(&b, f); err != nil {
			t.Fatal(err)
		}
		_, _ = tr.Write(b.Bytes())
	}
	for range 2000 {
		_, _ = tr.Write(chunk)
	}
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	if m.HeapAlloc > 16<<20 {
		t.Errorf("%d bytes are in use", m.HeapAlloc)
	}
	if !strings.Contains(tr.Damaged, "more than") {
		t.Errorf("damaged is %q", tr.Damaged)
	}
	runtime.KeepAlive(&tr)
}

// FuzzTranscript: hostile bytes never panic, bounds hold, and where the stream is
// cut makes no difference.
func FuzzTranscript(f *testing.F) {
	f.Add(whole(f, sampleResult(100)), uint16(100))
	f.Add([]byte("{\"version\":2,\"type\":\"result\",\"callUID\":\""+testCall+"\",\"attempt\":1,\"part\":1}\n"), uint16(3))
	f.Add([]byte("{\"version\":2,\"type\":\"stderr\",\"offset\":9223372036854775807,\"data\":\"AAAA\"}\n"), uint16(3))
	f.Fuzz(func(t *testing.T, in []byte, cut uint16) {
		one := take(in).Snapshot()
		at := min(int(cut), len(in))
		two := take(in[:at], in[at:]).Snapshot()
		if !reflect.DeepEqual(one, two) {
			t.Fatalf("%+v\nbecame %+v when cut at %d", one, two, at)
		}
		if len(one.Stderr) > MaxLiveStderrBytes || one.Result != nil && (one.Accepted == nil || one.Damaged != "") {
			t.Fatalf("%+v", one)
		}
	})
}
