//go:build linux

// Command helper is the tool that the runner's tests run: each mode tries one
// thing and prints what came of it.
package main

import (
	"bytes"
	"fmt"
	"io"
	"net"
	"os"
	"os/signal"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"unsafe"
)

func main() {
	mode, args := os.Args[1], os.Args[2:]
	switch mode {
	case "args":
		for _, a := range args {
			fmt.Printf("%q\n", a)
		}
	case "fds":
		// Those of the Go runtime's own, for this program's CPU limit, do not count.
		for fd := range 4096 {
			target, err := os.Readlink("/proc/self/fd/" + strconv.Itoa(fd))
			if err == nil && !strings.HasPrefix(target, "/sys/fs/cgroup/") {
				fmt.Println(fd, strings.TrimRight(target, "[]0123456789"))
			}
		}
	case "flood": // bytes of stdout, no newline
		left, _ := strconv.Atoi(args[0])
		for chunk := bytes.Repeat([]byte("x"), 1<<16); left > 0; {
			n, err := os.Stdout.Write(chunk[:min(left, len(chunk))])
			if err != nil {
				os.Exit(3)
			}
			left -= n
		}
	case "drip": // bytes of stderr, one write each
		n, _ := strconv.Atoi(args[0])
		for range n {
			os.Stderr.Write([]byte("e"))
		}
	case "term-zero":
		c := make(chan os.Signal, 1)
		signal.Notify(c, syscall.SIGTERM)
		fmt.Println("waiting")
		<-c
		fmt.Println("bye")
	case "sockets":
		sockets()
	case "attack":
		attack(args)
	case "take-limits":
		takeLimits()
	case "families":
		families()
	case "sparse": // a file of so many bytes, one at its end
		size, _ := strconv.ParseInt(args[1], 10, 64)
		f, err := os.Create(args[0])
		if err == nil {
			_, err = f.WriteAt([]byte{1}, size-1)
		}
		fmt.Println(err)
	case "cat":
		if _, err := io.Copy(os.Stdout, os.Stdin); err != nil {
			os.Exit(3)
		}
	}
}

func errnoName(errno syscall.Errno) string {
	switch errno {
	case 0:
		return "ok"
	case syscall.EAFNOSUPPORT:
		return "EAFNOSUPPORT"
	case syscall.ENOSYS:
		return "ENOSYS"
	}
	return errno.Error()
}

func sockets() {
	try := func(name string, call, a, b, c, d uintptr) {
		_, _, errno := syscall.RawSyscall6(call, a, b, c, d, 0, 0)
		fmt.Println(name, errnoName(errno))
	}
	var pair [2]int32
	var params [120]byte
	p, q := uintptr(unsafe.Pointer(&pair)), uintptr(unsafe.Pointer(&params))
	try("tcp", syscall.SYS_SOCKET, syscall.AF_INET, syscall.SOCK_STREAM, 0, 0)
	try("tcp6", syscall.SYS_SOCKET, syscall.AF_INET6, syscall.SOCK_STREAM, 0, 0)
	try("udp", syscall.SYS_SOCKET, syscall.AF_INET, syscall.SOCK_DGRAM, 0, 0)
	try("netlink", syscall.SYS_SOCKET, syscall.AF_NETLINK, syscall.SOCK_RAW, 0, 0)
	try("tcp, high bits set", syscall.SYS_SOCKET, 1<<32|syscall.AF_INET, syscall.SOCK_STREAM, 0, 0)
	try("socketpair inet", syscall.SYS_SOCKETPAIR, syscall.AF_INET, syscall.SOCK_STREAM, 0, p)
	try("unix", syscall.SYS_SOCKET, syscall.AF_UNIX, syscall.SOCK_STREAM, 0, 0)
	try("socketpair unix", syscall.SYS_SOCKETPAIR, syscall.AF_UNIX, syscall.SOCK_STREAM, 0, p)
	try("io_uring", 425, 8, q, 0, 0)
	foreign()
	l, err := net.Listen("unix", "@callgate-runner-test-"+strconv.Itoa(os.Getpid()))
	fmt.Println("listen unix", err)
	if err == nil {
		l.Close()
	}
}

// attack does to PID 1 what a tool of the same user could. It leaves out the
// signals named in skip: gVisor does not keep SIGKILL from PID 1.
func attack(skip []string) {
	for _, name := range []string{"environ", "mem", "maps", "fd", "fd/0", "fd/1", "root/"} {
		path := "/proc/1/" + name
		var err error
		if name == "fd" {
			_, err = os.ReadDir(path)
		} else {
			var f *os.File
			if f, err = os.OpenFile(path, os.O_RDONLY, 0); err == nil {
				_, err = f.Read(make([]byte, 1))
			}
		}
		fmt.Println(name, err != nil)
		fmt.Fprintln(os.Stderr, err)
	}
	f, err := os.OpenFile("/proc/1/fd/1", os.O_WRONLY, 0)
	fmt.Println("fd/1 to write", err != nil)
	if err == nil {
		fmt.Fprintln(f, "forged")
	}
	_, _, errno := syscall.RawSyscall6(syscall.SYS_PTRACE, syscall.PTRACE_ATTACH, 1, 0, 0, 0, 0)
	fmt.Println("ptrace", errno != 0)
	for sig := 1; sig <= 64; sig++ {
		if slices.Contains(skip, strconv.Itoa(sig)) {
			continue
		}
		syscall.Kill(1, syscall.Signal(sig))
		// The same, with a forged origin: the Go runtime takes a SIGSEGV that no
		// kill(2) sent for a fault of its own.
		var info [128]byte
		*(*int32)(unsafe.Pointer(&info[0])) = int32(sig)
		*(*int32)(unsafe.Pointer(&info[8])) = -1 // SI_QUEUE
		syscall.RawSyscall(syscall.SYS_RT_SIGQUEUEINFO, 1, uintptr(sig), uintptr(unsafe.Pointer(&info)))
	}
	fmt.Println("still here")
}
