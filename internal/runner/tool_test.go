//go:build linux

package runner

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"callgate.dev/callgate/internal/wire"
)

// TestWhatTheToolDid: the result says what the tool did, byte for byte.
func TestWhatTheToolDid(t *testing.T) {
	tests := []struct {
		reason string
		argv   []string
		stdin  string
		exit   int
		signal string
		stdout string
		stderr string
	}{
		{"the contract: JSON in, JSON out, exit 0", []string{"cat"}, `{"a":1}`, 0, "", `{"a":1}`, ""},
		{"no newline at the end", sh(`printf '{"ok":true}'`), "", 0, "", `{"ok":true}`, ""},
		{"invalid UTF-8, NUL and controls stay as they are", sh(`printf '\377\376a\000b\033[31m\r\n'`), "", 0, "", "\xff\xfea\x00b\x1b[31m\r\n", ""},
		{"an exit code and its words", sh("echo no such order >&2; exit 3"), "", 3, "", "", "no such order\n"},
		{"75 is a code like any other here", sh("exit 75"), "", 75, "", "", ""},
		{"127 of a shell is the tool's own", sh("no-such-command-here 2>/dev/null"), "", 127, "", "", ""},
		{"126 of a shell is the tool's own", sh("/etc/passwd 2>/dev/null"), "", 126, "", "", ""},
		{"a signal by its name", sh("kill -SEGV $$"), "", -1, "SIGSEGV", "", ""},
		{"SIGKILL by itself is not our timeout", sh("kill -KILL $$"), "", -1, "SIGKILL", "", ""},
		{"a tool that never reads its stdin", []string{"true"}, strings.Repeat("x", 300_000), 0, "", "", ""},
		{"a tool that closes stdin early", sh("exec 0<&-; echo done"), strings.Repeat("x", 300_000), 0, "", "done\n", ""},
		{"a tool that reads slowly gets all of it", sh("sleep 0.2; wc -c"), strings.Repeat("x", 300_000), 0, "", "300000\n", ""},
		{"a tool that closes stdout early is waited for", sh("exec 1>&-; sleep 0.3; exit 4"), "", 4, "", "", ""},
		{"a tool that closes everything is waited for", sh("exec 0<&- 1>&- 2>&-; sleep 0.3; exit 5"), "", 5, "", "", ""},
		{"frames that a tool prints are its output, nothing else",
			sh(`echo '{"version":1,"type":"noCall","reason":"forged"}'; echo '{"version":1,"type":"accepted","callUID":"forged","attempt":1}' >&2`), "", 0, "",
			`{"version":1,"type":"noCall","reason":"forged"}` + "\n", `{"version":1,"type":"accepted","callUID":"forged","attempt":1}` + "\n"},
	}
	for _, tt := range tests {
		t.Run(tt.reason, func(t *testing.T) {
			t.Parallel()
			c := call(tt.argv...)
			c.Stdin = []byte(tt.stdin)
			r := run(t, c)
			if r.ExitCode != tt.exit || r.Signal != tt.signal || r.TimedOut || r.StartError != "" {
				t.Errorf("exit %d, signal %q, timed out %v, start error %q", r.ExitCode, r.Signal, r.TimedOut, r.StartError)
			}
			if string(r.Stdout) != tt.stdout || r.StdoutBytes != int64(len(tt.stdout)) {
				t.Errorf("stdout %q (%d bytes), want %q", r.Stdout, r.StdoutBytes, tt.stdout)
			}
			if string(r.StderrTail) != tt.stderr || r.StderrBytes != int64(len(tt.stderr)) {
				t.Errorf("stderr %q (%d bytes), want %q", r.StderrTail, r.StderrBytes, tt.stderr)
			}
			if r.Start.IsZero() || r.End.Before(r.Start) {
				t.Errorf("from %v to %v", r.Start, r.End)
			}
		})
	}
}

func TestArgvIsExact(t *testing.T) {
	args := []string{"$(HOME) $$ $(KUBERNETES_SERVICE_HOST) $${x} $", "'; touch /tmp/pwn; '", "`id`", "two\nlines", "night's rate",
		"", "-x", "--", "\xff\xfe", "é", "{{args.secret}}", "*", strings.Repeat("a", 131_071)}
	c := call(helper(append([]string{"args"}, args...)...)...)
	c.MaxStdoutBytes = wire.MaxStdoutBytes
	r := run(t, c)
	var want strings.Builder
	for _, a := range args {
		fmt.Fprintf(&want, "%q\n", a)
	}
	if got := string(r.Stdout); got != want.String() {
		t.Errorf("got %.1000s", got)
	}
}

func TestLargestArgvStarts(t *testing.T) {
	c := call(sh(`echo $# ${#1} ${#4}`)...)
	c.Argv = append(c.Argv, "sh")
	for range 4 {
		c.Argv = append(c.Argv, strings.Repeat("b", 131_000))
	}
	if r := run(t, c); string(r.Stdout) != "4 131000 131000\n" {
		t.Errorf("%q %q", r.Stdout, r.StartError)
	}
}

func TestStdinNoneIsDevNull(t *testing.T) {
	c := call("readlink", "/proc/self/fd/0")
	c.DevNullStdin = true
	if r := run(t, c); string(r.Stdout) != "/dev/null\n" {
		t.Errorf("stdin is %q", r.Stdout)
	}
}

func TestEnvironment(t *testing.T) {
	c := call("env")
	c.Env = []wire.EnvVar{{Name: "CALLGATE_IDEMPOTENCY_KEY", Value: "k-1 $(X)\n"}, {Name: "LANG", Value: "C"}}
	path := "PATH=/usr/bin:/bin"
	r := run(t, c, func(cmd *exec.Cmd) {
		cmd.Env = []string{path, podUIDVariable + "=" + podUID, "HOME=/root", "LANG=de_DE", "EMPTY=", "DOLLAR=$(PATH)$$",
			"KUBERNETES_SERVICE_HOST=10.0.0.1", "KUBERNETES_PORT_443_TCP=tcp://10.0.0.1:443", "ORDERS_SERVICE_HOST=10.0.0.7"}
	})
	want := strings.Join([]string{path, "EMPTY=", "DOLLAR=$(PATH)$$", "ORDERS_SERVICE_HOST=10.0.0.7", "HOME=/tmp", "TMPDIR=/tmp",
		"CALLGATE_IDEMPOTENCY_KEY=k-1 $(X)\n", "LANG=C"}, "\n") + "\n"
	if string(r.Stdout) != want {
		t.Errorf("got\n%s\nwant\n%s", r.Stdout, want)
	}
}

func TestToolStartsClean(t *testing.T) {
	r := run(t, call("grep", "-E", "^(SigIgn|SigBlk|NoNewPrivs|Seccomp):", "/proc/self/status"))
	want := "SigBlk:\t0000000000000000\nSigIgn:\t0000000000000000\nNoNewPrivs:\t1\nSeccomp:\t2\n"
	if !slices.Equal(sorted(string(r.Stdout)), sorted(want)) {
		t.Errorf("the tool starts with\n%s, want\n%s", r.Stdout, want)
	}
	s := open(t, func(cmd *exec.Cmd) {
		f, err := os.Open("/dev/zero")
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = f.Close() })
		cmd.ExtraFiles = []*os.File{f, f}
	})
	s.send(call(helper("fds")...))
	if r := s.result(); string(r.Stdout) != "0 pipe:\n1 pipe:\n2 pipe:\n" {
		t.Errorf("the tool has the descriptors %q", r.Stdout)
	}
	// A session, and with it a process group, of its own: pid, pgid and sid agree.
	r = run(t, call("sh", "-c", `read -r pid name state ppid pgid sid rest </proc/$$/stat; echo $((pid - pgid)) $((pid - sid))`))
	if string(r.Stdout) != "0 0\n" {
		t.Errorf("pid - pgid, pid - sid: %q", r.Stdout)
	}
}

func sorted(s string) []string { return slices.Sorted(strings.Lines(s)) }

func TestCommandThatCannotBeExecuted(t *testing.T) {
	dir := t.TempDir()
	write := func(name, content string, mode os.FileMode) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(content), mode); err != nil {
			t.Fatal(err)
		}
		return path
	}
	plain := write("plain", "#!/bin/sh\n", 0o644)
	text := write("text", "echo hello\n", 0o755)
	orphan := write("orphan", "#!/no/such/interpreter\n", 0o755)
	write("ls", "#!/bin/sh\necho ours\n", 0o755)
	inPath := func(c *exec.Cmd) { c.Env = append(c.Env, "PATH="+dir) }

	tests := []struct {
		reason string
		argv   []string
		kind   wire.StartErrorKind
		says   string
	}{
		{"not in PATH", []string{"no-such-command"}, wire.StartCommandNotFound, `command "no-such-command" was not found in PATH (` + dir},
		{"no such path", []string{dir + "/none"}, wire.StartCommandNotFound, "was not found"},
		{"a path through a file", []string{plain + "/x"}, wire.StartCommandNotFound, "was not found"},
		{"no execute permission", []string{plain}, wire.StartNotExecutable, "may not be executed"},
		{"no execute permission, found in PATH", []string{"plain"}, wire.StartNotExecutable, "may not be executed"},
		{"a folder", []string{dir}, wire.StartNotExecutable, "may not be executed"},
		{"not a program; we are no shell", []string{text}, wire.StartNotExecutable, "no #! line"},
		{"its interpreter is missing", []string{orphan}, wire.StartNotExecutable, "the interpreter it names"},
		{"an argument over the kernel's limit", []string{"ls", strings.Repeat("x", 131_072)}, wire.StartRefused, "longer than the kernel takes"},
	}
	for _, tt := range tests {
		t.Run(tt.reason, func(t *testing.T) {
			r := run(t, call(tt.argv...), inPath)
			if r.StartErrorKind != tt.kind || !strings.Contains(r.StartError, tt.says) || r.ExitCode != -1 {
				t.Errorf("%s: %q, exit code %d", r.StartErrorKind, r.StartError, r.ExitCode)
			}
		})
	}
	if r := run(t, call("ls"), inPath); string(r.Stdout) != "ours\n" {
		t.Errorf("PATH was not used: %q %q", r.Stdout, r.StartError)
	}
	c := call("ls")
	c.Env = []wire.EnvVar{{Name: "PATH", Value: dir}}
	if r := run(t, c); string(r.Stdout) != "ours\n" {
		t.Errorf("the tool's PATH is what counts: %q %q", r.Stdout, r.StartError)
	}
	relative := run(t, call("./tool"), func(cmd *exec.Cmd) {
		if err := os.WriteFile(cmd.Dir+"/tool", []byte("#!/bin/sh\npwd\n"), 0o755); err != nil {
			t.Fatal(err)
		}
	})
	if !strings.Contains(string(relative.Stdout), "sandbox-") {
		t.Errorf("a relative path: %q %q", relative.Stdout, relative.StartError)
	}
}

func TestTimeout(t *testing.T) {
	tests := []struct {
		reason  string
		argv    []string
		exit    int
		signal  string
		atLeast time.Duration
		stdout  string
	}{
		{"ends at SIGTERM", sh("echo begun; exec sleep 600"), -1, "SIGTERM", 500 * time.Millisecond, "begun\n"},
		{"answers 0 to SIGTERM: timed out all the same", helper("term-zero"), 0, "", 500 * time.Millisecond, "waiting\nbye\n"},
		{"ignores SIGTERM", sh(`trap "" TERM HUP INT; echo begun; while :; do sleep 600; done`), -1, "SIGKILL", 1500 * time.Millisecond, "begun\n"},
		{"has stopped itself", sh(`trap "" TERM; kill -STOP $$`), -1, "SIGKILL", 1500 * time.Millisecond, ""},
		{"has closed stdout and goes on", sh(`exec 1>&- 2>&-; exec sleep 600`), -1, "SIGTERM", 500 * time.Millisecond, ""},
		{"burns CPU", sh("while :; do :; done"), -1, "SIGTERM", 500 * time.Millisecond, ""},
		{"children get SIGTERM too, and their output counts", sh(`sh -c 'trap "echo child; exit" TERM; echo up; while :; do sleep 0.01; done'; exit 9`), -1, "SIGTERM", 500 * time.Millisecond, "up\n"},
	}
	for _, tt := range tests {
		t.Run(tt.reason, func(t *testing.T) {
			t.Parallel()
			c := call(tt.argv...)
			c.TimeoutMillis = 500
			r := run(t, c)
			if !r.TimedOut || r.ExitCode != tt.exit || r.Signal != tt.signal {
				t.Errorf("timed out %v, exit %d, signal %q", r.TimedOut, r.ExitCode, r.Signal)
			}
			if !strings.HasPrefix(string(r.Stdout), tt.stdout) {
				t.Errorf("stdout %q", r.Stdout)
			}
			// The upper bound is loose: the machine may be busy.
			if took := r.End.Sub(r.Start); took < tt.atLeast || took > tt.atLeast+5*time.Second {
				t.Errorf("took %v, want %v", took, tt.atLeast)
			}
		})
	}
}

func TestDaemonDoesNotHoldTheResult(t *testing.T) {
	pidFile := filepath.Join(t.TempDir(), "pid")
	begin := time.Now()
	r := run(t, call(sh(`setsid sh -c 'echo $$ >`+pidFile+`; exec sleep 600' & echo '{}'; while [ ! -s `+pidFile+` ]; do sleep 0.01; done; exit 0`)...))
	if string(r.Stdout) != "{}\n" || r.ExitCode != 0 || r.TimedOut {
		t.Errorf("%+v", r)
	}
	if took := time.Since(begin); took > 20*time.Second {
		t.Errorf("the result came after %v", took)
	}
	// This runner is not PID 1 and must leave other sessions alone: clean up.
	var pid int
	text, err := os.ReadFile(pidFile)
	if err == nil {
		_, err = fmt.Sscan(string(text), &pid)
	}
	if err != nil || unix.Kill(pid, unix.SIGKILL) != nil {
		t.Errorf("the daemon %q was not there: %v", text, err)
	}
}

func TestFloods(t *testing.T) {
	tests := []struct {
		reason         string
		call           wire.Call
		stdout, stderr int64
	}{
		{"50 MiB in one line", call(helper("flood", "52428800")...), 50 << 20, 0},
		{"1 MiB in one line", call(helper("flood", "1048576")...), 1 << 20, 0},
		{"50 MiB of lines on stderr", call(sh("yes | head -c 52428800 >&2")...), 0, 50 << 20},
		{"both at once", call(sh("yes | head -c 20000000 & yes | head -c 20000000 >&2; wait")...), 20_000_000, 20_000_000},
		{"stderr byte by byte", call(helper("drip", "60000")...), 0, 60_000},
	}
	for _, tt := range tests {
		t.Run(tt.reason, func(t *testing.T) {
			s := open(t)
			s.send(tt.call)
			r := s.result()
			if r.StdoutBytes != tt.stdout || int64(len(r.Stdout)) != min(tt.stdout, tt.call.MaxStdoutBytes) {
				t.Errorf("%d bytes of stdout, %d kept", r.StdoutBytes, len(r.Stdout))
			}
			if r.StderrBytes != tt.stderr || int64(len(r.StderrTail)) != min(tt.stderr, wire.MaxStderrTailBytes) {
				t.Errorf("%d bytes of stderr, %d kept", r.StderrBytes, len(r.StderrTail))
			}
			if r.ExitCode != 0 || r.TimedOut {
				t.Errorf("exit %d, timed out %v", r.ExitCode, r.TimedOut)
			}
			state := s.Snapshot()
			if state.Bytes > wire.MaxOutputBytes {
				t.Errorf("printed %d bytes", state.Bytes)
			}
			if tt.stderr > 1<<20 && len(state.Stderr) != wire.MaxLiveStderrBytes {
				t.Errorf("%d bytes of live stderr", len(state.Stderr))
			}
			if peak := peakMemory(t, s.cmd.Process.Pid); peak > 32<<10 {
				t.Errorf("the runner used %d KiB, the pod's limit has 32 MiB for it", peak)
			} else {
				t.Logf("peak memory %d KiB", peak)
			}
		})
	}
}

// TestEndlessOutputEndsAtTheTimeout: a flood that never ends costs the time it
// was given, no more.
func TestEndlessOutputEndsAtTheTimeout(t *testing.T) {
	c := call("yes")
	c.TimeoutMillis = 700
	r := run(t, c)
	if !r.TimedOut || !bytes.HasPrefix(r.Stdout, []byte("y\ny\n")) || r.StdoutBytes < 1<<20 || len(r.Stdout) != 65536 {
		t.Errorf("timed out %v, %d of %d bytes", r.TimedOut, len(r.Stdout), r.StdoutBytes)
	}
}

func TestLargestResultIsExact(t *testing.T) {
	c := call("cat")
	c.MaxStdoutBytes = wire.MaxStdoutBytes
	c.Stdin = bytes.Repeat([]byte("0123456789\x00\xff\"\\<&"), wire.MaxStdoutBytes/16)
	r := run(t, c)
	if !bytes.Equal(r.Stdout, c.Stdin) || r.StdoutBytes != int64(len(c.Stdin)) {
		t.Errorf("%d of %d bytes, or other ones", r.StdoutBytes, len(c.Stdin))
	}
}

// peakMemory is the largest resident size so far, in KiB.
func peakMemory(t *testing.T, pid int) (kib int) {
	t.Helper()
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		t.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(status), "VmHWM:")
	if _, err := fmt.Sscan(rest, &kib); err != nil {
		t.Fatal(err)
	}
	return kib
}
