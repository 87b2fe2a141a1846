//go:build linux

// Command callgate-runner is PID 1 of a sandbox. It waits on stdin for one
// call, runs the tool and prints the result; see internal/runner.
package main

import (
	"os"

	"callgate.dev/callgate/internal/runner"
)

func main() {
	os.Exit(runner.Run())
}
