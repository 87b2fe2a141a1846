//go:build linux

package runner

import (
	"bytes"
	"io"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"callgate.dev/callgate/internal/wire"
)

// TestNothingInThePipeIsLost: the runner may be held up (no CPU quota left) until
// long after the tool's end. What is in the pipe then still counts, even if
// somebody else keeps the pipe open and writes on.
func TestNothingInThePipeIsLost(t *testing.T) {
	tests := []struct {
		reason string
		keep   bool // the other end stays open
		bytes  int
	}{
		{"closed", false, 60_000},
		{"still open", true, 60_000},
		{"still open and empty", true, 0},
	}
	for _, tt := range tests {
		out, fd, err := pipe("test", 0)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := unix.Write(int(fd), make([]byte, tt.bytes)); err != nil {
			t.Fatal(err)
		}
		if !tt.keep {
			_ = unix.Close(int(fd))
		}
		if err := stopReading(out); err != nil { // before anything was read
			t.Fatal(err)
		}
		h := &head{max: 10}
		done := make(chan struct{})
		go func() {
			defer close(done)
			copyOutput(h, out)
		}()
		select {
		case <-done:
		case <-time.After(patience):
			t.Fatalf("%s: it still reads", tt.reason)
		}
		if h.total != int64(tt.bytes) || len(h.kept) != min(10, tt.bytes) {
			t.Errorf("%s: %d bytes, %d kept", tt.reason, h.total, len(h.kept))
		}
		if tt.keep {
			_ = unix.Close(int(fd))
		}
	}
}

func TestTailKeepsTheEnd(t *testing.T) {
	text := strings.Repeat("0123456789abcdef-", 100)
	for _, size := range []int{1, 3, 7, 16, 32, 33, 1000, len(text)} {
		got := &tail{max: 16}
		for rest := text; rest != ""; {
			n := min(size, len(rest))
			_, _ = got.Write([]byte(rest[:n])) // never fails
			rest = rest[n:]
		}
		if string(got.bytes()) != text[len(text)-16:] || got.total != int64(len(text)) {
			t.Errorf("pieces of %d: %q of %d", size, got.bytes(), got.total)
		}
	}
}

// TestLiveStderrStaysInItsBudget holds the estimate by which liveStderr decides
// whether a piece may still be sent, and that the budget leaves room for the
// largest result.
func TestLiveStderrStaysInItsBudget(t *testing.T) {
	for _, n := range []int{1, 2, 100, 5_600, 5_601, wire.MaxLiveStderrBytes} {
		printed, err := wire.WriteStderr(io.Discard, wire.MaxLiveStderrBytes, make([]byte, n))
		if err != nil || printed > int64(512+2*n) {
			t.Errorf("%d bytes of stderr print %d, %v", n, printed, err)
		}
	}
	var all bytes.Buffer
	err := wire.WriteResult(&all, wire.Seal{CallUID: strings.Repeat("u", 128), Attempt: 1 << 30, Key: testSeal.Key}, wire.Result{
		Stdout: make([]byte, wire.MaxStdoutBytes), StderrTail: make([]byte, wire.MaxStderrTailBytes),
		StartError: strings.Repeat("\x00", 1024),
	})
	if total := all.Len() + livePrinted + 2*wire.MaxLineBytes; err != nil || total > wire.MaxOutputBytes {
		t.Errorf("a sandbox may print %d bytes, %v", total, err)
	}
}

func TestLiveStderrSendsTheBeginningInOrder(t *testing.T) {
	var tr wire.Transcript
	l := newLiveStderr(&tr)
	text := []byte(strings.Repeat("0123456789abcde\n", 5000)) // 80,000 bytes
	for rest := text; len(rest) > 0; {
		n := min(777, len(rest))
		_, _ = l.Write(rest[:n]) // never fails
		rest = rest[n:]
	}
	l.close()
	if got := tr.Snapshot().Stderr; !bytes.Equal(got, text[:wire.MaxLiveStderrBytes]) {
		t.Errorf("%d bytes of stderr, or other ones", len(got))
	}
}
