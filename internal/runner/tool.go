//go:build linux

package runner

import (
	"errors"
	"fmt"
	"io"
	"os"
	"runtime"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"callgate.dev/callgate/internal/wire"
)

const (
	// termGrace is how long a tool whose time is over may take to end itself after
	// SIGTERM.
	termGrace = time.Second
	// killTimeout bounds the wait for killed processes to be gone; only one that
	// hangs in the kernel needs it. It dies with the container.
	killTimeout = 2 * time.Second
)

// runTool runs the call's command to its end, and ends everything it left.
func runTool(call wire.Call, live *liveStderr) wire.Result {
	secrets, err := readSecrets(os.Environ(), call.SecretEnv, call.SecretPaths)
	if err != nil {
		return notStarted(&startError{wire.StartRunnerFault, err.Error()}, secrets)
	}
	env := toolEnv(os.Environ(), call.Env)
	path, startErr := lookPath(call.Argv[0], env)
	if startErr != nil {
		return notStarted(startErr, secrets)
	}
	stdio, err := openStdio(call.DevNullStdin)
	if err != nil {
		return notStarted(&startError{wire.StartRunnerFault, err.Error()}, secrets)
	}
	oomKillsBefore := oomKills()
	pid, startErr := start(path, call, env, stdio.child)
	begin := time.Now()
	stdio.closeChild()
	if startErr != nil {
		return notStarted(startErr, secrets)
	}

	exited, allGone := reap(pid)
	if stdio.stdin != nil {
		go func() {
			// A tool need not read its input: an error means that it does not.
			_, _ = stdio.stdin.Write(call.Stdin)
			_ = stdio.stdin.Close()
		}()
	}
	stdout := &head{max: call.MaxStdoutBytes}
	stderr := &tail{max: wire.MaxStderrTailBytes}
	masking := &maskWriter{secrets: secrets, w: io.MultiWriter(stderr, live)}
	var reading sync.WaitGroup
	reading.Go(func() { copyOutput(stdout, stdio.stdout) })
	reading.Go(func() { copyOutput(masking, stdio.stderr) })

	r := await(pid, exited, begin.Add(time.Duration(call.TimeoutMillis)*time.Millisecond))
	r.Start, r.End = begin, time.Now()

	// Nothing the tool left outlives it; once it is gone, the pipes have an end.
	kill(pid)
	if os.Getpid() == 1 {
		select {
		case <-allGone:
		case <-time.After(killTimeout):
		}
	}
	r.OOMKills = oomKills() - oomKillsBefore
	for _, pipe := range []*os.File{stdio.stdout, stdio.stderr} {
		_ = stopReading(pipe) // fails only for a closed file
	}
	reading.Wait()
	masking.flush()

	mask := secrets.mask
	if call.StdoutIsJSON {
		mask = secrets.maskJSON
	}
	r.Stdout, r.StdoutMasked = mask(stdout.kept)
	r.StdoutBytes, r.StdoutShrunk = stdout.total, int64(len(stdout.kept)-len(r.Stdout))
	r.StderrTail, r.StderrBytes, r.StderrMasked = stderr.bytes(), stderr.total, masking.count
	return r
}

// notStarted is the result of a tool that did not run. Its words may hold values,
// where a command or PATH does.
func notStarted(e *startError, secrets *secrets) wire.Result {
	now := time.Now()
	words, count := secrets.mask([]byte(e.text))
	return wire.Result{ExitCode: -1, StartError: string(words), StartErrorKind: e.kind, StderrMasked: count, Start: now, End: now}
}

// await waits for the tool's end, and brings it about when its time is over.
func await(pid int, exited <-chan unix.WaitStatus, deadline time.Time) wire.Result {
	select {
	case status := <-exited:
		return outcome(status, false)
	case <-time.After(time.Until(deadline)):
	}
	_ = unix.Kill(-pid, unix.SIGTERM) // fails only if it has just ended
	select {
	case status := <-exited:
		return outcome(status, true)
	case <-time.After(termGrace):
	}
	kill(pid)
	select {
	case status := <-exited:
		return outcome(status, true)
	case <-time.After(killTimeout):
		return wire.Result{ExitCode: -1, Signal: "SIGKILL", TimedOut: true}
	}
}

func outcome(status unix.WaitStatus, timedOut bool) wire.Result {
	r := wire.Result{ExitCode: status.ExitStatus(), TimedOut: timedOut} // -1 if a signal ended it
	if status.Signaled() {
		if r.Signal = unix.SignalName(status.Signal()); r.Signal == "" {
			r.Signal = fmt.Sprintf("signal %d", int(status.Signal())) // a real-time signal
		}
	}
	return r
}

// kill ends everything that came from the tool. As PID 1 that is every other
// process there is, whatever session it has moved to. A runner that is not (in
// tests) must keep to the tool's own process group.
func kill(pid int) {
	target := -pid
	if os.Getpid() == 1 {
		target = -1
	}
	_ = unix.Kill(target, unix.SIGKILL) // fails only if nothing is left
}

// reap waits for children, of which PID 1 gets every orphan. The first channel
// gets the status of pid, the second is closed when there is no child left.
func reap(pid int) (<-chan unix.WaitStatus, <-chan struct{}) {
	exited, allGone := make(chan unix.WaitStatus, 1), make(chan struct{})
	go func() {
		defer close(allGone)
		for {
			var status unix.WaitStatus
			switch p, err := unix.Wait4(-1, &status, 0, nil); {
			case err == unix.EINTR:
			case err != nil: // ECHILD
				return
			case p == pid:
				exited <- status
			}
		}
	}()
	return exited, allGone
}

// stdio is what connects the runner and the tool. The parent's ends can be
// waited for; the child's ends block, as any program expects.
type stdio struct {
	stdin, stdout, stderr *os.File   // stdin is nil if the tool gets /dev/null
	child                 [3]uintptr // the tool's descriptors 0, 1 and 2
}

func openStdio(devNull bool) (s *stdio, err error) {
	s = &stdio{}
	if devNull {
		fd, err := unix.Open(os.DevNull, unix.O_RDONLY|unix.O_CLOEXEC, 0)
		if err != nil {
			return nil, fmt.Errorf("open %s: %w", os.DevNull, err)
		}
		s.child[0] = uintptr(fd)
	} else if s.stdin, s.child[0], err = pipe("stdin", 1); err != nil {
		return nil, err
	}
	if s.stdout, s.child[1], err = pipe("stdout", 0); err != nil {
		return nil, err
	}
	if s.stderr, s.child[2], err = pipe("stderr", 0); err != nil {
		return nil, err
	}
	return s, nil
}

// pipe makes a pipe of which the parent keeps end 0 (to read) or 1 (to write).
func pipe(name string, end int) (*os.File, uintptr, error) {
	var fds [2]int
	if err := unix.Pipe2(fds[:], unix.O_CLOEXEC); err != nil {
		return nil, 0, fmt.Errorf("make a pipe for %s: %w", name, err)
	}
	// The parent's end only: the flag is not shared with the other end of a pipe.
	if err := unix.SetNonblock(fds[end], true); err != nil {
		return nil, 0, fmt.Errorf("prepare the pipe for %s: %w", name, err)
	}
	return os.NewFile(uintptr(fds[end]), name), uintptr(fds[1-end]), nil
}

func (s *stdio) closeChild() {
	for _, fd := range s.child {
		_ = unix.Close(int(fd)) // the tool has its own copy
	}
}

// start executes the command in a session, and so a process group, of its own,
// by way of a second runner that takes on its limits.
func start(path string, call wire.Call, env []string, files [3]uintptr) (int, *startError) {
	report, reporter, err := pipe("report", 0)
	if err != nil {
		return 0, &startError{wire.StartRunnerFault, err.Error()}
	}
	defer func() { _ = report.Close() }() // it was only read
	type started struct {
		pid int
		err error
	}
	c := make(chan started)
	go func() {
		// no_new_privs and the filter belong to a thread and to what it forks. This
		// goroutine keeps its thread to itself and takes it along when it ends.
		runtime.LockOSThread()
		if err := confine(call.AllowSockets); err != nil {
			c <- started{0, err}
			return
		}
		pid, err := syscall.ForkExec("/proc/self/exe", execArgs(path, call), &syscall.ProcAttr{
			Env: env, Files: append(files[:], reporter), Sys: &syscall.SysProcAttr{Setsid: true},
		})
		if errors.Is(err, unix.E2BIG) { // the tool's own, which would not fit either
			c <- started{0, err}
			return
		}
		if err != nil {
			err = fmt.Errorf("execute the runner for the tool: %w", err)
		}
		c <- started{pid, err}
	}()
	s := <-c
	_ = unix.Close(int(reporter)) // the tool's runner has its own copy
	switch {
	case errors.Is(s.err, unix.E2BIG):
		return 0, execError(call.Argv[0], path, s.err)
	case s.err != nil:
		return 0, &startError{wire.StartRunnerFault, s.err.Error()}
	}
	if err := startedTool(report, call.Argv[0], path); err != nil {
		_, _ = unix.Wait4(s.pid, nil, 0, nil) // it ends by itself
		return 0, err
	}
	return s.pid, nil
}

func confine(allowSockets bool) error {
	if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
		return fmt.Errorf("prctl PR_SET_NO_NEW_PRIVS: %w", err)
	}
	return filterCalls(allowSockets)
}
