//go:build !linux

package main

import (
	"fmt"
	"io"
	"runtime"
)

func checkHost(command string) error {
	return fmt.Errorf("%s works on Linux only, this is %s. %s", command, runtime.GOOS, otherCluster)
}

// checkHost refuses before any of these is called.

func up(layout) error                         { return checkHost("up") }
func restart(layout, string) error            { return checkHost("restart") }
func down(string) error                       { return checkHost("down") }
func status(io.Writer, string) error          { return checkHost("status") }
func load(string, string) error               { return checkHost("load") }
func lockFile(string, func()) (func(), error) { return nil, checkHost("build") }
