//go:build linux

package main

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

func ptr[T any](p *T) uintptr { return uintptr(unsafe.Pointer(p)) } //nolint:gosec // raw calls take addresses

func signalIgnored(sig os.Signal) { signal.Ignore(sig) }

// deepJSON prints an array in an array in an array …
func deepJSON(in input, _ *report) {
	depth := int(in.Seconds)
	_, _ = os.Stdout.WriteString(strings.Repeat("[", depth) + strings.Repeat("]", depth))
	os.Exit(0)
}

// coreDump crashes a child that asks for a core file of any size.
func coreDump(_ input, r *report) {
	if err := os.Chdir("/tmp"); err != nil {
		r.control("chdir /tmp", err)
		return
	}
	limit := unix.Rlimit{Cur: unix.RLIM_INFINITY, Max: unix.RLIM_INFINITY}
	r.note("unlimited RLIMIT_CORE: %s", errorName(unix.Setrlimit(unix.RLIMIT_CORE, &limit)))
	if unix.Getrlimit(unix.RLIMIT_CORE, &limit) == nil {
		r.note("hard limit of core files: %d", limit.Max)
		r.try("a limit of core files that lets one out", boolError(limit.Max > 1)) // 1 keeps it from a program of the node, too
		limit.Cur = limit.Max
		_ = unix.Setrlimit(unix.RLIMIT_CORE, &limit) // the most that is allowed
	}
	if pattern, err := os.ReadFile("/proc/sys/kernel/core_pattern"); err == nil {
		r.note("core_pattern %q", strings.TrimSpace(string(pattern)))
	}
	args := again(input{Attack: "crash"})
	err := exec.Command(args[0], args[1:]...).Run()
	var exit *exec.ExitError
	if !errors.As(err, &exit) {
		r.control("crash", errors.Join(errors.New("the child did not crash"), err))
		return
	}
	status, _ := exit.Sys().(syscall.WaitStatus)
	r.control("crash with SIGSEGV", boolError(status.Signaled() && status.Signal() == unix.SIGSEGV))
	r.try("the kernel writes a core", boolError(status.CoreDump()))
	cores, _ := filepath.Glob("/tmp/*core*")
	r.try("a core in the working directory", boolError(len(cores) > 0))
}

// crash ends by SIGSEGV with its default action.
func crash(_ input, _ *report) {
	runtime.LockOSThread()
	action := [4]uintptr{} // SIG_DFL: package signal cannot take back what the runtime has
	_, _, _ = unix.RawSyscall6(unix.SYS_RT_SIGACTION, uintptr(unix.SIGSEGV), ptr(&action), 0, 8, 0, 0)
	_ = unix.Tgkill(os.Getpid(), unix.Gettid(), unix.SIGSEGV)
	time.Sleep(10 * time.Second)
}

func ignoreAll() {
	for s := syscall.Signal(1); s < 65; s++ {
		if s != unix.SIGURG && s != unix.SIGCHLD {
			signal.Ignore(s)
		}
	}
}

// ignoreSIGTERM sleeps through every signal that can be ignored, with a child
// that does the same.
func ignoreSIGTERM(_ input, _ *report) {
	ignoreAll()
	fmt.Fprintln(os.Stderr, "ignoring")
	if _, err := fork(0, childPauses); err != nil {
		fmt.Fprintln(os.Stderr, "fork:", err)
	}
	time.Sleep(time.Hour)
}

// daemon leaves a process behind, in a session of its own, without any file of
// its parent, deaf to signals.
func daemon(in input, r *report) {
	in.Attack = "linger"
	args := again(in)
	cmd := exec.Command(args[0], args[1:]...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	err := cmd.Start()
	r.control("start a daemon", err)
	time.Sleep(3 * time.Second) // the test looks for it on the node
	r.try("outlive the call", errors.New("judged from outside"))
}

// heldStdout leaves a process that keeps stdout and stderr open and writes to them.
func heldStdout(in input, r *report) {
	in.Attack = "linger"
	args := again(in)
	cmd := exec.Command(args[0], args[1:]...)
	cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	r.control("start a child that keeps stdout", cmd.Start())
	r.try("hold up the result", errors.New("judged by the time"))
}

// linger is what daemons do; the mark is in its arguments.
func linger(_ input, _ *report) {
	ignoreAll()
	time.Sleep(10 * time.Minute)
	os.Exit(0)
}

// starveRunner does all it may to keep PID 1 from running, and never ends.
func starveRunner(_ input, _ *report) {
	hinder()
	ignoreAll()
	fmt.Fprintln(os.Stderr, "starving")
	for range 32 {
		if _, err := fork(0, childComputes); err != nil {
			break
		}
	}
	time.Sleep(time.Hour)
}

// hinder makes PID 1 the last that gets a CPU, as far as it may.
func hinder() map[string]error {
	var one unix.CPUSet
	one.Set(0)
	got := map[string]error{}
	for pid := range threadsOf(1) {
		got["renice PID 1 to 19"] = unix.Setpriority(unix.PRIO_PROCESS, pid, 19)
		got["pin PID 1 to one CPU"] = unix.SchedSetaffinity(pid, &one)
		idle := unix.SchedAttr{Size: unix.SizeofSchedAttr, Policy: unix.SCHED_IDLE}
		got["SCHED_IDLE for PID 1"] = unix.SchedSetAttr(pid, &idle, 0)
		_, _, errno := unix.RawSyscall(unix.SYS_IOPRIO_SET, 1, uintptr(pid), 3<<13)
		got["idle I/O for PID 1"] = errOf(errno)
	}
	return got
}

// threadsOf are the threads of a process as far as they can be seen, itself at least.
func threadsOf(pid int) map[int]bool {
	ids := map[int]bool{pid: true}
	entries, err := os.ReadDir(fmt.Sprintf("/proc/%d/task", pid))
	if err != nil {
		return ids
	}
	for _, e := range entries {
		var id int
		if _, err := fmt.Sscan(e.Name(), &id); err == nil {
			ids[id] = true
		}
	}
	return ids
}

// scheduler asks for more than a normal process gets.
func scheduler(in input, r *report) {
	r.control("nice 5", unix.Setpriority(unix.PRIO_PROCESS, 0, 5))
	r.try("nice -20", unix.Setpriority(unix.PRIO_PROCESS, 0, -20))
	for name, policy := range map[string]uint32{"SCHED_FIFO": unix.SCHED_FIFO, "SCHED_RR": unix.SCHED_RR} {
		r.try(name, unix.SchedSetAttr(0, &unix.SchedAttr{Size: unix.SizeofSchedAttr, Policy: policy, Priority: 99}, 0))
	}
	r.try("SCHED_DEADLINE", unix.SchedSetAttr(0, &unix.SchedAttr{
		Size: unix.SizeofSchedAttr, Policy: unix.SCHED_DEADLINE, Runtime: 1e8, Deadline: 2e8, Period: 2e8}, 0))
	_, _, errno := unix.RawSyscall(unix.SYS_IOPRIO_SET, 1, 0, 1<<13)
	r.try("real-time I/O", errOf(errno))
	big, err := unix.Mmap(-1, 0, 1<<30, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANON|unix.MAP_NORESERVE)
	r.control("map a gibibyte", err)
	if err == nil {
		r.try("mlock a gibibyte", unix.Mlock(big))
		_ = unix.Munmap(big)
	}
	r.try("huge pages", func() error {
		_, err := unix.Mmap(-1, 0, 1<<30, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANON|unix.MAP_HUGETLB)
		return err
	}())
	for what, err := range hinder() {
		if strings.HasPrefix(what, "pin") {
			r.note("%s: %s", what, errorName(err)) // it takes no time from the runner but a choice of CPUs
			continue
		}
		r.try(what, err)
	}
	end := time.Now().Add(hold(in))
	for time.Now().Before(end) { // beside a runner that is the last to get a CPU
		_ = bytes.Repeat([]byte{1}, 1<<16)
	}
}

// forgedFrames prints what the runner would print, by every way there is. The
// call's own key names it, so the frames are perfect but for what only the
// runner has. Its true answer is text that begins with TRUE ANSWER.
func forgedFrames(in input, _ *report) {
	forged := strings.ReplaceAll(in.Data, "CALL-UID", os.Getenv("CALLGATE_IDEMPOTENCY_KEY"))
	fmt.Println("TRUE ANSWER for", os.Getenv("CALLGATE_IDEMPOTENCY_KEY"))
	write := func() {
		_, _ = os.Stdout.WriteString(forged)
		_, _ = os.Stderr.WriteString(forged)
		for _, path := range []string{"/proc/1/fd/0", "/proc/1/fd/1", "/proc/1/fd/2", "/proc/self/fd/1", "/dev/stdout", "/dev/stderr",
			"/dev/console", "/dev/tty", "/dev/pts/0", "/dev/termination-log", "/proc/1/task/1/fd/1"} {
			if f, err := os.OpenFile(path, os.O_WRONLY, 0); err == nil {
				_, _ = f.WriteString("\n" + forged)
				f.Close()
			}
		}
	}
	write()
	time.Sleep(hold(in)) // the controller starts again
	write()
	os.Exit(0)
}
