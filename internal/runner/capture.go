//go:build linux

package runner

import (
	"errors"
	"io"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"callgate.dev/callgate/internal/wire"
)

const (
	// readSize is the usual capacity of a pipe.
	readSize = 64 << 10
	// drainBytes bounds what is still taken from a pipe after the tool's end: the
	// largest a pipe can be made without privileges. It is needed only where a
	// process that outlives the tool goes on writing.
	drainBytes = 1 << 20
	// liveInterval is the shortest time between two stderr frames.
	liveInterval = 50 * time.Millisecond
	// livePrinted bounds the stderr frames, overhead included, so that all output
	// stays within wire.MaxOutputBytes.
	livePrinted = 240 << 10
)

// head keeps the beginning of a stream and counts the rest.
type head struct {
	max   int64
	kept  []byte
	total int64
}

func (h *head) Write(p []byte) (int, error) {
	h.total += int64(len(p))
	h.kept = append(h.kept, p[:min(int64(len(p)), h.max-int64(len(h.kept)))]...)
	return len(p), nil
}

// tail keeps the last max bytes of a stream and counts all of it.
type tail struct {
	max   int
	kept  []byte
	total int64
}

func (t *tail) Write(p []byte) (int, error) {
	t.total += int64(len(p))
	t.kept = append(t.kept, p[max(0, len(p)-t.max):]...)
	if len(t.kept) >= 2*t.max { // cut now and then, not at every byte
		t.kept = append([]byte(nil), t.kept[len(t.kept)-t.max:]...)
	}
	return len(p), nil
}

func (t *tail) bytes() []byte {
	return t.kept[max(0, len(t.kept)-t.max):]
}

// copyOutput copies what a tool prints until all writers have closed the pipe,
// or until stopReading is called. w must not fail.
func copyOutput(w io.Writer, pipe *os.File) {
	buf := make([]byte, readSize)
	for {
		n, err := pipe.Read(buf)
		_, _ = w.Write(buf[:n])
		switch {
		case errors.Is(err, os.ErrDeadlineExceeded):
			drain(w, pipe, buf)
			return
		case err != nil:
			return
		}
	}
}

// stopReading lets copyOutput take what is in the pipe now and return, although
// somebody still holds the other end.
func stopReading(pipe *os.File) error {
	return pipe.SetReadDeadline(time.Now())
}

// drain takes what is in the pipe without waiting for more. It does not depend on
// a time, since a container out of CPU quota may be held for longer than any.
func drain(w io.Writer, pipe *os.File, buf []byte) {
	if err := pipe.SetReadDeadline(time.Time{}); err != nil {
		return
	}
	conn, err := pipe.SyscallConn()
	if err != nil {
		return
	}
	_ = conn.Read(func(fd uintptr) bool { // fails only for a closed file
		for left := drainBytes; left > 0; {
			n, err := unix.Read(int(fd), buf)
			if errors.Is(err, unix.EINTR) {
				continue
			}
			if n <= 0 || err != nil {
				break
			}
			_, _ = w.Write(buf[:n])
			left -= n
		}
		return true
	})
}

// liveStderr sends the beginning of stderr while the tool runs. Write never
// waits for stdout: the tool must not be held up by a reader that stalls.
type liveStderr struct {
	out io.Writer

	mu      sync.Mutex
	taken   int64 // bytes ever taken, at most wire.MaxLiveStderrBytes
	pending []byte

	wake chan struct{}
	end  chan struct{}
	done chan struct{}
}

func newLiveStderr(out io.Writer) *liveStderr {
	l := &liveStderr{out: out, wake: make(chan struct{}, 1), end: make(chan struct{}), done: make(chan struct{})}
	go l.send()
	return l
}

func (l *liveStderr) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	take := min(int64(len(p)), wire.MaxLiveStderrBytes-l.taken)
	if take > 0 {
		l.taken += take
		l.pending = append(l.pending, p[:take]...)
		select {
		case l.wake <- struct{}{}:
		default: // awake already
		}
	}
	return len(p), nil
}

// close sends what is left and returns when it is sent.
func (l *liveStderr) close() {
	close(l.end)
	<-l.done
}

func (l *liveStderr) send() {
	defer close(l.done)
	var offset, printed int64
	for ended := false; !ended; {
		select {
		case <-l.wake:
		case <-l.end:
			ended = true
		}
		l.mu.Lock()
		piece := l.pending
		l.pending = nil
		l.mu.Unlock()
		if worst := int64(512 + 2*len(piece)); len(piece) > 0 && printed+worst <= livePrinted {
			// A lost frame is no harm: the result has the end of stderr.
			n, _ := wire.WriteStderr(l.out, offset, piece)
			printed += n
		}
		offset += int64(len(piece))
		select {
		case <-time.After(liveInterval):
		case <-l.end:
		}
	}
}
