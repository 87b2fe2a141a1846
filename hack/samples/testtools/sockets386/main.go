// Command sockets386 is built for GOARCH=386 and asks for one AF_INET socket.
// It prints {"arch": …, "socket": bool, "error": string or null} and exits 0.
// Under a filter that refuses every call of a foreign architecture it cannot
// even start; a test then sees the signal that ended it, and no socket.
package main

import (
	"encoding/json"
	"os"
	"runtime"
	"syscall"
)

func main() {
	out := struct {
		Arch   string  `json:"arch"`
		Socket bool    `json:"socket"`
		Error  *string `json:"error"`
	}{Arch: runtime.GOARCH}
	fd, err := syscall.Socket(syscall.AF_INET, syscall.SOCK_STREAM, 0)
	if err != nil {
		text := err.Error()
		out.Error = &text
	} else {
		out.Socket = true
		_ = syscall.Close(fd) // the socket was the question
	}
	if err := json.NewEncoder(os.Stdout).Encode(out); err != nil {
		os.Exit(1)
	}
}
