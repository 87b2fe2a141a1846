//go:build linux

package main

import (
	"bytes"
	"compress/gzip"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"regexp"
	"runtime"
	"runtime/debug"
	"strconv"
	"strings"
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

// fork makes a process that has one thread and runs nothing but raw calls.
// It returns 0 in the child.
func fork() (int, error) {
	pid, _, errno := unix.RawSyscall6(unix.SYS_CLONE, uintptr(unix.SIGCHLD), 0, 0, 0, 0, 0)
	return int(pid), errOf(errno)
}

// pauseRaw sleeps for ever, or for some nanoseconds, as a forked process may.
func pauseRaw(ts *unix.Timespec) {
	_, _, _ = unix.RawSyscall6(unix.SYS_PPOLL, 0, 0, ptr(ts), 0, 8, 0)
}

func exitRaw() {
	for {
		_, _, _ = unix.RawSyscall(unix.SYS_EXIT_GROUP, 0, 0, 0)
	}
}

// forkBomb forks as often as it can, keeps every process, and goes on trying.
func forkBomb(in input, r *report) {
	var pids []int
	var last error
	refused := int64(0)
	tick := unix.NsecToTimespec(int64(20 * time.Millisecond))
	for end := time.Now().Add(hold(in)); time.Now().Before(end) && len(pids) < maxProcesses; {
		pid, err := fork()
		switch {
		case err != nil:
			last = err
			refused++
			time.Sleep(2 * time.Millisecond)
		case pid == 0:
			// A child is a bomb too: it tries to have one of its own, again and again.
			for {
				if pid, err := fork(); err == nil && pid == 0 {
					pauseRaw(nil)
					exitRaw()
				}
				pauseRaw(&tick)
			}
		default:
			pids = append(pids, pid)
		}
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

var threadsHad = regexp.MustCompile(`have (\d+) already; errno=(\d+)`)

// threadBomb lets child processes make threads until they die of it.
func threadBomb(in input, r *report) {
	most, rounds := int64(0), int64(0)
	for end := time.Now().Add(hold(in)); time.Now().Before(end); rounds++ {
		cmd := exec.Command(again(input{Attack: "threads"})[0], again(input{Attack: "threads"})[1:]...)
		var stderr bytes.Buffer
		cmd.Stderr = &stderr
		err := cmd.Run()
		if m := threadsHad.FindStringSubmatch(stderr.String()); m != nil {
			n, _ := strconv.ParseInt(m[1], 10, 64)
			errno, _ := strconv.Atoi(m[2])
			if n > most {
				most = n
			}
			if rounds == 0 {
				r.try("threads without end", unix.Errno(errno))
			}
		} else if rounds == 0 {
			r.try("threads without end", err)
			r.note("%.300s", stderr.String())
		}
	}
	r.Numbers["threads"] = most
	r.Numbers["rounds"] = rounds
	r.control("rounds", boolError(rounds > 0))
}

// threads makes threads until the runtime of Go gives up.
func threads(_ input, r *report) {
	debug.SetMaxThreads(maxProcesses * 2)
	for range maxProcesses {
		started := make(chan struct{})
		go func() {
			runtime.LockOSThread()
			close(started)
			for {
				pauseRaw(nil)
			}
		}()
		<-started
	}
	r.Numbers["threads"] = maxProcesses
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

// fill writes files of 16 MiB into a folder until nothing more goes in.
func fill(dir string, limit int64) (written int64, err error) {
	block := bytes.Repeat([]byte("full"), 64<<10)
	for n := 0; written < limit; n++ {
		f, err := os.OpenFile(dir+"/fill-"+strconv.Itoa(n), os.O_CREATE|os.O_WRONLY|os.O_TRUNC, 0o600)
		if err != nil {
			return written, err
		}
		for range 64 {
			k, err := f.Write(block)
			written += int64(k)
			if err != nil {
				f.Close()
				return written, err
			}
		}
		f.Close()
	}
	return written, nil
}

func fillFolder(in input, r *report, dir string) {
	end := time.Now().Add(hold(in))
	written, err := fill(dir, maxDiskBytes)
	r.try("write without end to "+dir, err)
	r.Numbers["bytes"] = written
	r.control("write to "+dir, boolError(written > 0))
	for time.Now().Before(end) { // and again, while the neighbours are looked at
		if _, err := fill(dir, maxDiskBytes); err == nil {
			r.try("write without end to "+dir+" again", err)
			return
		}
		time.Sleep(50 * time.Millisecond)
	}
}

func diskBomb(in input, r *report) { fillFolder(in, r, "/tmp") }

func shmBomb(in input, r *report) {
	if _, err := os.Stat("/dev/shm"); err != nil {
		r.note("there is no /dev/shm")
		r.control("look for /dev/shm", nil)
		r.try("find /dev/shm", err)
		time.Sleep(hold(in))
		return
	}
	fillFolder(in, r, "/dev/shm")
}

// inodeBomb makes empty files until none can be made. It says on stderr how
// many, for it may be killed for the kernel memory that they take.
func inodeBomb(in input, r *report) {
	var n int64
	var err error
	for end := time.Now().Add(3 * hold(in)); n < maxFiles && time.Now().Before(end); n++ {
		var fd int
		if fd, err = unix.Open("/tmp/i"+strconv.FormatInt(n, 36), unix.O_CREAT|unix.O_WRONLY, 0o600); err != nil {
			break
		}
		_ = unix.Close(fd)
		if n%10_000 == 0 {
			fmt.Fprintln(os.Stderr, "inodes", n)
		}
	}
	r.Numbers["inodes"] = n
	if err == nil {
		r.note("still none was refused when the time was over")
		err = os.ErrDeadlineExceeded
	}
	r.try("files without end", err)
	r.control("make a file", boolError(n > 0))
}

// descriptorBomb opens files until none can be opened.
func descriptorBomb(in input, r *report) {
	var n int64
	var err error
	limit := unix.Rlimit{Cur: 1 << 20, Max: 1 << 20}
	r.try("raise RLIMIT_NOFILE to 2^20", unix.Setrlimit(unix.RLIMIT_NOFILE, &limit))
	if unix.Getrlimit(unix.RLIMIT_NOFILE, &limit) == nil {
		r.Numbers["hard"] = int64(limit.Max)
		limit.Cur = limit.Max
		_ = unix.Setrlimit(unix.RLIMIT_NOFILE, &limit) // the most that is allowed
	}
	for ; n < maxDescriptors; n++ {
		if _, err = unix.Open("/dev/null", unix.O_RDONLY, 0); err != nil {
			break
		}
	}
	r.Numbers["descriptors"] = n
	r.try("descriptors without end", err)
	r.control("open a file", boolError(n > 0))
	time.Sleep(hold(in))
	for fd := 3; fd < int(n); fd++ {
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

// terminationLog fills the file that the kubelet reads: it lies on the node's
// disk, and no quota counts it.
func terminationLog(in input, r *report) {
	end := time.Now().Add(hold(in))
	f, err := os.OpenFile("/dev/termination-log", os.O_WRONLY, 0)
	if err != nil {
		r.try("open /dev/termination-log", err)
		r.control("try", nil)
		time.Sleep(time.Until(end))
		return
	}
	signalIgnored(unix.SIGXFSZ)
	block := bytes.Repeat([]byte("full"), 256<<10)
	var written int64
	for written < maxDiskBytes && time.Now().Before(end) {
		n, err2 := f.Write(block)
		written += int64(n)
		if err = err2; err != nil {
			break
		}
	}
	if err == nil && written < maxDiskBytes {
		err = os.ErrDeadlineExceeded
		r.note("still no write was refused when the time was over")
	}
	r.Numbers["bytes"] = written
	r.try("write without end to /dev/termination-log", err)
	r.control("write to it", boolError(written > 0))
	r.try("another file beside it", errOfFile(os.WriteFile("/dev/termination-log-2", nil, 0o600)))
	_ = f.Truncate(0) // this machine's disk is needed
	_, _ = f.WriteAt([]byte("FORGED"), 0)
	time.Sleep(time.Until(end))
}

func errOfFile(err error) error {
	var pathError *os.PathError
	if errors.As(err, &pathError) {
		return pathError.Err
	}
	return err
}

func flood(in input, f *os.File, block []byte) int64 {
	var total int64
	for end := time.Now().Add(hold(in)); time.Now().Before(end); {
		n, err := f.Write(block)
		total += int64(n)
		if err != nil {
			break
		}
	}
	return total
}

func stdoutFlood(in input, _ *report) {
	n := flood(in, os.Stdout, []byte(strings.Repeat("y\n", 16<<10)))
	fmt.Fprintln(os.Stderr, "flooded", n)
	os.Exit(0)
}

func endlessLine(in input, _ *report) {
	n := flood(in, os.Stdout, bytes.Repeat([]byte{'a'}, 32<<10))
	fmt.Fprintln(os.Stderr, "flooded", n)
	os.Exit(0)
}

func stderrFlood(in input, r *report) {
	r.Numbers["bytes"] = flood(in, os.Stderr, []byte(strings.Repeat("y\n", 16<<10)))
	r.control("write to stderr", boolError(r.Numbers["bytes"] > 0))
	r.try("an error that nobody sees", errors.New("judged by what is kept"))
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
		pid, err := fork()
		if err == nil && pid == 0 {
			if pid, err := fork(); err != nil || pid == 0 {
				exitRaw()
			}
			exitRaw() // its child is an orphan now
		}
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

// hugeFile makes one file of a tebibyte, with holes and without.
func hugeFile(_ input, r *report) {
	signalIgnored(unix.SIGXFSZ)
	for _, dir := range []string{"/tmp", "/dev/shm"} {
		fd, err := unix.Open(dir+"/huge", unix.O_CREAT|unix.O_RDWR, 0o600)
		r.control("make "+dir+"/huge", err)
		if err != nil {
			continue
		}
		r.try("truncate -s 1T "+dir+"/huge", unix.Ftruncate(fd, 1<<40))
		_, err = unix.Pwrite(fd, []byte("x"), 1<<40)
		r.try("write a byte at 1T of "+dir+"/huge", err)
		r.try("fallocate 1T of "+dir+"/huge", unix.Fallocate(fd, 0, 0, 1<<40))
		_ = unix.Close(fd)
		_ = unix.Unlink(dir + "/huge")
	}
	fd, err := unix.MemfdCreate("huge", 0)
	if err != nil {
		r.try("memfd", err)
		return
	}
	r.try("truncate a memfd to 1T", unix.Ftruncate(fd, 1<<40))
	r.try("fallocate 1T of a memfd", unix.Fallocate(fd, 0, 0, 1<<40))
	_ = unix.Close(fd)
}

// archiveBomb unpacks a twice packed argument into /tmp, as a careless tool would.
func archiveBomb(in input, r *report) {
	packed, err := base64.StdEncoding.DecodeString(in.Data)
	r.Numbers["packed"] = int64(len(packed))
	outer, err2 := gzip.NewReader(bytes.NewReader(packed))
	if err = errors.Join(err, err2); err != nil {
		r.control("read the argument", err)
		return
	}
	inner, err := gzip.NewReader(outer)
	r.control("read the argument", err)
	f, err2 := os.Create("/tmp/unpacked") //nolint:gosec // /tmp is this call's own
	r.control("make a file", err2)
	if err != nil || err2 != nil {
		return
	}
	signalIgnored(unix.SIGXFSZ)
	n, err := io.Copy(f, inner) //nolint:gosec // that it is a bomb is the point
	r.Numbers["unpacked"] = n
	r.try("unpack it all", errOfFile(err))
}
