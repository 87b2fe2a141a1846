//go:build linux

package runner

import (
	"os"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/elastic/go-seccomp-bpf/arch"
	"golang.org/x/net/bpf"
	"golang.org/x/sys/unix"

	"callgate.dev/callgate/internal/wire"
)

func TestToolHasLimits(t *testing.T) {
	c := call(sh("ulimit -Sn; ulimit -Hn; ulimit -c 0 || echo refused; grep -E 'Max (core file size|file size|processes)' /proc/self/limits")...)
	c.MaxFileBytes, c.MaxProcesses = 1<<20, 77
	r := run(t, c)
	fields := strings.Fields(string(r.Stdout))
	want := strings.Fields("1024 1024 Max file size 1048576 1048576 bytes Max core file size 1 1 bytes Max processes 77 77 processes")
	if !slices.Equal(fields, want) {
		t.Errorf("got %q, want %q", fields, want)
	}
	// Nothing is set that the call does not name.
	own := limitsOf(t, "self")
	for _, line := range strings.Split(string(run(t, call("cat", "/proc/self/limits")).Stdout), "\n") {
		for _, name := range []string{"Max file size", "Max processes"} {
			if strings.HasPrefix(line, name) && line != own[name] {
				t.Errorf("without a bound the tool has %q, want %q", line, own[name])
			}
		}
	}
}

func limitsText(t *testing.T, pid string) string {
	t.Helper()
	text, err := os.ReadFile("/proc/" + pid + "/limits")
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// limitsOf are the lines of /proc/PID/limits by their names.
func limitsOf(t *testing.T, pid string) map[string]string {
	t.Helper()
	lines := map[string]string{}
	for _, line := range strings.Split(limitsText(t, pid), "\n") {
		if len(line) > 26 {
			lines[strings.TrimSpace(line[:26])] = line
		}
	}
	return lines
}

// TestLimitsAreNotTheRunners: it needs its descriptors and threads to report.
func TestLimitsAreNotTheRunners(t *testing.T) {
	s := open(t)
	s.waitFor("ready", isReady)
	pid := strconv.Itoa(s.cmd.Process.Pid)
	before := limitsOf(t, pid)
	c := call(sh("echo up >&2; exec sleep 600")...)
	c.MaxFileBytes, c.MaxProcesses, c.TimeoutMillis = 1<<20, 77, 3000
	s.send(c)
	s.waitFor("the tool runs", func(s wire.State) bool { return len(s.Stderr) > 0 })
	for name, line := range limitsOf(t, pid) {
		if before[name] != line {
			t.Errorf("the runner's limit changed from %q to %q", before[name], line)
		}
	}
	s.result()
}

func TestWhatALimitDoes(t *testing.T) {
	tests := []struct {
		reason string
		argv   []string
		signal string
		stdout string
	}{
		{"a file that is too large, without one byte in it", []string{"truncate", "-s", "1048577", "f"}, "SIGXFSZ", ""},
		{"programs that ignore the signal get an error", helper("sparse", "f", "1048577"), "", "write f: file too large\n"},
		{"the last byte that fits", helper("sparse", "f", "1048576"), "", "<nil>\n"},
		{"descriptors end with an error that programs know", sh(`i=3; while [ $i -lt 1500 ]; do eval "exec $i</dev/null" || exit 0; i=$((i+1)); done 2>/dev/null; echo no bound`), "", ""},
	}
	for _, tt := range tests {
		t.Run(tt.reason, func(t *testing.T) {
			c := call(tt.argv...)
			c.MaxFileBytes = 1 << 20
			r := run(t, c)
			if r.Signal != tt.signal || tt.signal == "" && string(r.Stdout) != tt.stdout {
				t.Errorf("signal %q, want %q; stdout %q, want %q; %q", r.Signal, tt.signal, r.Stdout, tt.stdout, r.StderrTail)
			}
		})
	}
}

// TestForksEnd: without privileges the bound of processes holds, and the runner
// still reports.
func TestForksEnd(t *testing.T) {
	c := call(sh(`i=0; while [ $i -lt 200 ]; do sleep 60 & i=$((i+1)); done; echo all`)...)
	c.MaxProcesses, c.TimeoutMillis = 60, 5000
	r := run(t, c, asPID1(t))
	if strings.Contains(string(r.Stdout), "all") || !strings.Contains(strings.ToLower(string(r.StderrTail)), "fork") {
		t.Errorf("200 processes: %q %q", r.Stdout, r.StderrTail)
	}
}

// TestToolCannotTakeLimitsFromTheRunner: as in a container, the tool has the
// runner's user and sees it as PID 1.
func TestToolCannotTakeLimitsFromTheRunner(t *testing.T) {
	for _, sockets := range []bool{false, true} {
		s := open(t, asPID1(t))
		s.waitFor("ready", isReady)
		pid := strconv.Itoa(s.cmd.Process.Pid)
		before := limitsOf(t, pid)
		c := call(helper("take-limits")...)
		c.AllowSockets = sockets
		s.send(c)
		r := s.result()
		want := []string{"read limits ", "own limits ", "own core limit ", "own core limit, the old one asked for EPERM", "limits EPERM", "limits, high bits set EPERM",
			"own nice ", "nice EPERM", "nice, high bits set EPERM", "nice of a group EPERM", "nice of the user EPERM",
			"own ioprio ", "ioprio EPERM", "ioprio of the user EPERM",
			"scheduler EPERM", "own scheduler ", "sched_setparam EPERM", "sched_setattr EPERM"}
		if runtime.GOARCH == "amd64" && sockets {
			want = append(want, "int80 limits operation not permitted", "int80 nice operation not permitted")
		} else if runtime.GOARCH == "amd64" {
			want = append(want, "int80 limits ENOSYS", "int80 nice ENOSYS")
		}
		want = append(want, "oom_score_adj true", "coredump_filter true", "timerslack_ns true", "clear_refs true", "comm true", "autogroup true",
			"setgroups true", "uid_map true", "pidfd_getfd true", "process_vm_readv true", "process_vm_writev true")
		if got := strings.TrimSuffix(string(r.Stdout), "\n"); got != strings.Join(want, "\n") {
			t.Errorf("sockets %v: got\n%s\nwant\n%s", sockets, got, strings.Join(want, "\n"))
		}
		for name, line := range limitsOf(t, pid) {
			if before[name] != line {
				t.Errorf("sockets %v: the runner's limit changed from %q to %q", sockets, before[name], line)
			}
		}
	}
}

func TestEveryFamilyIsRefused(t *testing.T) {
	r := run(t, call(helper("families")...), asPID1(t))
	if got := string(r.Stdout); got != "0 opened\n0 opened in another network\n0 opened after setns\n" {
		t.Errorf("%s%s", got, r.StderrTail)
	}
	// The test can tell: with sockets there are some.
	c := call(helper("families")...)
	c.AllowSockets = true
	opened := map[string]bool{}
	for line := range strings.Lines(string(run(t, c, asPID1(t)).Stdout)) {
		if fields := strings.Fields(line); len(fields) > 1 && fields[0] == "family" {
			opened[fields[1]] = true
		}
	}
	for family := range opened {
		if !slices.Contains([]string{"2", "10", "16"}, family) {
			t.Errorf("with sockets allowed, family %s could be opened", family)
		}
	}
	if !opened["2"] {
		t.Errorf("with sockets allowed, none of AF_INET could be opened: %v", opened)
	}
}

// TestToolFilterProgram runs the filter of a tool with sockets in a BPF
// interpreter, for calls that no test program can make.
func TestToolFilterProgram(t *testing.T) {
	program, err := toolFilter(true)
	if err != nil {
		t.Fatal(err)
	}
	vm, err := bpf.NewVM(program)
	if err != nil {
		t.Fatal(err)
	}
	native, err := arch.GetInfo("")
	if err != nil {
		t.Fatal(err)
	}
	foreign := map[string]*arch.Info{"amd64": arch.I386, "arm64": arch.ARM}[runtime.GOARCH]
	const (
		allow  = 0x7fff0000
		eperm  = 0x00050000 | int(unix.EPERM)
		enosys = 0x00050000 | int(unix.ENOSYS)
		faked  = 0x00050000
	)
	for _, tt := range []struct {
		reason string
		info   *arch.Info
		call   string
		args   [4]uint64
		want   int
	}{
		{"a call that has nothing to do with it", native, "read", [4]uint64{1, 1, 1}, allow},
		{"a socket", native, "socket", [4]uint64{unix.AF_INET, 1, 0}, allow},
		{"its own limits", native, "prlimit64", [4]uint64{0, 7, 0x7f0000001000}, allow},
		{"reading another's", native, "prlimit64", [4]uint64{1, 7, 0}, allow},
		{"another's", native, "prlimit64", [4]uint64{1, 7, 0x7f0000001000}, eperm},
		{"its own core limit stays, and it is told that it was set", native, "prlimit64", [4]uint64{0, unix.RLIMIT_CORE, 0x7f0000001000, 0}, faked},
		{"… whatever is in the half that the kernel drops", native, "prlimit64", [4]uint64{0, 1<<32 | unix.RLIMIT_CORE, 0x7f0000001000, 0}, faked},
		{"… but not if it wants to know the old one", native, "prlimit64", [4]uint64{0, unix.RLIMIT_CORE, 0x7f0000001000, 0x7f0000002000}, eperm},
		{"reading its core limit", native, "prlimit64", [4]uint64{0, unix.RLIMIT_CORE, 0, 0x7f0000002000}, allow},
		{"the old call", native, "setrlimit", [4]uint64{unix.RLIMIT_CORE, 0x7f0000001000}, faked},
		{"the old call for another limit", native, "setrlimit", [4]uint64{unix.RLIMIT_NOFILE, 0x7f0000001000}, allow},
		{"a 32-bit program's core limit", foreign, "setrlimit", [4]uint64{unix.RLIMIT_CORE, 1}, faked},
		{"a pointer whose low half is 0", native, "prlimit64", [4]uint64{1, 7, 0x7f0000000000}, eperm},
		{"a PID with high bits, which the kernel drops", native, "prlimit64", [4]uint64{1<<32 | 1, 7, 1}, eperm},
		{"a negative PID", native, "prlimit64", [4]uint64{1<<64 - 1, 7, 1}, eperm},
		{"its own nice", native, "setpriority", [4]uint64{unix.PRIO_PROCESS, 0, 19}, allow},
		{"a thread's nice", native, "setpriority", [4]uint64{unix.PRIO_PROCESS, 7, 19}, eperm},
		{"PRIO_USER, oneself, which is the runner, too", native, "setpriority", [4]uint64{unix.PRIO_USER, 0, 19}, eperm},
		{"its own ioprio", native, "ioprio_set", [4]uint64{1, 0, 0}, allow},
		{"a group's ioprio", native, "ioprio_set", [4]uint64{2, 0, 0}, eperm},
		{"affinity is used by programs on their threads", native, "sched_setaffinity", [4]uint64{9, 8, 1}, allow},
		{"a 32-bit program's limits", foreign, "prlimit64", [4]uint64{1, 7, 1}, eperm},
		{"a 32-bit program's own limits", foreign, "prlimit64", [4]uint64{0, 7, 1}, allow},
		{"a 32-bit program's nice", foreign, "setpriority", [4]uint64{0, 1, 1}, eperm},
		{"a 32-bit program's scheduler", foreign, "sched_setscheduler", [4]uint64{1, 1, 1}, eperm},
		{"a 32-bit program's read", foreign, "read", [4]uint64{1, 1, 1}, allow},
		{"another architecture", &arch.Info{ID: arch.S390X.ID, SyscallNames: map[string]int{"read": 3}}, "read", [4]uint64{}, enosys},
		{"x32", arch.X32, "read", [4]uint64{}, enosys},
	} {
		if tt.info == nil || tt.info == arch.X32 && runtime.GOARCH != "amd64" {
			continue // a machine without such programs
		}
		number, found := tt.info.SyscallNames[tt.call]
		if !found {
			t.Fatalf("%s: no number", tt.reason)
		}
		data := make([]byte, 64) // struct seccomp_data, which the interpreter reads as big-endian words
		put := func(at int, v uint32) {
			data[at], data[at+1], data[at+2], data[at+3] = byte(v>>24), byte(v>>16), byte(v>>8), byte(v)
		}
		put(0, uint32(number|tt.info.SeccompMask))
		put(4, uint32(tt.info.ID))
		for i, a := range tt.args {
			put(16+8*i, uint32(a))
			put(20+8*i, uint32(a>>32))
		}
		if got, err := vm.Run(data); err != nil || got != tt.want {
			t.Errorf("%s: %#x, want %#x (%v)", tt.reason, got, tt.want, err)
		}
	}
}
