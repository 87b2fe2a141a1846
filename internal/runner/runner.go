//go:build linux

package runner

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/signal"
	"sync"
	"syscall"
	"time"

	"callgate.dev/callgate/internal/wire"
)

const (
	// podUIDVariable holds this pod's UID, from the downward API. The tool does
	// not get it.
	podUIDVariable = "CALLGATE_POD_UID"
	// reportTimeout bounds printing the result: stdout blocks while nobody reads.
	reportTimeout = 30 * time.Second
	// lingerTimeout bounds the wait for the reader to close stdin after the
	// result: an attach stream loses what a container prints right before its end.
	lingerTimeout = 2 * time.Second
)

// markerPath is the file whose creation makes this pod used. A variable only so
// that the tests can build a runner that keeps it elsewhere.
var markerPath = "/.callgate-state/used"

// Run is the whole life of the runner. It returns the process's exit code, one
// of those in package wire.
func Run() int {
	if len(os.Args) > 1 {
		return becomeTool(os.Args)
	}
	stop, err := harden()
	out := &lockedWriter{w: os.Stdout}
	if err != nil {
		return refuse(out, wire.ExitNoCall, fmt.Sprintf("cannot protect the runner from its tool: %v", err))
	}
	if _, err := os.Lstat(markerPath); err == nil {
		return refuse(out, wire.ExitUsed, "this pod has taken a call before")
	}
	if reason := unexpectedMounts(); reason != "" {
		return refuse(out, wire.ExitWritable, reason)
	}
	// Before stdin is read at all: a call that is there already waits in it.
	if code, reason := proveNetworkPolicy(stop); reason != "" {
		return refuse(out, code, reason)
	}
	if err := wire.WriteReady(out); err != nil {
		return wire.ExitNoCall
	}

	type incoming struct {
		header wire.Header
		call   wire.Call
		err    error
	}
	arrived := make(chan incoming, 1)
	stdinClosed := make(chan struct{})
	go func() {
		stdin := bufio.NewReader(os.Stdin)
		h, c, err := wire.ReadCall(stdin, os.Getenv(podUIDVariable))
		arrived <- incoming{h, c, err}
		// A second call is nobody's: read, so that its sender is not blocked, and
		// dropped. An error is an end like any other.
		_, _ = io.Copy(io.Discard, stdin)
		close(stdinClosed)
	}()

	var in incoming
	select {
	case <-stop: // only here: after a call was accepted SIGTERM means nothing
		return refuse(out, wire.ExitNoCall, "told to stop before a call came")
	case in = <-arrived:
	}
	if in.err != nil {
		return refuse(out, wire.ExitNoCall, in.err.Error())
	}
	if code, reason := accept(); reason != "" {
		return refuse(out, code, reason)
	}
	if err := wire.WriteAccepted(out, in.header.CallUID, in.header.Attempt); err != nil {
		return wire.ExitNoCall // nobody would hear of the result: do not begin
	}

	live := newLiveStderr(out)
	result := runTool(in.call, live)
	reported := make(chan error, 1)
	go func() {
		live.close()
		reported <- wire.WriteResult(out, in.call.Seal(in.header), result)
	}()
	select {
	case err := <-reported:
		if err != nil {
			return wire.ExitNotReported
		}
	case <-time.After(reportTimeout):
		return wire.ExitNotReported
	}
	select {
	case <-stdinClosed:
	case <-time.After(lingerTimeout):
	}
	return wire.ExitReported
}

// accept makes this pod used, for ever. If it fails it returns the exit code and
// why.
func accept() (code int, reason string) {
	marker, err := os.OpenFile(markerPath, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o400)
	switch {
	case errors.Is(err, fs.ErrExist):
		return wire.ExitUsed, "this pod has taken a call before"
	case err != nil:
		return wire.ExitNoCall, fmt.Sprintf("cannot mark this pod as used: %v", err)
	}
	_ = marker.Close() // nothing was written
	return 0, ""
}

// refuse says why no call was taken. Whether the words arrive does not matter:
// the exit code says what counts.
func refuse(out io.Writer, code int, reason string) int {
	_ = wire.WriteNoCall(out, reason)
	return code
}

// lockedWriter keeps lines whole: stderr is sent by a goroutine of its own.
type lockedWriter struct {
	mu sync.Mutex
	w  io.Writer
}

func (l *lockedWriter) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.w.Write(p)
}

// harden closes what a tool, which runs as the same user, could use against the
// runner. The channel tells of a SIGTERM; once nobody looks at it any more, that
// is discarded like all others.
func harden() (stop <-chan os.Signal, err error) {
	c := make(chan os.Signal, 1)
	signal.Notify(c, syscall.SIGTERM)
	if err := closeDoors(); err != nil {
		return nil, err
	}
	return c, discardSignals()
}
