package dispatch

import (
	"bytes"
	"errors"
	"io"
	"net/http"
	"strings"
	"testing"

	"callgate.dev/callgate/internal/wire"
)

// TestForgedResults: somebody attached to the sandbox, or wrote into its log, and
// printed perfect frames.
func TestForgedResults(t *testing.T) {
	printed := func(s wire.Seal, stdout string) []byte {
		var b bytes.Buffer
		if err := wire.WriteResult(&b, s, wire.Result{Stdout: []byte(stdout), StdoutBytes: int64(len(stdout))}); err != nil {
			t.Fatal(err)
		}
		return b.Bytes()
	}
	sealOf := func(change func(*wire.Seal)) wire.Seal {
		s := testSeal
		change(&s)
		return s
	}
	forgedKey := wire.Key(strings.Repeat("f", wire.KeyBytes))
	forged := printed(sealOf(func(s *wire.Seal) { s.Key = forgedKey }), `"forged"`)
	otherAttempt := printed(sealOf(func(s *wire.Seal) { s.Attempt, s.Key = 2, forgedKey }), `"replayed"`)
	otherPod := printed(sealOf(func(s *wire.Seal) { s.PodUID = "another-pod" }), `"replayed"`)
	mine := printed(testSeal, `"mine"`)
	version1 := []byte(`{"version":1,"type":"result","callUID":"` + string(testUID) + `","attempt":1,"part":1,"parts":1,"sha256":"","data":"e30K"}` + "\n")
	flipped := bytes.Replace(mine, []byte(`"data":"`), []byte(`"data":"AAAA`), 1)

	for _, tc := range []struct {
		reason string
		print  [][]byte
		key    wire.Key // of the controller
		stdout string   // of the result
		err    string
	}{
		{"only a forged one", [][]byte{forged}, testKey, "", "that could be read: it does not open with the key of this attempt"},
		{"a forged one in front", [][]byte{forged, mine}, testKey, `"mine"`, ""},
		{"a forged one behind", [][]byte{mine, forged}, testKey, `"mine"`, ""},
		{"a replay of another attempt", [][]byte{otherAttempt}, testKey, "", "attempt 2, which is another one"},
		{"a replay of another attempt, then the true one", [][]byte{otherAttempt, mine}, testKey, `"mine"`, ""},
		{"a replay from another pod", [][]byte{otherPod}, testKey, "", "it does not open"},
		{"as the version before printed it", [][]byte{version1}, testKey, "", "ended without a result"},
		{"changed on its way", [][]byte{flipped}, testKey, "", "SHA-256"},
		{"its last part is cut off", [][]byte{mine[:len(mine)-5]}, testKey, "", "ended without a result"},
		{"the controller's key was replaced since", [][]byte{mine}, forgedKey, "", "the controller's key (Secret callgate-result-key) was replaced"},
		{"the controller has no key", [][]byte{mine}, nil, "", "the key to open it is not there"},
	} {
		t.Run(tc.reason, func(t *testing.T) {
			write := func(w io.Writer) {
				for _, p := range tc.print {
					_, _ = w.Write(p) // the reader may have enough
				}
			}
			target := testTarget()
			target.Key = tc.key
			look := func(from string, snap Snapshot) {
				t.Helper()
				if got := snap.Result; (got != nil) != (tc.stdout != "") || got != nil && string(got.Stdout) != tc.stdout {
					t.Errorf("%s: the result is %+v, want %q", from, got, tc.stdout)
				}
				if tc.err == "" && snap.Err != nil || tc.err != "" && (!errors.Is(snap.Err, ErrNoResult) || !strings.Contains(snap.Err.Error(), tc.err)) {
					t.Errorf("%s: error %v, want %q in it", from, snap.Err, tc.err)
				}
			}
			d, notified := newDispatcher(t, &sandboxServer{log: func(w http.ResponseWriter, _ *http.Request) {
				check(t, wire.WriteReady(w))
				check(t, wire.WriteAccepted(w, string(testUID), 1))
				write(w)
			}})
			d.Follow(target, true)
			look("log", ended(t, d, notified))
			if len(tc.key) == 0 {
				return // a call is not sent then
			}
			d, notified = newDispatcher(t, &sandboxServer{attach: func(stdin io.Reader, stdout io.Writer) {
				accept(t, stdin, stdout)
				write(stdout)
			}})
			d.Send(target, testFrame())
			look("attach", ended(t, d, notified))
		})
	}
}

// TestNoCallIsSentWithoutAKey: its result would be readable by all.
func TestNoCallIsSentWithoutAKey(t *testing.T) {
	d, notified := newDispatcher(t, &sandboxServer{attach: func(stdin io.Reader, _ io.Writer) {
		if sent, _ := io.ReadAll(stdin); len(sent) > 0 {
			t.Errorf("%d bytes were sent", len(sent))
		}
	}})
	target := testTarget()
	target.Key = nil
	d.Send(target, testFrame())
	if snap := ended(t, d, notified); snap.Err == nil || !strings.Contains(snap.Err.Error(), "resultKey has 0 bytes") {
		t.Errorf("error %v", snap.Err)
	}
}
