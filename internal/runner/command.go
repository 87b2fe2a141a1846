//go:build linux

package runner

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"callgate.dev/callgate/internal/wire"
)

// defaultPath is what container runtimes set where an image has no PATH.
const defaultPath = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

// scratch is the one folder a tool may always write to.
const scratch = "/tmp"

// startError says why the tool did not run.
type startError struct {
	kind wire.StartErrorKind
	text string
}

// toolEnv is the container's environment without what is not the tool's
// business, with HOME and TMPDIR where it can write, and with the call's
// additions, which win.
func toolEnv(container []string, additions []wire.EnvVar) []string {
	var env []string
	set := func(name, entry string) {
		env = slices.DeleteFunc(env, func(e string) bool { return strings.HasPrefix(e, name+"=") })
		env = append(env, entry)
	}
	for _, entry := range container {
		name, _, found := strings.Cut(entry, "=")
		if !found || name == podUIDVariable || name == probeVariable || name == writableVariable || strings.HasPrefix(name, "KUBERNETES_") {
			continue
		}
		set(name, entry)
	}
	set("HOME", "HOME="+scratch)
	set("TMPDIR", "TMPDIR="+scratch)
	for _, a := range additions {
		set(a.Name, a.Name+"="+a.Value)
	}
	return env
}

// lookPath finds the command as execvp(3) does: a name with a slash is a path
// from the working directory, any other is looked up in the tool's PATH.
func lookPath(command string, env []string) (string, *startError) {
	if strings.Contains(command, "/") {
		return command, nil // exec itself says what is wrong with it
	}
	search := defaultPath
	for _, entry := range env {
		if value, found := strings.CutPrefix(entry, "PATH="); found {
			search = value
		}
	}
	var notExecutable *startError
	for _, dir := range filepath.SplitList(search) {
		candidate := filepath.Join(dir, command)
		if dir == "" || dir == "." {
			candidate = "./" + command
		}
		info, err := os.Stat(candidate)
		if err != nil {
			continue
		}
		if err := unix.Access(candidate, unix.X_OK); err == nil && !info.IsDir() {
			return candidate, nil
		}
		if notExecutable == nil {
			notExecutable = execError(command, candidate, unix.EACCES)
		}
	}
	if notExecutable != nil {
		return "", notExecutable
	}
	return "", &startError{wire.StartCommandNotFound, fmt.Sprintf("command %.256q was not found in PATH (%.512s)", command, search)}
}

// execError puts the kernel's answer to execve(2) into words.
func execError(command, path string, err error) *startError {
	refused := func(kind wire.StartErrorKind, why string) *startError {
		return &startError{kind, fmt.Sprintf("command %.256q %s", command, why)}
	}
	var errno syscall.Errno
	if !errors.As(err, &errno) {
		return refused(wire.StartRefused, "could not be executed: "+err.Error())
	}
	switch errno {
	case unix.ENOENT, unix.ENOTDIR:
		if _, statErr := os.Stat(path); statErr == nil {
			return refused(wire.StartNotExecutable, "is there, but the interpreter it names (in its #! line, or the dynamic loader) is not")
		}
		return refused(wire.StartCommandNotFound, "was not found")
	case unix.EACCES, unix.EPERM:
		return refused(wire.StartNotExecutable, fmt.Sprintf("is there (%.256q) but may not be executed: %v", path, errno))
	case unix.ENOEXEC:
		return refused(wire.StartNotExecutable, "is not a program for this machine and has no #! line")
	case unix.E2BIG:
		return refused(wire.StartRefused, "could not be executed: its arguments and environment are longer than the kernel takes")
	default:
		return refused(wire.StartRefused, fmt.Sprintf("could not be executed: %v", errno))
	}
}
