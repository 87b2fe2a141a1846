//go:build linux

package main

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// runnerMemory reaches for what is in PID 1: its memory, files, limits. Every
// attempt is made on a child, too, where it must succeed if it is to prove
// anything.
func runnerMemory(_ input, r *report) {
	args := again(input{Attack: "sleep", Seconds: 600})
	child := exec.Command(args[0], args[1:]...)
	in, err := child.StdinPipe()
	if err := errors.Join(err, child.Start()); err != nil {
		r.control("start a child", err)
		return
	}
	defer func() { _ = in.Close(); _ = child.Process.Kill() }()
	open := func(path string, flags int) error {
		fd, err := unix.Open(path, flags, 0)
		if err == nil {
			_ = unix.Close(fd)
		}
		return err
	}
	pid := child.Process.Pid
	for _, a := range []struct {
		what    string
		control bool // works on a child under every runtime
		do      func(pid int) error
	}{
		{"write fd/0", false, func(p int) error { return open(fmt.Sprintf("/proc/%d/fd/0", p), unix.O_WRONLY) }},
		{"write fd/1", false, func(p int) error { return open(fmt.Sprintf("/proc/%d/fd/1", p), unix.O_WRONLY) }},
		{"write fd/2", false, func(p int) error { return open(fmt.Sprintf("/proc/%d/fd/2", p), unix.O_WRONLY) }},
		{"list fd", true, func(p int) error { _, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", p)); return errOfFile(err) }},
		{"read environ", true, func(p int) error { return readSome(fmt.Sprintf("/proc/%d/environ", p)) }},
		{"read maps", true, func(p int) error { return readSome(fmt.Sprintf("/proc/%d/maps", p)) }},
		{"read auxv", false, func(p int) error { return readSome(fmt.Sprintf("/proc/%d/auxv", p)) }},
		{"open mem", false, func(p int) error { return open(fmt.Sprintf("/proc/%d/mem", p), unix.O_RDWR) }},
		{"follow root", false, func(p int) error { return open(fmt.Sprintf("/proc/%d/root/", p), unix.O_RDONLY) }},
		{"follow cwd", false, func(p int) error { return open(fmt.Sprintf("/proc/%d/cwd/", p), unix.O_RDONLY) }},
		{"ptrace seize", false, ptraceSeize},
		{"pidfd_getfd", false, func(p int) error {
			fd, err := unix.PidfdOpen(p, 0)
			if err != nil {
				return err
			}
			defer func() { _ = unix.Close(fd) }()
			got, err := unix.PidfdGetfd(fd, 1, 0)
			if err == nil {
				_ = unix.Close(got)
			}
			return err
		}},
		{"process_vm_readv", false, func(p int) error {
			here, there := make([]byte, 8), unix.RemoteIovec{Base: ownTextAddress(), Len: 8}
			_, err := unix.ProcessVMReadv(p, []unix.Iovec{{Base: &here[0], Len: 8}}, []unix.RemoteIovec{there}, 0)
			return err
		}},
		{"kcmp", false, func(p int) error {
			_, _, errno := unix.RawSyscall6(unix.SYS_KCMP, uintptr(p), uintptr(os.Getpid()), 0, 1, 1, 0)
			return errOf(errno)
		}},
		{"prlimit: one open file", false, func(p int) error { return setLimit(p, unix.RLIMIT_NOFILE, 1) }},
		{"prlimit: no file of any size", false, func(p int) error { return setLimit(p, unix.RLIMIT_FSIZE, 0) }},
		{"prlimit: no CPU time", false, func(p int) error { return setLimit(p, unix.RLIMIT_CPU, 0) }},
		{"prlimit: no memory", false, func(p int) error { return setLimit(p, unix.RLIMIT_AS, 0) }},
		{"move_pages", false, func(p int) error {
			_, _, errno := unix.RawSyscall6(unix.SYS_MOVE_PAGES, uintptr(p), 0, 0, 0, 0, 0)
			return errOf(errno)
		}},
		{"get_robust_list", false, func(p int) error {
			var head, length uintptr
			_, _, errno := unix.RawSyscall(unix.SYS_GET_ROBUST_LIST, uintptr(p), ptr(&head), ptr(&length))
			return errOf(errno)
		}},
	} {
		r.try(a.what+" of PID 1", a.do(1))
		got := a.do(pid)
		if a.control {
			r.control(a.what+" of a child", got)
		} else {
			r.note("%s of a child: %s", a.what, errorName(got))
		}
	}
}

func setLimit(pid, resource int, value uint64) error {
	limit := unix.Rlimit{Cur: value, Max: value}
	if pid != 1 { // a child keeps what it has: only whether it may be changed counts
		if err := unix.Prlimit(pid, resource, nil, &limit); err != nil {
			return err
		}
	}
	return unix.Prlimit(pid, resource, &limit, nil)
}

// ownTextAddress is where the code of a static Go program begins, this one's
// children too.
func ownTextAddress() uintptr { return 0x400000 }

// ptraceSeize does not stop the process: a runner that hangs would look like one
// that was not reached.
func ptraceSeize(pid int) error {
	return inThread(func() error {
		_, _, errno := unix.RawSyscall6(unix.SYS_PTRACE, 0x4206, uintptr(pid), 0, 0, 0, 0)
		if errno == 0 {
			_, _, _ = unix.RawSyscall6(unix.SYS_PTRACE, unix.PTRACE_DETACH, uintptr(pid), 0, 0, 0, 0)
		}
		return errOf(errno)
	})
}

// killRunner sends PID 1 the two signals that nobody can ignore: the kernel
// keeps them from it.
func killRunner(_ input, r *report) {
	for _, sig := range []syscall.Signal{unix.SIGSTOP, unix.SIGKILL} {
		r.note("send %s to PID 1: %s", unix.SignalName(sig), errorName(unix.Kill(1, sig)))
		r.note("send %s to its first thread: %s", unix.SignalName(sig), errorName(unix.Tgkill(1, 1, sig)))
	}
	time.Sleep(time.Second)
	r.control("signal oneself", unix.Kill(os.Getpid(), 0))
	r.try("end or stop PID 1", errors.New("judged by the answer"))
}

// runnerSignals sends every other signal to PID 1 in every way. That it may be
// sent is no fault; that the report arrives is the proof.
func runnerSignals(_ input, r *report) {
	signal.Ignore(unix.SIGTERM)
	sent, refused := int64(0), int64(0)
	count := func(err error) {
		if err == nil {
			sent++
		} else {
			refused++
		}
	}
	pidfd, err := unix.PidfdOpen(1, 0)
	r.note("pidfd_open(1): %s", errorName(err))
	for round := range 3 {
		for sig := syscall.Signal(1); sig <= 64; sig++ {
			if sig == unix.SIGKILL || sig == unix.SIGSTOP {
				continue // see killRunner
			}
			count(unix.Kill(1, sig))
			count(unix.Tgkill(1, 1, sig))
			// As the kernel itself would for a fault, a timer, a child.
			for _, code := range []int32{-1, -2, -6, 1, 0x80} {
				info := [32]int32{int32(sig), 0, code, 0, 0x400000}
				_, _, errno := unix.RawSyscall(unix.SYS_RT_SIGQUEUEINFO, 1, uintptr(sig), ptr(&info))
				count(errOf(errno))
				_, _, errno = unix.RawSyscall6(unix.SYS_RT_TGSIGQUEUEINFO, 1, 1, uintptr(sig), ptr(&info), 0, 0)
				count(errOf(errno))
			}
			if pidfd >= 0 && err == nil {
				count(unix.PidfdSendSignal(pidfd, sig, nil, 0))
			}
		}
		for range 1000 * round { // a storm of those that have a handler
			count(unix.Kill(1, unix.SIGCHLD))
			count(unix.Kill(1, unix.SIGURG))
			count(unix.Kill(1, unix.SIGTERM))
		}
	}
	r.Numbers["sent"], r.Numbers["refused"] = sent, refused
	r.control("signal oneself", unix.Kill(os.Getpid(), 0))
	time.Sleep(time.Second)
	r.try("end PID 1", boolError(unix.Kill(1, 0) != nil))
	r.try("stop PID 1", errors.New("judged by the answer"))
}
