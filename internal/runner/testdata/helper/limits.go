//go:build linux

package main

import (
	"fmt"
	"os"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// takeLimits does to PID 1 what would take limits, CPU time or disk time from
// it, and to itself what a tool may do.
func takeLimits() {
	try := func(name string, call, a, b, c, d uintptr) {
		_, _, errno := syscall.RawSyscall6(call, a, b, c, d, 0, 0)
		fmt.Println(name, unix.ErrnoName(errno))
	}
	limit := unix.Rlimit{Cur: 1024, Max: 1024}
	var param, old [64]byte
	l, p, o := uintptr(unsafe.Pointer(&limit)), uintptr(unsafe.Pointer(&param)), uintptr(unsafe.Pointer(&old))
	const self, high = 0, 1 << 32
	try("read limits", unix.SYS_PRLIMIT64, 1, unix.RLIMIT_NOFILE, 0, o)
	try("own limits", unix.SYS_PRLIMIT64, self, unix.RLIMIT_NOFILE, l, 0)
	try("own core limit", unix.SYS_PRLIMIT64, self, unix.RLIMIT_CORE, l, 0)
	try("own core limit, the old one asked for", unix.SYS_PRLIMIT64, self, unix.RLIMIT_CORE, l, o)
	try("limits", unix.SYS_PRLIMIT64, 1, unix.RLIMIT_NOFILE, l, 0)
	try("limits, high bits set", unix.SYS_PRLIMIT64, high|1, unix.RLIMIT_NOFILE, l, 0)
	try("own nice", unix.SYS_SETPRIORITY, unix.PRIO_PROCESS, self, 19, 0)
	try("nice", unix.SYS_SETPRIORITY, unix.PRIO_PROCESS, 1, 19, 0)
	try("nice, high bits set", unix.SYS_SETPRIORITY, unix.PRIO_PROCESS, high|1, 19, 0)
	try("nice of a group", unix.SYS_SETPRIORITY, unix.PRIO_PGRP, 1, 19, 0)
	try("nice of the user", unix.SYS_SETPRIORITY, unix.PRIO_USER, self, 19, 0)
	try("own ioprio", unix.SYS_IOPRIO_SET, 1, self, 3<<13, 0)
	try("ioprio", unix.SYS_IOPRIO_SET, 1, 1, 3<<13, 0)
	try("ioprio of the user", unix.SYS_IOPRIO_SET, 3, uintptr(os.Getuid()), 3<<13, 0)
	const idle = 5
	try("scheduler", unix.SYS_SCHED_SETSCHEDULER, 1, idle, p, 0)
	try("own scheduler", unix.SYS_SCHED_SETSCHEDULER, self, 3, p, 0)
	try("sched_setparam", unix.SYS_SCHED_SETPARAM, 1, p, 0, 0)
	*(*uint32)(unsafe.Pointer(&param)) = 48 // struct sched_attr begins with its size
	try("sched_setattr", unix.SYS_SCHED_SETATTR, 1, p, 0, 0)
	int80Limits()

	for _, name := range []string{"oom_score_adj", "coredump_filter", "timerslack_ns", "clear_refs", "comm", "autogroup", "setgroups", "uid_map"} {
		f, err := os.OpenFile("/proc/1/"+name, os.O_WRONLY, 0)
		if err == nil {
			_, err = f.WriteString("1")
		}
		fmt.Println(name, err != nil)
	}
	pid, _, errno := syscall.RawSyscall(unix.SYS_PIDFD_OPEN, 1, 0, 0)
	if errno == 0 {
		_, _, errno = syscall.RawSyscall(unix.SYS_PIDFD_GETFD, pid, 1, 0)
	}
	fmt.Println("pidfd_getfd", errno != 0)
	var buf [8]byte
	local := unix.Iovec{Base: &buf[0], Len: 8}
	remote := unix.RemoteIovec{Base: 0x400000, Len: 8}
	_, err := unix.ProcessVMReadv(1, []unix.Iovec{local}, []unix.RemoteIovec{remote}, 0)
	fmt.Println("process_vm_readv", err != nil)
	_, err = unix.ProcessVMWritev(1, []unix.Iovec{local}, []unix.RemoteIovec{remote}, 0)
	fmt.Println("process_vm_writev", err != nil)
}

// families tries every family, and then again in namespaces of its own.
func families() {
	open := func() (n int) {
		for family := range 64 {
			for _, kind := range []int{unix.SOCK_STREAM, unix.SOCK_DGRAM, unix.SOCK_RAW, unix.SOCK_SEQPACKET} {
				if fd, err := unix.Socket(family, kind, 0); err == nil && family != unix.AF_UNIX {
					fmt.Println("family", family, "type", kind, "opened")
					unix.Close(fd)
					n++
				}
				if pair, err := unix.Socketpair(family, kind, 0); err == nil && family != unix.AF_UNIX {
					fmt.Println("family", family, "type", kind, "pair opened", pair)
					n++
				}
			}
		}
		return n
	}
	fmt.Println(open(), "opened")
	// A namespace of its own makes no difference, whether it is given or refused.
	_ = unix.Unshare(unix.CLONE_NEWUSER | unix.CLONE_NEWNET)
	fmt.Println(open(), "opened in another network")
	if f, err := os.Open("/proc/1/ns/net"); err == nil {
		_ = unix.Setns(int(f.Fd()), unix.CLONE_NEWNET)
	}
	fmt.Println(open(), "opened after setns")
}
