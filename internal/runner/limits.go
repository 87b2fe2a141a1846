//go:build linux

package runner

import (
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"callgate.dev/callgate/internal/wire"
)

const (
	// maxOpenFiles is RLIMIT_NOFILE of a tool: descriptors of one process.
	maxOpenFiles = 1024

	// execMode is the first argument of a runner that is to become the tool.
	execMode = "exec"
	// reportFD is where it says how far it came.
	reportFD = 3
	// aboutToExec is the first byte it says; behind it is why that failed.
	aboutToExec = 'x'
	// startTimeout bounds the wait for what it says.
	startTimeout = 10 * time.Second
	// maxReport bounds what is read of it, in bytes.
	maxReport = 1024
)

// execArgs is the command line of a runner that takes on the limits of a call,
// which its parent must not have, and then becomes the tool: limits belong to a
// process, and a tool must not run one instruction without them.
func execArgs(path string, call wire.Call) []string {
	args := []string{"callgate-runner", execMode, strconv.FormatInt(call.MaxFileBytes, 10), strconv.FormatInt(call.MaxProcesses, 10), path}
	return append(args, call.Argv...)
}

// becomeTool is the other side of execArgs. It returns only if that failed.
func becomeTool(args []string) int {
	report := os.NewFile(reportFD, "report")
	unix.CloseOnExec(reportFD)
	_, _ = io.WriteString(report, execTool(args, report).Error()) // nobody is left to be told
	return wire.ExitNoCall
}

// execTool returns only an error: what it says of it, behind what it said before.
func execTool(args []string, report io.Writer) error {
	if len(args) < 6 || args[1] != execMode {
		return errors.New("the runner takes no arguments")
	}
	files, err := strconv.ParseUint(args[2], 10, 63)
	if err != nil {
		return err
	}
	processes, err := strconv.ParseUint(args[3], 10, 63)
	if err != nil {
		return err
	}
	if err := limit(files, processes); err != nil {
		return err
	}
	if _, err := report.Write([]byte{aboutToExec}); err != nil {
		return err
	}
	err = syscall.Exec(args[4], args[5:], os.Environ())
	var errno syscall.Errno
	errors.As(err, &errno)
	return errors.New(strconv.Itoa(int(errno)))
}

// noCoreDumps keeps memory of the runner and of the tool from the node, for good.
// A limit of 0 would only keep it out of files: where the node's core_pattern
// names a program, the kernel runs that as root on the node for any limit but 1,
// and 1 byte is too little for a file.
func noCoreDumps() error { return setLimit("RLIMIT_CORE", unix.RLIMIT_CORE, 1) }

// limit sets the limits that are a tool's only. 0 sets none.
func limit(fileBytes, processes uint64) error {
	for _, l := range []struct {
		name     string
		resource int
		max      uint64
		set      bool
	}{
		{"RLIMIT_NOFILE", unix.RLIMIT_NOFILE, maxOpenFiles, true},
		{"RLIMIT_FSIZE", unix.RLIMIT_FSIZE, fileBytes, fileBytes > 0},
		{"RLIMIT_NPROC", unix.RLIMIT_NPROC, processes, processes > 0},
	} {
		if !l.set {
			continue
		}
		if err := setLimit(l.name, l.resource, l.max); err != nil {
			return err
		}
	}
	return nil
}

// setLimit sets a limit of this process, soft and hard, never above what the
// container's own allows.
func setLimit(name string, resource int, value uint64) error {
	var now unix.Rlimit
	if err := unix.Getrlimit(resource, &now); err != nil {
		return fmt.Errorf("read %s: %w", name, err)
	}
	value = min(value, now.Max)
	if err := unix.Setrlimit(resource, &unix.Rlimit{Cur: value, Max: value}); err != nil {
		return fmt.Errorf("set %s to %d: %w", name, value, err)
	}
	return nil
}

// startedTool reads how far a runner came on its way to become the tool. It ends
// when the tool was executed, since that closes the pipe.
func startedTool(report *os.File, command, path string) *startError {
	err := report.SetReadDeadline(time.Now().Add(startTimeout))
	var text []byte
	if err == nil {
		text, err = io.ReadAll(io.LimitReader(report, maxReport))
	}
	switch {
	case errors.Is(err, os.ErrDeadlineExceeded):
		return nil // it may start any moment: the tool's own time limit is the bound
	case err != nil:
		return &startError{wire.StartRunnerFault, fmt.Sprintf("whether the tool was started is not known: %v", err)}
	case len(text) == 1 && text[0] == aboutToExec:
		return nil
	case len(text) > 1 && text[0] == aboutToExec:
		errno, err := strconv.Atoi(string(text[1:]))
		if err != nil {
			break
		}
		return execError(command, path, syscall.Errno(errno))
	}
	return &startError{wire.StartRunnerFault, fmt.Sprintf("the tool's limits could not be set: %.512q", text)}
}
