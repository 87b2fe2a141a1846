package dispatch

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"callgate.dev/callgate/internal/wire"
)

func TestSendBringsBackTheResult(t *testing.T) {
	want := testFrame()
	want.Argv = []string{"echo", "not UTF-8: \xff", ""}
	want.Stdin = bytes.Repeat([]byte("x"), 256<<10)
	answer := strings.Repeat("y", 500<<10)
	stdinClosed := make(chan struct{})
	d, notified := newDispatcher(t, &sandboxServer{attach: func(stdin io.Reader, stdout io.Writer) {
		call := accept(t, stdin, stdout)
		if !bytes.Equal(call.Stdin, want.Stdin) || strings.Join(call.Argv, "|") != strings.Join(want.Argv, "|") {
			t.Errorf("the runner got argv %q and %d bytes of stdin", call.Argv, len(call.Stdin))
		}
		_, err := wire.WriteStderr(stdout, 0, []byte("working"))
		check(t, err)
		report(t, stdout, answer)
		// The runner exits when its stdin is closed, which says that all arrived.
		if rest, err := io.ReadAll(stdin); err != nil || len(rest) > 0 {
			t.Errorf("after the call came %d bytes, %v", len(rest), err)
		}
		close(stdinClosed)
	}})
	d.Send(testTarget(), want)
	snap := ended(t, d, notified)
	if snap.Err != nil || snap.Result == nil || string(snap.Result.Stdout) != answer {
		t.Errorf("the result is %v, error %v", snap.Result != nil, snap.Err)
	}
	if snap.FromLog || snap.Reads != 0 || !snap.Ready || string(snap.Stderr) != "working" {
		t.Errorf("the session is from the log %v, %d reads, ready %v, stderr %q", snap.FromLog, snap.Reads, snap.Ready, snap.Stderr)
	}
	if a := snap.Accepted; a == nil || a.CallUID != string(testUID) || a.Attempt != 1 {
		t.Errorf("accepted is %v", a)
	}
	within(t, "the runner's stdin is closed", stdinClosed)
}

func TestAttachEndings(t *testing.T) {
	status := func(code int, message string) http.HandlerFunc {
		return func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "application/json")
			w.WriteHeader(code)
			_, _ = fmt.Fprintf(w, `{"kind":"Status","apiVersion":"v1","status":"Failure","message":%q,"code":%d}`, message, code)
		}
	}
	for _, tc := range []struct {
		reason string
		attach func(t *testing.T, stdin io.Reader, stdout io.Writer)
		refuse http.HandlerFunc
		waits  func(*waits)
		// what must be known then
		ready, accepted, result bool
		err                     string // contained; empty: no error
		is                      error
	}{
		{reason: "refused: forbidden", refuse: status(http.StatusForbidden, "pods is forbidden: may not attach"), err: "may not attach"},
		{reason: "refused: the pod is gone", refuse: status(http.StatusNotFound, "pod not found"), err: "pod not found"},
		{reason: "refused: the kubelet does not answer", refuse: status(http.StatusBadGateway, "no route to host"), err: "no route to host"},
		{reason: "the server does not answer: the wait has a name",
			refuse: func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() },
			waits:  func(w *waits) { w.accept = 30 * time.Millisecond }, err: "did not accept the call within 30ms"},
		{reason: "it never accepts",
			attach: func(t *testing.T, stdin io.Reader, stdout io.Writer) {
				check(t, wire.WriteReady(stdout))
				_, _ = io.Copy(io.Discard, stdin) // until the client gives up
			},
			waits: func(w *waits) { w.accept = 200 * time.Millisecond }, ready: true, err: "did not accept the call within 200ms"},
		{reason: "it accepts and does not report: the session is bounded",
			attach: func(t *testing.T, stdin io.Reader, stdout io.Writer) {
				accept(t, stdin, stdout)
				_, _ = io.Copy(io.Discard, stdin)
			},
			waits: func(w *waits) { w.slack = -patience + 300*time.Millisecond }, ready: true, accepted: true, err: "took longer than 300ms"},
		{reason: "the stream ends before the call is read", attach: func(t *testing.T, _ io.Reader, stdout io.Writer) { check(t, wire.WriteReady(stdout)) },
			ready: true, err: "without a result"},
		{reason: "the stream ends in the middle of the call", attach: func(_ *testing.T, stdin io.Reader, _ io.Writer) { _, _ = io.ReadFull(stdin, make([]byte, 10)) },
			err: "without a result"},
		{reason: "the stream ends after accepted", attach: func(t *testing.T, stdin io.Reader, stdout io.Writer) { accept(t, stdin, stdout) },
			ready: true, accepted: true, err: "without a result", is: ErrNoResult},
		{reason: "the stream ends in the middle of the result", attach: func(t *testing.T, stdin io.Reader, stdout io.Writer) {
			accept(t, stdin, stdout)
			var b bytes.Buffer
			report(t, &b, strings.Repeat("y", 20<<10))
			_, _ = stdout.Write(b.Bytes()[:b.Len()-5])
		}, ready: true, accepted: true, err: "without a result", is: ErrNoResult},
		{reason: "the result is in the last bytes", attach: func(t *testing.T, stdin io.Reader, stdout io.Writer) {
			accept(t, stdin, stdout)
			report(t, stdout, strings.Repeat("y", 500<<10))
		}, ready: true, accepted: true, result: true},
		{reason: "the stream stays open after the result", attach: func(t *testing.T, stdin io.Reader, stdout io.Writer) {
			accept(t, stdin, stdout)
			report(t, stdout, "{}")
			_, _ = io.Copy(io.Discard, stdin)
			_, _ = io.Copy(stdout, neverEnding{}) // until the client has gone
		}, waits: func(w *waits) { w.end = 30 * time.Millisecond }, ready: true, accepted: true, result: true},
		{reason: "the call does not wait for the sandbox to leave", attach: func(t *testing.T, stdin io.Reader, stdout io.Writer) {
			accept(t, stdin, stdout)
			report(t, stdout, "{}")
			_, _ = io.Copy(io.Discard, stdin)
			<-t.Context().Done()
		}, waits: func(w *waits) { w.end = 2 * patience }, ready: true, accepted: true, result: true},
		{reason: "frames among foreign lines, and a torn one in front", attach: func(t *testing.T, stdin io.Reader, stdout io.Writer) {
			_, _ = io.WriteString(stdout, "rn\"}\nnot a frame\n")
			accept(t, stdin, stdout)
			_, _ = io.WriteString(stdout, strings.Repeat("z", 3*wire.MaxLineBytes)+"\n")
			report(t, stdout, "{}")
		}, ready: true, accepted: true, result: true},
	} {
		t.Run(tc.reason, func(t *testing.T) {
			d, notified := newDispatcher(t, &sandboxServer{refuse: tc.refuse, attach: func(stdin io.Reader, stdout io.Writer) { tc.attach(t, stdin, stdout) }})
			if tc.waits != nil {
				tc.waits(&d.waits)
			}
			d.Send(testTarget(), testFrame())
			snap := ended(t, d, notified)
			if snap.Ready != tc.ready || (snap.Accepted != nil) != tc.accepted || (snap.Result != nil) != tc.result {
				t.Errorf("ready %v, accepted %v, result %v; want %v, %v, %v",
					snap.Ready, snap.Accepted != nil, snap.Result != nil, tc.ready, tc.accepted, tc.result)
			}
			switch {
			case tc.err == "" && snap.Err != nil:
				t.Errorf("error %v", snap.Err)
			case tc.err != "" && (snap.Err == nil || !strings.Contains(snap.Err.Error(), tc.err)):
				t.Errorf("error %v, want %q in it", snap.Err, tc.err)
			case tc.is != nil && !errors.Is(snap.Err, tc.is):
				t.Errorf("error %v, want %v", snap.Err, tc.is)
			}
		})
	}
}

type neverEnding struct{}

func (neverEnding) Read(p []byte) (int, error) {
	time.Sleep(time.Millisecond) // as slow as a tool that drips
	p[0] = '\n'
	return 1, nil
}

func TestResultOfAnotherCallIsNamedAsSuch(t *testing.T) {
	d, notified := newDispatcher(t, &sandboxServer{attach: func(_ io.Reader, stdout io.Writer) {
		check(t, wire.WriteReady(stdout))
		check(t, wire.WriteAccepted(stdout, "another-call", 1))
		check(t, wire.WriteResult(stdout, wire.Seal{CallUID: "another-call", Attempt: 1, PodUID: string(testPod), Key: testKey}, wire.Result{Stdout: []byte("{}"), StdoutBytes: 2}))
	}})
	d.Send(testTarget(), testFrame())
	if snap := ended(t, d, notified); snap.Accepted == nil || snap.Accepted.CallUID != "another-call" {
		t.Errorf("accepted is %v: whoever reads it cannot see that it is not his", snap.Accepted)
	}
}

func TestOneSessionAtATime(t *testing.T) {
	attached, release := make(chan struct{}, 9), make(chan struct{})
	d, notified := newDispatcher(t, &sandboxServer{
		attach: func(stdin io.Reader, stdout io.Writer) {
			attached <- struct{}{}
			accept(t, stdin, stdout)
			<-release
			report(t, stdout, "{}")
		},
		log: func(http.ResponseWriter, *http.Request) { t.Error("the log was read while the stream is open") },
	})
	d.Send(testTarget(), testFrame())
	within(t, "the attach", attached)
	d.Send(testTarget(), testFrame())
	d.Follow(testTarget(), false)
	if snap, ok := d.Get(testUID, 1); !ok || snap.Done || snap.FromLog {
		t.Errorf("the session under way is %+v, known %v", snap, ok)
	}
	close(release)
	if snap := ended(t, d, notified); snap.Result == nil {
		t.Errorf("no result: %v", snap.Err)
	}
	if len(attached) != 0 || len(notified) != 0 {
		t.Errorf("%d further attaches, %d further notifications", len(attached), len(notified))
	}
}

// Each attempt has a session of its own: what an earlier one was told is not said
// of a later one, and an earlier one that is still open does not keep the later
// one from its sandbox.
func TestSessionOfTheNextAttempt(t *testing.T) {
	for _, open := range []bool{false, true} {
		taken := make(chan struct{}, 2)
		release := make(chan struct{})
		d, notified := newDispatcher(t, &sandboxServer{attach: func(stdin io.Reader, stdout io.Writer) {
			accept(t, stdin, stdout)
			taken <- struct{}{}
			if open {
				_, _ = io.Copy(io.Discard, stdin)
				return
			}
			<-release
			// The second one is forgotten by then; that of the first is waited for below.
			_ = wire.WriteResult(stdout, testSeal, wire.Result{Stdout: []byte("{}"), StdoutBytes: 2})
		}})
		d.Send(testTarget(), testFrame())
		within(t, "the first attach", taken)
		if !open {
			release <- struct{}{}
			ended(t, d, notified)
		}
		second := testTarget()
		second.Attempt = 2
		d.Send(second, testFrame())
		if snap, ok := d.Get(testUID, 2); !ok || snap.Result != nil || snap.Accepted != nil && snap.Accepted.Attempt != 2 {
			t.Errorf("first one open %v: the second session is %+v, known %v", open, snap, ok)
		}
		if _, ok := d.Get(testUID, 1); ok {
			t.Errorf("first one open %v: it is still known", open)
		}
		within(t, "the second attach", taken)
		d.Follow(testTarget(), false) // by somebody who is late
		if _, ok := d.Get(testUID, 2); !ok {
			t.Errorf("first one open %v: the second session was replaced by one of the first", open)
		}
		d.Forget(testCall, "")
		close(release)
	}
}

func TestForget(t *testing.T) {
	attached, gone := make(chan struct{}), make(chan struct{})
	d, notified := newDispatcher(t, &sandboxServer{attach: func(stdin io.Reader, stdout io.Writer) {
		accept(t, stdin, stdout)
		close(attached)
		_, _ = io.Copy(io.Discard, stdin)
		close(gone)
	}})
	d.Send(testTarget(), testFrame())
	within(t, "the attach", attached)

	d.Forget(testCall, testUID)
	d.Forget(types.NamespacedName{Namespace: "agents", Name: "another"}, "")
	if _, ok := d.Get(testUID, 1); !ok {
		t.Fatal("the session to keep was forgotten")
	}
	d.Forget(testCall, "re-created-with-another-uid")
	if _, ok := d.Get(testUID, 1); ok {
		t.Error("the session is still known")
	}
	within(t, "the stream ends", gone)
	select {
	case <-notified: // so that the call is looked at, should it still be there
	case <-time.After(patience):
		t.Error("the forgotten session does not end")
	}
	if _, ok := d.Get(testUID, 1); ok {
		t.Error("the session came back")
	}
}
