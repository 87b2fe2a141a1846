// Command netprobe tries one TCP connection to argv[1] ("host:port") and
// prints {"connected": bool, "error": string or null}. It exits 0 either way:
// for the tests that ask, a refused network is an answer, not a failure.
package main

import (
	"encoding/json"
	"fmt"
	"net"
	"os"
	"time"
)

func main() {
	if len(os.Args) != 2 {
		fmt.Fprintln(os.Stderr, "usage: netprobe HOST:PORT")
		os.Exit(2)
	}
	out := struct {
		Connected bool    `json:"connected"`
		Error     *string `json:"error"`
	}{}
	conn, err := net.DialTimeout("tcp", os.Args[1], 2*time.Second)
	if err != nil {
		text := err.Error()
		out.Error = &text
	} else {
		out.Connected = true
		_ = conn.Close() // the connection was the question
	}
	if err := json.NewEncoder(os.Stdout).Encode(out); err != nil {
		os.Exit(1)
	}
}
