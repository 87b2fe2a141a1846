//go:build linux

package runner

import (
	"fmt"
	"unsafe"

	seccomp "github.com/elastic/go-seccomp-bpf"
	"github.com/elastic/go-seccomp-bpf/arch"
	"golang.org/x/net/bpf"
	"golang.org/x/sys/unix"
)

// Answers of the filter.
const (
	noFamily = uint32(seccomp.ActionErrno) | uint32(unix.EAFNOSUPPORT)
	noCall   = uint32(seccomp.ActionErrno) | uint32(unix.ENOSYS)
	noRight  = uint32(seccomp.ActionErrno) | uint32(unix.EPERM)
	done     = uint32(seccomp.ActionErrno) // errno 0: nothing is done, and the caller is told that it was
)

// Where struct seccomp_data has what the filter looks at. Arguments are 64 bits
// wide, the low half first: the architectures with a table are little-endian.
const (
	callOffset, archOffset, argOffset = 0, 4, 16
	wordSize, argSize                 = 4, 8
)

// argument is a condition on one: that it is not value, in any of its 64 bits, or
// with is, that its low half is, which is all that the kernel takes of an int.
type argument struct {
	index, value uint32
	is           bool
}

func not(index, value uint32) argument { return argument{index, value, false} }

func is(index, value uint32) argument { return argument{index, value, true} }

// guarded are calls that no tool needs, whatever its network. Most could take
// limits, CPU time or disk time away from its runner, which has the same user. Each is refused if all of its
// conditions hold. A tool may still do all of it to itself. What is left is
// sched_setaffinity, which programs use on their own threads, and which takes
// nothing from the runner but a choice of CPUs.
//
// The limit of core dumps stays as it is, see [noCoreDumps]. Many programs set it
// to 0 for their secrets' sake and do not go on if they cannot.
var guarded = []struct {
	call   string
	args   []argument
	answer uint32
}{
	{"prlimit64", []argument{not(0, 0), not(2, 0)}, noRight}, // of another process, with a new limit
	{"prlimit64", []argument{is(1, unix.RLIMIT_CORE), not(2, 0), not(3, 0)}, noRight},
	{"prlimit64", []argument{is(1, unix.RLIMIT_CORE), not(2, 0)}, done},
	{"setrlimit", []argument{is(0, unix.RLIMIT_CORE)}, done},
	{"setpriority", []argument{not(0, unix.PRIO_PROCESS)}, noRight},
	{"setpriority", []argument{not(1, 0)}, noRight},
	{"ioprio_set", []argument{not(0, 1)}, noRight}, // IOPRIO_WHO_PROCESS
	{"ioprio_set", []argument{not(1, 0)}, noRight},
	{"sched_setscheduler", []argument{not(0, 0)}, noRight},
	{"sched_setparam", []argument{not(0, 0)}, noRight},
	{"sched_setattr", []argument{not(0, 0)}, noRight},
	// What NetworkPolicies rule, and what programs ask for their addresses: no other
	// family, such as those of virtual machines or of the kernel's cryptography.
	{"socket", networkFamilies, noFamily},
	{"socketpair", networkFamilies, noFamily},
}

var networkFamilies = []argument{not(0, unix.AF_UNIX), not(0, unix.AF_INET), not(0, unix.AF_INET6), not(0, unix.AF_NETLINK)}

// filterCalls puts a filter on the calling thread and what it forks. It refuses
// the guarded calls; and without allowSockets every socket but AF_UNIX, io_uring
// (which makes sockets without the socket call) and every call of another
// architecture, which has calls of its own for sockets. The x32 ABI is refused
// always. It cannot be taken off again. no_new_privs must be set.
func filterCalls(allowSockets bool) error {
	program, err := toolFilter(allowSockets)
	if err != nil {
		return err
	}
	raw, err := bpf.Assemble(program)
	if err != nil {
		return fmt.Errorf("assemble the tool's filter: %w", err)
	}
	filter := make([]unix.SockFilter, 0, len(raw))
	for _, i := range raw {
		filter = append(filter, unix.SockFilter{Code: i.Op, Jt: i.Jt, Jf: i.Jf, K: i.K})
	}
	prog := unix.SockFprog{Len: uint16(len(filter)), Filter: &filter[0]}
	//nolint:gosec // the library loads only programs it assembled itself; the kernel copies prog during the call
	_, _, errno := unix.Syscall(unix.SYS_SECCOMP, unix.SECCOMP_SET_MODE_FILTER, 0, uintptr(unsafe.Pointer(&prog)))
	if errno != 0 {
		return fmt.Errorf("load the tool's filter: %w", errno)
	}
	return nil
}

func toolFilter(allowSockets bool) ([]bpf.Instruction, error) {
	native, err := arch.GetInfo("")
	if err != nil {
		return nil, fmt.Errorf("no filter for this architecture: %w", err)
	}
	guards, err := guard(native)
	if err != nil {
		return nil, err
	}
	// The library's own program lets every call of another architecture pass, so
	// that check goes in front of it.
	var foreign []bpf.Instruction
	if allowSockets {
		if foreign, err = guardForeign(native); err != nil {
			return nil, err
		}
	}
	foreign = append(foreign, bpf.RetConstant{Val: noCall})
	program := []bpf.Instruction{
		load(archOffset),
		bpf.JumpIf{Cond: bpf.JumpEqual, Val: uint32(native.ID), SkipFalse: 1},
		bpf.Jump{Skip: uint32(len(foreign))},
	}
	program = append(program, foreign...)
	if native.ID == arch.X86_64.ID {
		program = append(program, load(callOffset),
			bpf.JumpIf{Cond: bpf.JumpGreaterOrEqual, Val: uint32(arch.X32.SeccompMask), SkipFalse: 1},
			bpf.RetConstant{Val: noCall})
	}
	program = append(program, guards...)
	if allowSockets {
		return append(program, bpf.RetConstant{Val: uint32(seccomp.ActionAllow)}), nil
	}
	noSockets, err := socketFilter()
	if err != nil {
		return nil, err
	}
	return append(program, noSockets...), nil
}

// guard refuses the guarded calls by their numbers on one architecture, and lets
// all others go on to what follows.
func guard(info *arch.Info) ([]bpf.Instruction, error) {
	var program []bpf.Instruction
	for _, g := range guarded {
		number, found := info.SyscallNames[g.call]
		if !found {
			return nil, fmt.Errorf("no number of %s on architecture %s", g.call, info.Name)
		}
		refuse := []bpf.Instruction{bpf.RetConstant{Val: g.answer}}
		for _, a := range g.args {
			low := argOffset + argSize*a.index
			condition := []bpf.Instruction{
				load(low),
				bpf.JumpIf{Cond: bpf.JumpNotEqual, Val: a.value, SkipTrue: 2},
				load(low + wordSize),
				bpf.JumpIf{Cond: bpf.JumpEqual, Val: 0, SkipTrue: uint8(len(refuse))},
			}
			if a.is {
				condition = []bpf.Instruction{load(low), bpf.JumpIf{Cond: bpf.JumpNotEqual, Val: a.value, SkipTrue: uint8(len(refuse))}}
			}
			refuse = append(condition, refuse...)
		}
		program = append(program, load(callOffset), bpf.JumpIf{Cond: bpf.JumpEqual, Val: uint32(number), SkipFalse: uint8(len(refuse))})
		program = append(program, refuse...)
	}
	return program, nil
}

// guardForeign is the same for the 32-bit programs that the machine runs, which
// may have sockets as others do. Calls of any other architecture go on.
func guardForeign(native *arch.Info) ([]bpf.Instruction, error) {
	foreign, found := map[arch.AuditArch]*arch.Info{arch.X86_64.ID: arch.I386, arch.AARCH64.ID: arch.ARM}[native.ID]
	if !found {
		return nil, nil
	}
	guards, err := guard(foreign)
	if err != nil {
		return nil, err
	}
	guards = append(guards, bpf.RetConstant{Val: uint32(seccomp.ActionAllow)})
	head := []bpf.Instruction{
		load(archOffset),
		bpf.JumpIf{Cond: bpf.JumpEqual, Val: uint32(foreign.ID), SkipFalse: uint8(len(guards))},
	}
	return append(head, guards...), nil
}

func socketFilter() ([]bpf.Instruction, error) {
	notUnix := seccomp.ArgumentConditions{{Argument: 0, Operation: seccomp.NotEqual, Value: unix.AF_UNIX}}
	policy := seccomp.Policy{
		DefaultAction: seccomp.ActionAllow,
		Syscalls: []seccomp.SyscallGroup{{
			Action: seccomp.Action(noFamily),
			NamesWithCondtions: []seccomp.NameWithConditions{
				{Name: "socket", Conditions: notUnix},
				{Name: "socketpair", Conditions: notUnix},
			},
		}, {
			Action: seccomp.Action(noCall),
			Names:  []string{"io_uring_setup", "io_uring_enter", "io_uring_register"},
		}},
	}
	program, err := policy.Assemble()
	if err != nil {
		return nil, fmt.Errorf("assemble the socket filter: %w", err)
	}
	return program, nil
}

func load(offset uint32) bpf.Instruction { return bpf.LoadAbsolute{Off: offset, Size: wordSize} }
