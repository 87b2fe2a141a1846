package main

import (
	"fmt"
	"syscall"
)

// int80 makes a system call through the gate of 32-bit programs.
func int80(number, a, b, c uint32) int32

func foreign() {
	const socket386, x32Bit = 359, 0x40000000
	_, _, errno := syscall.RawSyscall(x32Bit|syscall.SYS_SOCKET, syscall.AF_INET, syscall.SOCK_STREAM, 0)
	fmt.Println("x32", errnoName(errno))
	answer := int80(socket386, syscall.AF_INET, syscall.SOCK_STREAM, 0)
	if answer >= 0 {
		fmt.Println("int80 ok")
		return
	}
	fmt.Println("int80", errnoName(syscall.Errno(-answer)))
}

// int80Limits asks as a 32-bit program would. Null pointers do: what is refused
// is refused before they are looked at.
func int80Limits() {
	const prlimit386, setpriority386 = 340, 97
	fmt.Println("int80 limits", errnoName(syscall.Errno(-int80(prlimit386, 1, 7, 1))))
	fmt.Println("int80 nice", errnoName(syscall.Errno(-int80(setpriority386, 0, 1, 19))))
}
