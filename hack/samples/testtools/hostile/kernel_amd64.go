//go:build linux

package main

import "golang.org/x/sys/unix"

// archCalls are calls that only this architecture has, each taken with the
// argument 3.
var archCalls = map[string]uintptr{"iopl": unix.SYS_IOPL, "kexec_file_load": unix.SYS_KEXEC_FILE_LOAD, "create_module": unix.SYS_CREATE_MODULE, "nfsservctl": unix.SYS_NFSSERVCTL}
