package dispatch

import (
	"bytes"
	"errors"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"callgate.dev/callgate/internal/wire"
)

func TestLogEndings(t *testing.T) {
	frames := func(write ...func(io.Writer) error) []byte {
		var b bytes.Buffer
		for _, w := range write {
			if err := w(&b); err != nil {
				t.Fatal(err)
			}
		}
		return b.Bytes()
	}
	readyFrame := wire.WriteReady
	acceptedFrame := func(w io.Writer) error { return wire.WriteAccepted(w, string(testUID), 1) }
	resultFrame := func(w io.Writer) error {
		return wire.WriteResult(w, testSeal, wire.Result{Stdout: bytes.Repeat([]byte("y"), 20<<10), StdoutBytes: 20 << 10})
	}
	hang := func(r *http.Request) { <-r.Context().Done() }
	emit := func(w http.ResponseWriter, p []byte) {
		_, _ = w.Write(p)
		flush(w)
	}
	for _, tc := range []struct {
		reason                  string
		log                     http.HandlerFunc
		waits                   func(*waits)
		ready, accepted, result bool
		err                     string
		is, isNot               error
	}{
		{reason: "a whole log", log: func(w http.ResponseWriter, _ *http.Request) { emit(w, frames(readyFrame, acceptedFrame, resultFrame)) },
			ready: true, accepted: true, result: true},
		{reason: "the result is there, the log stays open: what is known is enough",
			log: func(w http.ResponseWriter, r *http.Request) {
				emit(w, frames(readyFrame, acceptedFrame, resultFrame))
				hang(r)
			}, ready: true, accepted: true, result: true},
		{reason: "the beginning was rotated away", log: func(w http.ResponseWriter, _ *http.Request) {
			emit(w, append([]byte("torn\"}\n"), frames(resultFrame)...))
		}, accepted: true, result: true},
		{reason: "the result comes long after accepted: a running tool is waited for",
			log: func(w http.ResponseWriter, _ *http.Request) {
				emit(w, frames(readyFrame, acceptedFrame))
				time.Sleep(100 * time.Millisecond) // longer than catchUp
				emit(w, frames(resultFrame))
			}, waits: func(w *waits) { w.catchUp = 50 * time.Millisecond }, ready: true, accepted: true, result: true},
		{reason: "only ready, and it was followed long enough: no call was accepted so far",
			log: func(w http.ResponseWriter, r *http.Request) {
				emit(w, frames(readyFrame))
				hang(r)
			}, waits: func(w *waits) { w.catchUp = 100 * time.Millisecond }, ready: true, err: "no accepted call after 100ms", is: ErrNotAccepted, isNot: ErrNoResult},
		{reason: "only ready, then the end: a call may have been accepted since", log: func(w http.ResponseWriter, _ *http.Request) { emit(w, frames(readyFrame)) },
			ready: true, err: "ended without a result", is: ErrNoResult, isNot: ErrNotAccepted},
		{reason: "an empty log", log: func(http.ResponseWriter, *http.Request) {}, err: "ended without a result", is: ErrNoResult, isNot: ErrNotAccepted},
		{reason: "the kubelet's excuse instead of a log",
			log: func(w http.ResponseWriter, _ *http.Request) {
				emit(w, []byte("unable to retrieve container logs for containerd://abc"))
			},
			err: "ended without a result", is: ErrNoResult},
		{reason: "half a result", log: func(w http.ResponseWriter, _ *http.Request) {
			p := frames(readyFrame, acceptedFrame, resultFrame)
			emit(w, p[:len(p)-9])
		}, ready: true, accepted: true, err: "ended without a result", is: ErrNoResult},
		{reason: "it breaks in the middle", log: func(w http.ResponseWriter, _ *http.Request) {
			emit(w, frames(readyFrame, acceptedFrame))
			panic(http.ErrAbortHandler)
		}, ready: true, accepted: true, err: "broke without a result", isNot: ErrNoResult},
		{reason: "it cannot be read", log: func(w http.ResponseWriter, _ *http.Request) {
			http.Error(w, "container not found", http.StatusNotFound)
		},
			err: "read the sandbox's log", isNot: ErrNoResult},
		{reason: "the kubelet does not answer the API server", log: func(w http.ResponseWriter, _ *http.Request) {
			http.Error(w, "dial tcp: refused", http.StatusBadGateway)
		},
			err: "read the sandbox's log", isNot: ErrNoResult},
		{reason: "nobody answers at all: the wait has a name", log: func(_ http.ResponseWriter, r *http.Request) { hang(r) },
			waits: func(w *waits) { w.open = 50 * time.Millisecond }, err: "did not begin within 50ms", isNot: ErrNoResult},
		{reason: "a log without end is read up to a bound", log: func(w http.ResponseWriter, _ *http.Request) {
			_, _ = w.Write(frames(readyFrame, acceptedFrame))
			line := []byte(strings.Repeat("z", 64<<10) + "\n")
			for {
				if _, err := w.Write(line); err != nil {
					return
				}
			}
		}, ready: true, accepted: true, err: "without a result"},
	} {
		t.Run(tc.reason, func(t *testing.T) {
			d, notified := newDispatcher(t, &sandboxServer{log: tc.log})
			if tc.waits != nil {
				tc.waits(&d.waits)
			}
			d.Follow(testTarget(), false)
			snap := ended(t, d, notified)
			if !snap.FromLog || snap.Reads != 0 {
				t.Errorf("from the log is %v, reads %d of an ended container", snap.FromLog, snap.Reads)
			}
			if snap.Ready != tc.ready || (snap.Accepted != nil) != tc.accepted || (snap.Result != nil) != tc.result {
				t.Errorf("ready %v, accepted %v, result %v; want %v, %v, %v",
					snap.Ready, snap.Accepted != nil, snap.Result != nil, tc.ready, tc.accepted, tc.result)
			}
			if (snap.Err == nil) != (tc.err == "") || tc.err != "" && !strings.Contains(snap.Err.Error(), tc.err) {
				t.Errorf("error %v, want %q in it", snap.Err, tc.err)
			}
			if tc.is != nil && !errors.Is(snap.Err, tc.is) || tc.isNot != nil && errors.Is(snap.Err, tc.isNot) {
				t.Errorf("error %v, want %v and not %v", snap.Err, tc.is, tc.isNot)
			}
		})
	}
}

func TestWhatASessionSawIsKept(t *testing.T) {
	d, notified := newDispatcher(t, &sandboxServer{
		attach: func(stdin io.Reader, stdout io.Writer) { accept(t, stdin, stdout) },
		log:    func(w http.ResponseWriter, _ *http.Request) { http.Error(w, "gone", http.StatusNotFound) },
	})
	d.Send(testTarget(), testFrame())
	ended(t, d, notified)
	for i, tc := range []struct {
		ended bool
		reads int
	}{{false, 0}, {true, 1}, {true, 2}} {
		d.Follow(testTarget(), tc.ended)
		snap := ended(t, d, notified)
		if snap.Accepted == nil || snap.Accepted.CallUID != string(testUID) {
			t.Errorf("read %d: accepted is %v: an unreadable log does not undo what was seen", i, snap.Accepted)
		}
		if snap.Reads != tc.reads {
			t.Errorf("read %d: %d reads of the ended container, want %d", i, snap.Reads, tc.reads)
		}
	}
}

func TestAnUnreachableAPIServerIsNoRead(t *testing.T) {
	s := &sandboxServer{}
	d, notified := newDispatcher(t, s)
	s.http.Close()
	for range 3 {
		d.Follow(testTarget(), true)
		if snap := ended(t, d, notified); snap.Reads != 0 || snap.Err == nil {
			t.Errorf("%d reads, error %v: nobody was asked", snap.Reads, snap.Err)
		}
	}
}

func TestTheLogOfAnEndedContainerIsNotWaitedForLong(t *testing.T) {
	d, notified := newDispatcher(t, &sandboxServer{log: func(w http.ResponseWriter, r *http.Request) {
		check(t, wire.WriteAccepted(w, string(testUID), 1))
		flush(w)
		<-r.Context().Done()
	}})
	d.waits.whole = 200 * time.Millisecond
	d.Follow(testTarget(), true)
	snap := ended(t, d, notified)
	if snap.Err == nil || !strings.Contains(snap.Err.Error(), "took longer than 200ms") || snap.Reads != 1 {
		t.Errorf("error %v, %d reads", snap.Err, snap.Reads)
	}
}
