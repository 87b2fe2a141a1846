//go:build linux

package runner

import (
	"bytes"
	"errors"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"callgate.dev/callgate/internal/wire"
)

func TestWithoutACallNothingStarts(t *testing.T) {
	var good bytes.Buffer
	if err := wire.WriteCall(&good, callUID, 1, podUID, call("touch", "ran")); err != nil {
		t.Fatal(err)
	}
	tests := []struct {
		reason string
		in     []byte
		says   string
	}{
		{"stdin is closed", nil, "closed before a call"},
		{"half a call", good.Bytes()[:good.Len()-1], "body ended"},
		{"a damaged call", bytes.Replace(good.Bytes(), []byte("argv"), []byte("arga"), 1), "SHA-256"},
		{"noise", []byte("hello\nworld\n"), "not valid JSON"},
		{"for another pod", bytes.Replace(good.Bytes(), []byte(podUID), []byte(callUID), 1), "for pod"},
	}
	for _, tt := range tests {
		t.Run(tt.reason, func(t *testing.T) {
			s := open(t)
			if _, err := s.stdin.Write(tt.in); err != nil {
				t.Fatal(err)
			}
			_ = s.stdin.Close()
			if code := s.exit(); code != wire.ExitNoCall {
				t.Errorf("exit code %d", code)
			}
			state := s.Snapshot()
			if !state.Ready || state.Accepted != nil || !strings.Contains(state.NoCall, tt.says) {
				t.Errorf("%+v", state)
			}
			for _, path := range []string{"/ran", "/state/used"} {
				if _, err := os.Stat(s.dir + path); !errors.Is(err, os.ErrNotExist) {
					t.Errorf("%s is there: %v", path, err)
				}
			}
		})
	}
	t.Run("a runner that does not know its pod", func(t *testing.T) {
		s := open(t, func(c *exec.Cmd) { c.Env = []string{"PATH=/bin"} })
		s.send(call("touch", "ran"))
		if code := s.exit(); code != wire.ExitNoCall || s.Snapshot().Accepted != nil {
			t.Errorf("exit code %d, %+v", code, s.Snapshot())
		}
	})
}

func TestReadyComesBeforeTheCall(t *testing.T) {
	s := open(t)
	s.waitFor("ready", isReady)
	s.send(call("true"))
	s.result()
}

func TestOneCallForEver(t *testing.T) {
	s := open(t)
	s.send(call(sh("echo ran >>runs; sleep 0.3")...))
	s.send(call(sh("echo again >>runs")...)) // a second call: ignored
	s.result()
	_ = s.stdin.Close()
	if code := s.exit(); code != wire.ExitReported {
		t.Errorf("exit code %d", code)
	}

	again := open(t, func(c *exec.Cmd) { c.Dir = s.dir }) // the same pod, another container
	_ = wire.WriteCall(again.stdin, callUID, 2, podUID, call(sh("echo again >>runs")...))
	if code := again.exit(); code != wire.ExitUsed {
		t.Errorf("exit code of the second runner %d", code)
	}
	if state := again.Snapshot(); state.Accepted != nil || !strings.Contains(state.NoCall, "taken a call before") {
		t.Errorf("%+v", state)
	}
	if runs, err := os.ReadFile(s.dir + "/runs"); string(runs) != "ran\n" {
		t.Errorf("runs %q, %v", runs, err)
	}
}

// TestTwoRunnersOneMarker: the marker appears while the second one waits.
func TestTwoRunnersOneMarker(t *testing.T) {
	first := open(t)
	second := open(t, func(c *exec.Cmd) { c.Dir = first.dir })
	for _, s := range []*sandbox{first, second} {
		s.waitFor("ready", isReady)
	}
	first.send(call("true"))
	first.result()
	second.send(call("true"))
	if code := second.exit(); code != wire.ExitUsed || second.Snapshot().Accepted != nil {
		t.Errorf("exit code %d, %+v", code, second.Snapshot())
	}
}

func TestNoMarkerNoCall(t *testing.T) {
	s := open(t, func(c *exec.Cmd) {
		if err := os.Remove(c.Dir + "/state"); err != nil {
			t.Fatal(err)
		}
	})
	s.send(call("touch", "ran"))
	if code := s.exit(); code != wire.ExitNoCall {
		t.Errorf("exit code %d", code)
	}
	if state := s.Snapshot(); state.Accepted != nil || !strings.Contains(state.NoCall, "cannot mark this pod") {
		t.Errorf("%+v", state)
	}
	if _, err := os.Stat(s.dir + "/ran"); err == nil {
		t.Error("the tool ran")
	}
}

func TestSIGTERM(t *testing.T) {
	t.Run("while it waits it means stop", func(t *testing.T) {
		s := open(t)
		s.waitFor("ready", isReady)
		if err := s.cmd.Process.Signal(syscall.SIGTERM); err != nil {
			t.Fatal(err)
		}
		if code := s.exit(); code != wire.ExitNoCall {
			t.Errorf("exit code %d", code)
		}
		if state := s.Snapshot(); !strings.Contains(state.NoCall, "told to stop") {
			t.Errorf("%+v", state)
		}
	})
	t.Run("after the call was accepted it means nothing", func(t *testing.T) {
		s := open(t)
		s.send(call(sh("sleep 0.5; echo done")...))
		select {
		case <-s.AcceptedSeen():
		case <-time.After(patience):
			t.Fatal("not accepted")
		}
		for _, sig := range []syscall.Signal{syscall.SIGTERM, syscall.SIGINT, syscall.SIGHUP, syscall.SIGQUIT, syscall.SIGUSR1, syscall.SIGPIPE, syscall.SIGSEGV, syscall.SIGSYS} {
			if err := s.cmd.Process.Signal(sig); err != nil {
				t.Fatal(err)
			}
		}
		if r := s.result(); string(r.Stdout) != "done\n" || r.TimedOut {
			t.Errorf("%+v", r)
		}
	})
}

func TestDetachedInTheMiddleItRunsOn(t *testing.T) {
	s := open(t)
	s.send(call(sh("sleep 0.3; echo done")...))
	_ = s.stdin.Close()
	if r := s.result(); string(r.Stdout) != "done\n" {
		t.Errorf("%+v", r)
	}
	if code := s.exit(); code != wire.ExitReported {
		t.Errorf("exit code %d", code)
	}
}

func TestItDoesNotWaitForEverForItsReader(t *testing.T) {
	s := open(t)
	s.send(call("true"))
	s.result()
	begin := time.Now()
	if code := s.exit(); code != wire.ExitReported { // stdin is never closed
		t.Errorf("exit code %d", code)
	}
	if waited := time.Since(begin); waited < lingerTimeout/2 || waited > lingerTimeout+5*time.Second {
		t.Errorf("it waited %v for its reader, want %v", waited, lingerTimeout)
	}
}

// TestResultThatCannotBePrinted: the exit code is what remains.
func TestResultThatCannotBePrinted(t *testing.T) {
	output, toOutput := toPipe(t)
	s := open(t, toOutput)
	closeStdout(t, s)
	s.send(call(sh("while [ ! -e go ]; do sleep 0.01; done")...))
	for buf := make([]byte, 4096); s.Snapshot().Accepted == nil; {
		n, err := output.Read(buf)
		if err != nil {
			t.Fatal(err)
		}
		_, _ = s.Write(buf[:n])
	}
	_ = output.Close() // nobody reads any more
	if err := os.WriteFile(s.dir+"/go", nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if code := s.exit(); code != wire.ExitNotReported {
		t.Errorf("exit code %d (%v)", code, s.cmd.ProcessState)
	}
}

// closeStdout closes the test's own copy of the runner's end of a pipe.
func closeStdout(t *testing.T, s *sandbox) {
	t.Helper()
	if err := s.cmd.Stdout.(*os.File).Close(); err != nil {
		t.Fatal(err)
	}
}

func TestStderrIsLive(t *testing.T) {
	s := open(t)
	s.send(call(sh("echo working >&2; while [ ! -e go ]; do sleep 0.01; done")...))
	s.waitFor("stderr", func(state wire.State) bool { return string(state.Stderr) == "working\n" })
	if s.Snapshot().Result != nil {
		t.Error("the tool has ended already")
	}
	if err := os.WriteFile(s.dir+"/go", nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if r := s.result(); string(r.StderrTail) != "working\n" {
		t.Errorf("%+v", r)
	}
}

// TestReaderThatStalls: a blocked stdout does not hold up the tool, only its
// result.
func TestReaderThatStalls(t *testing.T) {
	output, toOutput := toPipe(t)
	s := open(t, toOutput)
	closeStdout(t, s)
	// More stderr than a pipe holds, then a sign that the tool got past it.
	s.send(call(sh("yes | head -c 5000000 >&2; echo done >past")...))
	s.waitFor("the tool gets on although nobody reads", func(wire.State) bool {
		text, _ := os.ReadFile(s.dir + "/past") // not there yet
		return string(text) == "done\n"
	})
	for buf := make([]byte, 64<<10); s.Snapshot().Result == nil; {
		n, err := output.Read(buf)
		if err != nil {
			t.Fatalf("%v; %q", err, s.Snapshot().Damaged)
		}
		_, _ = s.Write(buf[:n])
	}
	_ = s.stdin.Close()
	if code := s.exit(); code != wire.ExitReported || s.result().StderrBytes != 5_000_000 {
		t.Errorf("exit code %d, %d bytes of stderr", code, s.result().StderrBytes)
	}
}

// BenchmarkTrue is from the call's first byte to the whole result, by a runner
// that waits.
func BenchmarkTrue(b *testing.B) {
	for _, sockets := range []bool{false, true} {
		name := "filter"
		if sockets {
			name = "no filter"
		}
		b.Run(name, func(b *testing.B) {
			var total time.Duration
			for b.Loop() {
				dir := b.TempDir()
				if err := os.Mkdir(dir+"/state", 0o700); err != nil {
					b.Fatal(err)
				}
				tr := wire.Transcript{Seal: testSeal}
				cmd := exec.Command(bin + "/runner")
				cmd.Dir, cmd.Stdout = dir, &tr
				cmd.Env = []string{"PATH=/bin:/usr/bin", podUIDVariable + "=" + podUID}
				stdin, err := cmd.StdinPipe()
				if err != nil {
					b.Fatal(err)
				}
				if err := cmd.Start(); err != nil {
					b.Fatal(err)
				}
				for !tr.Snapshot().Ready {
					time.Sleep(100 * time.Microsecond)
				}
				c := call("true")
				c.AllowSockets = sockets
				begin := time.Now()
				if err := wire.WriteCall(stdin, callUID, 1, podUID, c); err != nil {
					b.Fatal(err)
				}
				<-tr.ResultSeen()
				total += time.Since(begin)
				_ = stdin.Close()
				if err := cmd.Wait(); err != nil {
					b.Fatal(err)
				}
			}
			b.ReportMetric(float64(total.Microseconds())/float64(b.N), "µs/call")
		})
	}
}
