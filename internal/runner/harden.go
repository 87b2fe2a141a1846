//go:build linux

package runner

import (
	"fmt"
	"math"
	"os"
	"os/signal"
	"syscall"
	"unsafe"

	seccomp "github.com/elastic/go-seccomp-bpf"
	"github.com/elastic/go-seccomp-bpf/arch"
	"golang.org/x/net/bpf"
	"golang.org/x/sys/unix"
)

// closeDoors makes this process's memory, environment and descriptors
// unreadable to others of the same user, and keeps every descriptor but the
// standard ones from a child.
func closeDoors() error {
	if err := unix.Prctl(unix.PR_SET_DUMPABLE, 0, 0, 0, 0); err != nil {
		return fmt.Errorf("prctl PR_SET_DUMPABLE: %w", err)
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

// denySockets puts a filter on the calling thread and what it forks: no socket
// but AF_UNIX, no io_uring (which makes sockets without the socket call), no call
// of another architecture or of the x32 ABI (which have calls of their own for
// sockets). It cannot be taken off again. no_new_privs must be set.
func denySockets() error {
	program, err := socketFilter()
	if err != nil {
		return err
	}
	raw, err := bpf.Assemble(program)
	if err != nil {
		return fmt.Errorf("assemble the socket filter: %w", err)
	}
	filter := make([]unix.SockFilter, 0, len(raw))
	for _, i := range raw {
		filter = append(filter, unix.SockFilter{Code: i.Op, Jt: i.Jt, Jf: i.Jf, K: i.K})
	}
	prog := unix.SockFprog{Len: uint16(len(filter)), Filter: &filter[0]}
	//nolint:gosec // the library loads only programs it assembled itself; the kernel copies prog during the call
	_, _, errno := unix.Syscall(unix.SYS_SECCOMP, unix.SECCOMP_SET_MODE_FILTER, 0, uintptr(unsafe.Pointer(&prog)))
	if errno != 0 {
		return fmt.Errorf("load the socket filter: %w", errno)
	}
	return nil
}

func socketFilter() ([]bpf.Instruction, error) {
	const (
		noFamily = seccomp.ActionErrno | seccomp.Action(unix.EAFNOSUPPORT)
		noCall   = seccomp.ActionErrno | seccomp.Action(unix.ENOSYS)
		// archOffset is where struct seccomp_data has the architecture.
		archOffset, archSize = 4, 4
	)
	native, err := arch.GetInfo("")
	if err != nil {
		return nil, fmt.Errorf("no socket filter for this architecture: %w", err)
	}
	notUnix := seccomp.ArgumentConditions{{Argument: 0, Operation: seccomp.NotEqual, Value: unix.AF_UNIX}}
	policy := seccomp.Policy{
		DefaultAction: seccomp.ActionAllow,
		Syscalls: []seccomp.SyscallGroup{{
			Action: noFamily,
			NamesWithCondtions: []seccomp.NameWithConditions{
				{Name: "socket", Conditions: notUnix},
				{Name: "socketpair", Conditions: notUnix},
			},
		}, {
			Action: noCall,
			Names:  []string{"io_uring_setup", "io_uring_enter", "io_uring_register"},
		}},
	}
	program, err := policy.Assemble()
	if err != nil {
		return nil, fmt.Errorf("assemble the socket filter: %w", err)
	}
	// The library lets every call of another architecture pass.
	return append([]bpf.Instruction{
		bpf.LoadAbsolute{Off: archOffset, Size: archSize},
		bpf.JumpIf{Cond: bpf.JumpEqual, Val: uint32(native.ID), SkipTrue: 1},
		bpf.RetConstant{Val: uint32(noCall)},
	}, program...), nil
}
