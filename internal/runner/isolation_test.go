//go:build linux

package runner

import (
	"net"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/elastic/go-seccomp-bpf/arch"
	"golang.org/x/net/bpf"
	"golang.org/x/sys/unix"

	"callgate.dev/callgate/internal/wire"
)

func TestNoSocketFromTheFirstInstruction(t *testing.T) {
	r := run(t, call(helper("sockets")...))
	want := []string{
		"tcp EAFNOSUPPORT", "tcp6 EAFNOSUPPORT", "udp EAFNOSUPPORT", "netlink EAFNOSUPPORT",
		"tcp, high bits set EAFNOSUPPORT", "socketpair inet EAFNOSUPPORT",
		"unix ok", "socketpair unix ok", "io_uring ENOSYS", "listen unix <nil>",
	}
	if runtime.GOARCH == "amd64" {
		want = slices.Insert(want, len(want)-1, "x32 ENOSYS", "int80 ENOSYS")
	}
	if got := strings.TrimSuffix(string(r.Stdout), "\n"); got != strings.Join(want, "\n") {
		t.Errorf("got\n%s\nwant\n%s\n%+v", got, strings.Join(want, "\n"), r)
	}
}

func TestTheFilterIsInheritedAndStays(t *testing.T) {
	r := run(t, call(sh("("+bin+"/helper sockets) | head -n 1; grep Seccomp: /proc/self/status")...))
	if !strings.HasPrefix(string(r.Stdout), "tcp EAFNOSUPPORT\nSeccomp:\t2") {
		t.Errorf("%q %q", r.Stdout, r.StderrTail)
	}
}

func TestAllowSockets(t *testing.T) {
	c := call(helper("sockets")...)
	c.AllowSockets = true
	r := run(t, c)
	for _, line := range []string{"tcp ok", "udp ok", "netlink ok", "unix ok"} {
		if !strings.Contains(string(r.Stdout), line+"\n") {
			t.Errorf("no %q in %q", line, r.Stdout)
		}
	}
}

// TestForeignArchitecture: a 32-bit program has calls of its own for sockets. It
// reaches nobody under the filter, and does without it (so the test can tell).
func TestForeignArchitecture(t *testing.T) {
	if runtime.GOARCH != "amd64" {
		t.Skip("a 32-bit x86 program needs an amd64 machine")
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = l.Close() }()
	visits := make(chan struct{}, 8)
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			_ = c.Close()
			visits <- struct{}{}
		}
	}()
	c := call(bin+"/dial386", l.Addr().String())
	c.AllowSockets = true
	if r := run(t, c); string(r.Stdout) != "dial: <nil>\n" {
		t.Skipf("this kernel does not run 32-bit programs: %q %q", r.Stdout, r.StartError)
	}
	<-visits
	c.AllowSockets = false
	c.TimeoutMillis = 3000
	r := run(t, c)
	if len(r.Stdout) > 0 || r.ExitCode == 0 {
		t.Errorf("a 32-bit program ran: %q, exit %d", r.Stdout, r.ExitCode)
	}
	select {
	case <-visits:
		t.Error("a 32-bit program reached the network")
	default:
	}
}

// TestSocketFilterProgram runs the filter itself in a BPF interpreter, for calls
// no test program can make.
func TestSocketFilterProgram(t *testing.T) {
	program, err := toolFilter(false)
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
	const allow, errno = 0x7fff0000, 0x00050000
	socket := uint32(native.SyscallNames["socket"])
	tests := []struct {
		reason      string
		arch, call  uint32
		argLo, argH uint32
		want        int
	}{
		{"a call that has nothing to do with it", uint32(native.ID), uint32(native.SyscallNames["read"]), unix.AF_INET, 0, allow},
		{"AF_UNIX", uint32(native.ID), socket, unix.AF_UNIX, 0, allow},
		{"AF_UNSPEC", uint32(native.ID), socket, unix.AF_UNSPEC, 0, errno | int(unix.EAFNOSUPPORT)},
		{"AF_VSOCK", uint32(native.ID), socket, unix.AF_VSOCK, 0, errno | int(unix.EAFNOSUPPORT)},
		{"AF_UNIX with high bits", uint32(native.ID), socket, unix.AF_UNIX, 1, errno | int(unix.EAFNOSUPPORT)},
		{"io_uring_enter", uint32(native.ID), uint32(native.SyscallNames["io_uring_enter"]), 0, 0, errno | int(unix.ENOSYS)},
		{"io_uring_register", uint32(native.ID), uint32(native.SyscallNames["io_uring_register"]), 0, 0, errno | int(unix.ENOSYS)},
		{"i386 read", unix.AUDIT_ARCH_I386, 3, 0, 0, errno | int(unix.ENOSYS)},
		{"i386 socketcall", unix.AUDIT_ARCH_I386, 102, 1, 0, errno | int(unix.ENOSYS)},
		{"32-bit ARM", unix.AUDIT_ARCH_ARM, 281, unix.AF_UNIX, 0, errno | int(unix.ENOSYS)},
	}
	for _, tt := range tests {
		data := make([]byte, 64) // struct seccomp_data, which the interpreter reads as big-endian words
		put := func(at int, v uint32) {
			data[at], data[at+1], data[at+2], data[at+3] = byte(v>>24), byte(v>>16), byte(v>>8), byte(v)
		}
		put(0, tt.call)
		put(4, tt.arch)
		put(16, tt.argLo)
		put(20, tt.argH)
		got, err := vm.Run(data)
		if err != nil || got != tt.want {
			t.Errorf("%s: %#x, want %#x (%v)", tt.reason, got, tt.want, err)
		}
	}
}

// TestToolCannotReachTheRunner: as in a container, the tool has the runner's
// user and sees it as PID 1.
func TestToolCannotReachTheRunner(t *testing.T) {
	s := open(t, asPID1(t))
	s.send(call(helper("attack")...))
	r := s.result()
	want := "environ true\nmem true\nmaps true\nfd true\nfd/0 true\nfd/1 true\nroot/ true\nfd/1 to write true\nptrace true\nstill here\n"
	if string(r.Stdout) != want || r.ExitCode != 0 {
		t.Errorf("got\n%s(exit %d, %q), want\n%s", r.Stdout, r.ExitCode, r.Signal, want)
	}
	if strings.Contains(s.output(), "forged") {
		t.Errorf("the tool wrote to the runner's stdout: %q", s.output())
	}
	_ = s.stdin.Close()
	if code := s.exit(); code != wire.ExitReported {
		t.Errorf("exit code %d", code)
	}
}

func TestNothingOutlivesTheCall(t *testing.T) {
	tests := []struct {
		reason  string
		script  string
		timeout int64
		timed   bool
	}{
		{"a daemon in another session that holds stdout, after a normal end", `setsid sleep 600 & echo '{}'`, 60_000, false},
		{"… and that forks away twice", `setsid sh -c 'setsid sleep 600 & setsid sleep 600 &' & wait; echo '{}'`, 60_000, false},
		{"a group that ignores SIGTERM, at the timeout", `trap "" TERM; setsid sleep 600 & echo '{}'; while :; do sleep 1; done`, 500, true},
		{"zombies without number", `i=0; while [ $i -lt 300 ]; do (sleep 0.05 &) ; i=$((i+1)); done; echo '{}'`, 60_000, false},
	}
	for _, tt := range tests {
		t.Run(tt.reason, func(t *testing.T) {
			s := open(t, asPID1(t))
			c := call(sh(tt.script)...)
			c.TimeoutMillis = tt.timeout
			begin := time.Now()
			s.send(c)
			r := s.result()
			if string(r.Stdout) != "{}\n" || r.TimedOut != tt.timed {
				t.Errorf("%+v", r)
			}
			if took := time.Since(begin); took > 20*time.Second {
				t.Errorf("the result took %v", took)
			}
			// While the runner still waits for its reader, it is alone.
			if left := namespaceMembers(t, s.cmd.Process.Pid); left != 1 {
				t.Errorf("%d processes are left", left-1)
			}
		})
	}
}

// namespaceMembers counts the processes in the PID namespace of a process.
func namespaceMembers(t *testing.T, pid int) (n int) {
	t.Helper()
	link := func(p string) string {
		target, _ := os.Readlink(p + "/ns/pid") // a process that has just ended has none
		return target
	}
	of := link("/proc/" + strconv.Itoa(pid))
	if of == "" {
		t.Fatal("the runner is gone")
	}
	all, err := filepath.Glob("/proc/[0-9]*")
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range all {
		if link(p) == of {
			n++
		}
	}
	return n
}

// TestRunsWithoutPrivileges: nothing but the marker needs to be writable.
func TestRunsWithoutPrivileges(t *testing.T) {
	r := run(t, call("id", "-u"), asPID1(t))
	if string(r.Stdout) != "65532\n" {
		t.Errorf("%q %q %q", r.Stdout, r.StderrTail, r.StartError)
	}
	c := call(sh("kill -TERM 1; kill -KILL 1; kill -STOP 1; echo $PPID")...)
	if r := run(t, c, asPID1(t)); string(r.Stdout) != "1\n" {
		t.Errorf("%q %q", r.Stdout, r.StderrTail)
	}
}
