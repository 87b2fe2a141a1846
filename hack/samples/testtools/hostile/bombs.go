//go:build linux

package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"runtime/debug"
	"strconv"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// Bounds of this program's own, so that a sandbox without limits is noticed and
// the machine survives it.
const (
	maxProcesses   = 4000
	maxMemoryBytes = 2 << 30
	maxDiskBytes   = 1 << 30
	maxDescriptors = 200_000
	maxFiles       = 10_000_000
	maxOrphans     = 10_000
)

// What a forked process does.
const (
	childExits    = iota
	childOrphans  // leaves a child that ends at once
	childBombs    // tries to fork, again and again
	childPauses   // sleeps for ever in a session of its own
	childComputes // for ever
)

var tick = unix.NsecToTimespec(int64(20 * time.Millisecond))

// fork makes a process that has one thread, with clone's flags, and returns in
// the parent only.
func fork(flags uintptr, child int) (int, error) {
	pid, errno := forkRaw(flags, child, ptr(&tick))
	return pid, errOf(errno)
}

// forkRaw makes nothing but raw calls in the child, where Go's scheduler has no
// thread to go on with: so nothing in it may check the stack.
//
//go:nosplit
func forkRaw(flags uintptr, child int, tick uintptr) (int, unix.Errno) {
	pid, _, errno := unix.RawSyscall6(unix.SYS_CLONE, uintptr(unix.SIGCHLD)|flags, 0, 0, 0, 0, 0)
	if errno != 0 || pid != 0 {
		return int(pid), errno
	}
	switch child {
	case childOrphans:
		_, _, _ = unix.RawSyscall6(unix.SYS_CLONE, uintptr(unix.SIGCHLD), 0, 0, 0, 0, 0)
	case childPauses:
		_, _, _ = unix.RawSyscall(unix.SYS_SETSID, 0, 0, 0)
		for {
			_, _, _ = unix.RawSyscall6(unix.SYS_PPOLL, 0, 0, 0, 0, 8, 0)
		}
	case childComputes:
		for {
			_, _, _ = unix.RawSyscall(unix.SYS_GETPID, 0, 0, 0)
		}
	case childBombs:
		for {
			pid, _, errno := unix.RawSyscall6(unix.SYS_CLONE, uintptr(unix.SIGCHLD), 0, 0, 0, 0, 0)
			for errno == 0 && pid == 0 {
				_, _, _ = unix.RawSyscall6(unix.SYS_PPOLL, 0, 0, 0, 0, 8, 0)
			}
			_, _, _ = unix.RawSyscall6(unix.SYS_PPOLL, 0, 0, tick, 0, 8, 0)
		}
	}
	for {
		_, _, _ = unix.RawSyscall(unix.SYS_EXIT_GROUP, 0, 0, 0)
	}
}

// forkBomb forks as often as it can, keeps every process, and goes on trying.
func forkBomb(in input, r *report) {
	var pids []int
	var last error
	refused := int64(0)
	for end := time.Now().Add(hold(in)); time.Now().Before(end) && len(pids) < maxProcesses; {
		pid, err := fork(0, childBombs) // a child is a bomb, too
		if err != nil {
			last = err
			refused++
			time.Sleep(2 * time.Millisecond)
			continue
		}
		pids = append(pids, pid)
	}
	r.Numbers["forked"] = int64(len(pids))
	r.Numbers["refused"] = refused
	r.Numbers["processes"] = countProcesses()
	r.Attempts = append(r.Attempts, attempt{What: "fork without end", Got: errorName(last), OK: last == nil})
	r.control("fork once", boolError(len(pids) > 0))
	_ = unix.Kill(-1, unix.SIGKILL) // all of them, but PID 1 and this one
}

func boolError(ok bool) error {
	if ok {
		return nil
	}
	return errors.New("no")
}

func countProcesses() (n int64) {
	dir, err := os.ReadDir("/proc")
	if err != nil {
		return -1
	}
	for _, e := range dir {
		if _, err := strconv.Atoi(e.Name()); err == nil {
			n++
		}
	}
	return n
}

// threadBomb lets child processes make threads until they die of it.
func threadBomb(in input, r *report) {
	most, rounds := int64(0), int64(0)
	args := again(input{Attack: "threads"})
	spareThreads() // this process has to report when there are no more
	for end := time.Now().Add(hold(in)); time.Now().Before(end); rounds++ {
		// A runtime that gets no thread for its own work may hang instead of ending.
		ctx, cancel := context.WithDeadline(context.Background(), end)
		cmd := exec.CommandContext(ctx, args[0], args[1:]...)
		cmd.Env = append(os.Environ(), "GOTRACEBACK=none")
		stdout, err := os.CreateTemp("", "threads")
		if err == nil {
			cmd.Stdout = stdout // a file: nobody has to copy
			err = cmd.Run()
			if info, statErr := stdout.Stat(); statErr == nil {
				most = max(most, info.Size())
			}
			_ = stdout.Close()
		}
		cancel()
		if rounds == 0 {
			r.try("threads without end", err)
		}
	}
	r.Numbers["threads"] = most
	r.Numbers["rounds"] = rounds
	r.control("make a thread", boolError(most > 0))
}

// spareThreads has Go's scheduler make some threads, which it keeps.
func spareThreads() {
	var done sync.WaitGroup
	for range 16 {
		done.Go(func() { _, _ = unix.Poll(nil, 100) })
	}
	done.Wait()
}

// threads makes threads until the runtime of Go gives up, and prints a byte for each.
func threads(_ input, _ *report) {
	debug.SetMaxThreads(maxProcesses * 2)
	for range maxProcesses {
		started := make(chan struct{})
		go func() {
			runtime.LockOSThread()
			close(started)
			for {
				_, _ = unix.Poll(nil, -1) // a call that lets go of Go's scheduler
			}
		}()
		<-started
		_, _ = os.Stdout.Write([]byte{'t'})
	}
	os.Exit(0)
}

// memoryBomb lets children take memory until they are killed.
func memoryBomb(in input, r *report) {
	var most, rounds int64
	for end := time.Now().Add(hold(in)); time.Now().Before(end); rounds++ {
		args := again(input{Attack: "allocate"})
		cmd := exec.Command(args[0], args[1:]...)
		var stdout bytes.Buffer
		cmd.Stdout = &stdout
		err := cmd.Run()
		if n := int64(stdout.Len()); n > most {
			most = n
		}
		if rounds == 0 {
			var exit *exec.ExitError
			if errors.As(err, &exit) {
				if status, ok := exit.Sys().(syscall.WaitStatus); ok && status.Signaled() {
					err = fmt.Errorf("killed: %s", unix.SignalName(status.Signal()))
				}
			}
			r.try("memory without end", err)
		}
	}
	r.Numbers["mebibytes"] = most
	r.Numbers["rounds"] = rounds
	r.control("take a mebibyte", boolError(most > 0))
}

// allocate takes memory without end and prints a byte for each mebibyte.
func allocate(_ input, _ *report) {
	for total := 0; total < maxMemoryBytes; total += 1 << 20 {
		m, err := unix.Mmap(-1, 0, 1<<20, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANON)
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(3)
		}
		for i := 0; i < len(m); i += 4096 {
			m[i] = 1
		}
		_, _ = os.Stdout.Write([]byte{'m'})
	}
	os.Exit(0)
}

// descriptorBomb opens files until none can be opened.
func descriptorBomb(in input, r *report) {
	var err error
	limit := unix.Rlimit{Cur: 1 << 20, Max: 1 << 20}
	r.try("raise RLIMIT_NOFILE to 2^20", unix.Setrlimit(unix.RLIMIT_NOFILE, &limit))
	if unix.Getrlimit(unix.RLIMIT_NOFILE, &limit) == nil {
		r.Numbers["hard"] = int64(limit.Max)
		limit.Cur = limit.Max
		_ = unix.Setrlimit(unix.RLIMIT_NOFILE, &limit) // the most that is allowed
	}
	time.Sleep(time.Millisecond) // Go opens descriptors of its own for its first timer
	var opened []int
	for len(opened) < maxDescriptors {
		fd, openErr := unix.Open("/dev/null", unix.O_RDONLY, 0)
		if openErr != nil {
			err = openErr
			break
		}
		opened = append(opened, fd)
	}
	n := int64(len(opened))
	r.Numbers["descriptors"] = n
	r.try("descriptors without end", err)
	r.control("open a file", boolError(n > 0))
	time.Sleep(hold(in))
	for _, fd := range opened {
		_ = unix.Close(fd) // so that the report can be made
	}
}

// kernelMemoryBomb lets children fill as many pipes and socket buffers as they get.
func kernelMemoryBomb(in input, r *report) {
	end := time.Now().Add(hold(in))
	args := again(input{Attack: "fill-pipes", Seconds: in.Seconds})
	cmd := exec.Command(args[0], args[1:]...)
	var stdout bytes.Buffer
	cmd.Stdout = &stdout
	err := cmd.Run()
	r.Numbers["mebibytes"] = int64(stdout.Len())
	if err == nil && stdout.Len() < 1000 {
		err = unix.EMFILE // it ended for want of descriptors: see fillPipes
	}
	r.try("pipes without end", err)
	r.control("fill a pipe", boolError(stdout.Len() > 0))
	time.Sleep(time.Until(end))
}

// fillPipes prints a byte for each mebibyte that lies in pipes or sockets.
func fillPipes(in input, _ *report) {
	block := make([]byte, 64<<10)
	total, told := 0, 0
	for total < maxMemoryBytes {
		var fds [2]int
		if unix.Pipe2(fds[:], unix.O_NONBLOCK) != nil {
			break
		}
		_, _ = unix.FcntlInt(uintptr(fds[0]), unix.F_SETPIPE_SZ, 1<<20) // refused above the user's share
		for {
			n, err := unix.Write(fds[1], block)
			if err != nil {
				break
			}
			total += n
		}
		for ; told < total>>20; told++ {
			_, _ = os.Stdout.Write([]byte{'m'})
		}
	}
	time.Sleep(hold(in))
	os.Exit(0)
}

// cpuBurn computes on more threads than there are CPUs.
func cpuBurn(in input, r *report) {
	began := time.Now()
	end := began.Add(hold(in))
	runtime.GOMAXPROCS(16)
	done := make(chan int)
	for range 16 {
		go func() {
			n := 0
			for time.Now().Before(end) {
				for i := range 100_000 {
					n += i * i
				}
			}
			done <- n
		}()
	}
	for range 16 {
		<-done
	}
	var usage unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_SELF, &usage); err == nil {
		r.Numbers["cpuMillis"] = (usage.Utime.Nano() + usage.Stime.Nano()) / 1e6
	}
	r.Numbers["wallMillis"] = time.Since(began).Milliseconds()
	r.control("compute", boolError(r.Numbers["cpuMillis"] > 0))
	r.try("more than its share", errors.New("judged by the numbers"))
}

// zombies makes orphans that end at once: PID 1 has to reap each.
func zombies(in input, r *report) {
	var n int64
	var last error
	for end := time.Now().Add(3 * hold(in)); n < maxOrphans && time.Now().Before(end); n++ {
		pid, err := fork(0, childOrphans)
		if err != nil {
			last = err
			time.Sleep(time.Millisecond)
			continue
		}
		_, _ = unix.Wait4(pid, nil, 0, nil)
	}
	time.Sleep(500 * time.Millisecond)
	r.Numbers["orphans"] = n
	r.Numbers["left"] = countProcesses()
	r.control("make an orphan", boolError(n > 0))
	r.try("zombies that stay", boolError(r.Numbers["left"] > 100))
	if last != nil {
		r.note("some forks were refused: %v", last)
	}
}
