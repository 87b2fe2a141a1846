//go:build linux

package runner

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"callgate.dev/callgate/internal/wire"
)

const (
	callUID = "0f9f2f3e-1111-4222-8333-444455556666"
	podUID  = "aaaaaaaa-1111-4222-8333-bbbbbbbbbbbb"

	// patience bounds every wait of a test; nothing takes this long.
	patience = 60 * time.Second

	initVariable = "CALLGATE_TEST_INIT"
	sandboxUser  = 65532
)

// bin has the built runner and helper, readable for every user.
var bin string

func TestMain(m *testing.M) {
	if program := os.Getenv(initVariable); program != "" {
		becomeSandbox(program)
	}
	os.Exit(buildAndRun(m))
}

func buildAndRun(m *testing.M) int {
	dir, err := os.MkdirTemp("", "callgate-runner-test-")
	if err == nil {
		err = os.Chmod(dir, 0o755)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer func() { _ = os.RemoveAll(dir) }()
	bin = dir
	marker := "-s -w -X callgate.dev/callgate/internal/runner.markerPath=state/used"
	builds := [][]string{
		{"", "runner", "-ldflags", marker, "callgate.dev/callgate/cmd/callgate-runner"},
		{"", "helper", "./testdata/helper"},
	}
	if runtime.GOARCH == "amd64" {
		builds = append(builds, []string{"386", "dial386", "./testdata/dial"})
	}
	for _, b := range builds {
		cmd := exec.Command("go", append([]string{"build", "-o", filepath.Join(dir, b[1])}, b[2:]...)...)
		cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
		if b[0] != "" {
			cmd.Env = append(cmd.Env, "GOARCH="+b[0])
		}
		if out, err := cmd.CombinedOutput(); err != nil {
			fmt.Fprintf(os.Stderr, "build %s: %v\n%s", b[1], err, out)
			return 1
		}
	}
	return m.Run()
}

func helper(args ...string) []string { return append([]string{bin + "/helper"}, args...) }

func sh(script string) []string { return []string{"/bin/sh", "-c", script} }

// call is one with ordinary bounds.
func call(argv ...string) wire.Call {
	return wire.Call{Argv: argv, MaxStdoutBytes: 65536, TimeoutMillis: patience.Milliseconds(), ResultKey: testSeal.Key}
}

// testSeal opens what the runner reports of the call that send sends.
var testSeal = func() wire.Seal {
	s, err := wire.NewSeal(bytes.Repeat([]byte{1}, wire.KeyBytes), callUID, 1, podUID)
	if err != nil {
		panic(err)
	}
	return s
}()

// sandbox is a runner that was started and waits.
type sandbox struct {
	t     *testing.T
	cmd   *exec.Cmd
	dir   string
	stdin io.WriteCloser

	wire.Transcript
	mu      sync.Mutex
	printed bytes.Buffer
	ended   chan struct{}
}

// waitFor waits until what the runner printed so far fulfils a condition.
func (s *sandbox) waitFor(what string, is func(wire.State) bool) {
	s.t.Helper()
	for deadline := time.Now().Add(patience); !is(s.Snapshot()); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			s.t.Fatalf("%s: not after %v; printed %.2000q", what, patience, s.output())
		}
	}
}

func isReady(s wire.State) bool { return s.Ready }

// Write takes what the runner prints.
func (s *sandbox) Write(p []byte) (int, error) {
	s.mu.Lock()
	s.printed.Write(p)
	s.mu.Unlock()
	return s.Transcript.Write(p)
}

func (s *sandbox) output() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.printed.String()
}

// open starts a runner. The changes are made to its command first.
func open(t *testing.T, changes ...func(*exec.Cmd)) *sandbox {
	t.Helper()
	dir, err := os.MkdirTemp(bin, "sandbox-")
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(os.Mkdir(dir+"/state", 0o777), os.Chmod(dir, 0o755), os.Chmod(dir+"/state", 0o777)); err != nil {
		t.Fatal(err)
	}
	s := &sandbox{t: t, dir: dir, ended: make(chan struct{})}
	s.Seal = testSeal
	s.cmd = exec.Command(bin + "/runner")
	s.cmd.Dir = dir
	s.cmd.Env = []string{"PATH=/usr/bin:/bin:" + bin, podUIDVariable + "=" + podUID}
	s.cmd.Stdout = s
	for _, change := range changes {
		change(s.cmd)
	}
	s.stdin, err = s.cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	var stderr bytes.Buffer
	s.cmd.Stderr = &stderr
	if err := s.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go func() {
		_ = s.cmd.Wait() // the exit code is what tests look at
		close(s.ended)
	}()
	t.Cleanup(func() {
		_ = s.stdin.Close()
		_ = s.cmd.Process.Kill()
		<-s.ended
		if stderr.Len() > 0 {
			t.Errorf("the runner wrote to its stderr: %q", stderr.String())
		}
	})
	return s
}

func (s *sandbox) send(c wire.Call) {
	s.t.Helper()
	if err := wire.WriteCall(s.stdin, callUID, 1, podUID, c); err != nil {
		s.t.Fatal(err)
	}
}

// result waits for the result with stdin still open, as the controller does.
func (s *sandbox) result() wire.Result {
	s.t.Helper()
	select {
	case <-s.ResultSeen():
	case <-s.ended:
	case <-time.After(patience):
		s.t.Fatalf("no result after %v; printed %.2000q", patience, s.output())
	}
	state := s.Snapshot()
	if state.Result == nil {
		s.t.Fatalf("the runner ended with %d and no result (%s); printed %.2000q", s.cmd.ProcessState.ExitCode(), state.Damaged, s.output())
	}
	if *state.Accepted != (wire.Accepted{CallUID: callUID, Attempt: 1}) {
		s.t.Errorf("accepted %+v", *state.Accepted)
	}
	return *state.Result
}

// exit waits for the runner's end.
func (s *sandbox) exit() int {
	s.t.Helper()
	select {
	case <-s.ended:
	case <-time.After(patience):
		s.t.Fatalf("the runner still runs after %v; printed %.2000q", patience, s.output())
	}
	return s.cmd.ProcessState.ExitCode()
}

// run is a whole life: one call, its result, an end with exit code 0.
func run(t *testing.T, c wire.Call, changes ...func(*exec.Cmd)) wire.Result {
	t.Helper()
	s := open(t, changes...)
	s.send(c)
	r := s.result()
	_ = s.stdin.Close() // the runner may be gone already
	if code := s.exit(); code != wire.ExitReported {
		t.Errorf("the runner's exit code is %d", code)
	}
	if n := s.Snapshot().Bytes; n > wire.MaxOutputBytes {
		t.Errorf("the runner printed %d bytes, more than %d", n, wire.MaxOutputBytes)
	}
	return r
}

// toPipe makes the runner print into a pipe that the test reads, or does not.
func toPipe(t *testing.T) (*os.File, func(*exec.Cmd)) {
	t.Helper()
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _, _ = r.Close(), w.Close() })
	return r, func(c *exec.Cmd) { c.Stdout = w }
}

// asPID1 runs the runner as a container would: PID 1 of its own namespace, with
// its own /proc, as a user without any privilege.
func asPID1(t *testing.T) func(*exec.Cmd) {
	t.Helper()
	if os.Getuid() != 0 {
		t.Skip("a PID namespace with its own /proc needs root")
	}
	return func(cmd *exec.Cmd) {
		program := cmd.Path
		cmd.Path = "/proc/self/exe"
		cmd.Args = []string{"test"}
		cmd.Env = append(cmd.Env, initVariable+"="+program)
		cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWPID | syscall.CLONE_NEWNS}
	}
}

// becomeSandbox is asPID1's other half, in the new namespaces.
func becomeSandbox(program string) {
	env := []string{}
	for _, e := range os.Environ() {
		if e != initVariable+"="+program {
			env = append(env, e)
		}
	}
	err := errors.Join(
		unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""),
		unix.Mount("proc", "/proc", "proc", 0, ""),
		syscall.Setgroups(nil), syscall.Setgid(sandboxUser), syscall.Setuid(sandboxUser),
	)
	if err == nil {
		err = syscall.Exec(program, []string{program}, env)
	}
	fmt.Fprintln(os.Stderr, "prepare the sandbox:", err)
	os.Exit(1)
}
