//go:build linux

package runner

import (
	"fmt"
	"math"
	"os"
	"os/signal"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// closeDoors makes this process's memory, environment and descriptors
// unreadable to others of the same user, lets nobody dump it, and keeps every descriptor but the
// standard ones from a child.
func closeDoors() error {
	if err := unix.Prctl(unix.PR_SET_DUMPABLE, 0, 0, 0, 0); err != nil {
		return fmt.Errorf("prctl PR_SET_DUMPABLE: %w", err)
	}
	if err := noCoreDumps(); err != nil {
		return err
	}
	if err := unix.CloseRange(3, math.MaxUint32, unix.CLOSE_RANGE_CLOEXEC); err != nil {
		return fmt.Errorf("close_range: %w", err)
	}
	return nil
}

// discardSignals discards every signal a tool could send, but SIGTERM, which is
// told to harden's caller.
//
// It goes past package os/signal to the kernel: a signal such as SIGSEGV queued
// with a forged origin looks like a fault of ours to the Go runtime and would
// end it. The runtime keeps its note that it handles these signals, and so gives
// the tool their default action when it forks; a test holds that.
func discardSignals() error {
	// The first four have no handler of the runtime's yet; the note is what counts.
	// And without somebody to tell of SIGPIPE, the runtime ends a program whose
	// stdout nobody reads.
	signal.Notify(make(chan os.Signal, 1), unix.SIGTSTP, unix.SIGTTIN, unix.SIGTTOU, unix.SIGCONT, unix.SIGPIPE)
	for sig := syscall.Signal(1); sig <= 64; sig++ {
		switch sig {
		case unix.SIGKILL, unix.SIGSTOP: // cannot be caught; the kernel keeps them from PID 1
		case unix.SIGTERM:
		case unix.SIGCHLD: // ignoring it would reap our children unseen
		case unix.SIGURG: // the runtime preempts goroutines with it; from outside it does nothing
		case 32, 33, 34: // the C library's own; no handler, so the kernel keeps them from PID 1
		default:
			if err := discard(sig); err != nil {
				return err
			}
		}
	}
	return nil
}

// discard sets one signal's action to SIG_IGN.
func discard(sig syscall.Signal) error {
	// struct sigaction of the kernel: the handler first, no flag set, no mask.
	const sigIgn, maskBytes = 1, 8
	action := [4]uintptr{sigIgn}
	//nolint:gosec // no library sets SIG_IGN past the Go runtime; the kernel only reads action, during the call
	_, _, errno := unix.RawSyscall6(unix.SYS_RT_SIGACTION, uintptr(sig), uintptr(unsafe.Pointer(&action)), 0, maskBytes, 0, 0)
	if errno != 0 {
		return fmt.Errorf("ignore signal %d: %w", sig, errno)
	}
	return nil
}
