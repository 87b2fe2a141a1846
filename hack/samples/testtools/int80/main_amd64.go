// Command int80 is a 64-bit program that asks for one AF_INET socket through
// the 32-bit entry (int 0x80), the way around a filter that looks only at
// 64-bit call numbers. Its other calls are 64-bit ones, so it can always
// report: it prints {"socket": bool, "errno": number, "error": string or null}
// and exits 0.
package main

import (
	"encoding/json"
	"os"
	"syscall"
)

// Call numbers of Linux on i386 (arch/x86/entry/syscalls/syscall_32.tbl).
const (
	sysClose386  = 6
	sysSocket386 = 359
)

// call386 makes one 32-bit call and returns what the kernel left in EAX.
func call386(number, a, b, c uint32) int32

func main() {
	out := struct {
		Socket bool    `json:"socket"`
		Errno  int32   `json:"errno"`
		Error  *string `json:"error"`
	}{}
	if got := call386(sysSocket386, syscall.AF_INET, syscall.SOCK_STREAM, 0); got < 0 {
		out.Errno = -got
		text := syscall.Errno(out.Errno).Error()
		out.Error = &text
	} else {
		out.Socket = true
		call386(sysClose386, uint32(got), 0, 0)
	}
	if err := json.NewEncoder(os.Stdout).Encode(out); err != nil {
		os.Exit(1)
	}
}
