//go:build linux

package runner

import (
	"net"
	"net/netip"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"callgate.dev/callgate/internal/wire"
)

// apiServerAt is the environment of a container whose API server is elsewhere.
func apiServerAt(address net.Addr) func(*exec.Cmd) {
	host, port, _ := net.SplitHostPort(address.String())
	return func(c *exec.Cmd) {
		c.Env = append(c.Env, probeVariable+"=true", "KUBERNETES_SERVICE_HOST="+host, "KUBERNETES_SERVICE_PORT="+port)
	}
}

func listen(t *testing.T) net.Listener {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() }) // often closed already
	return l
}

// silent is an address that answers no SYN: its queue is full and nobody accepts.
func silent(t *testing.T) netip.AddrPort {
	t.Helper()
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Close(fd) })
	if err := unix.Bind(fd, &unix.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}}); err != nil {
		t.Fatal(err)
	}
	if err := unix.Listen(fd, 0); err != nil {
		t.Fatal(err)
	}
	name, err := unix.Getsockname(fd)
	if err != nil {
		t.Fatal(err)
	}
	address := netip.AddrPortFrom(netip.AddrFrom4([4]byte{127, 0, 0, 1}), uint16(name.(*unix.SockaddrInet4).Port))
	for range 8 {
		c, err := net.DialTimeout("tcp", address.String(), 200*time.Millisecond)
		if err != nil {
			return address
		}
		t.Cleanup(func() { _ = c.Close() })
	}
	t.Skip("this kernel answers though the queue is full")
	return address
}

func TestProbe(t *testing.T) {
	reachable := netip.MustParseAddrPort(listen(t).Addr().String())
	gone := listen(t)
	_ = gone.Close()
	for _, tc := range []struct {
		reason  string
		address netip.AddrPort
		code    int
		message string
		most    time.Duration
	}{
		{"it can be reached, and stays so", reachable, wire.ExitNetworkOpen, "not in force: the API server at 127.0.0.1", 0},
		{"rejected: no time is lost", netip.MustParseAddrPort(gone.Addr().String()), 0, "", 100 * time.Millisecond},
		{"silence, twice", silent(t), 0, "", probeTries*probeSilence + 500*time.Millisecond},
		{"no route at all", netip.MustParseAddrPort("[2001:db8::1]:443"), 0, "", probeTries*probeSilence + 500*time.Millisecond},
	} {
		t.Run(tc.reason, func(t *testing.T) {
			begin := time.Now()
			code, reason := awaitRefusal(tc.address, 250*time.Millisecond, nil)
			if code != tc.code || !strings.Contains(reason, tc.message) || reason == "" != (code == 0) {
				t.Errorf("code %d, %q; want %d, %q", code, reason, tc.code, tc.message)
			}
			if took := time.Since(begin); tc.most > 0 && took > tc.most {
				t.Errorf("it took %v, want at most %v", took, tc.most)
			}
		})
	}
}

// TestProbeWaitsForThePlugin: a call that is there already does not start before
// the policy is in force.
func TestProbeWaitsForThePlugin(t *testing.T) {
	l := listen(t)
	s := open(t, apiServerAt(l.Addr()))
	s.send(call("env"))
	for range 3 { // it asks again and again
		c, err := l.Accept()
		if err != nil {
			t.Fatal(err)
		}
		_ = c.Close()
	}
	if printed := s.output(); printed != "" {
		t.Errorf("with the network open the runner printed %q", printed)
	}
	_ = l.Close()
	r := s.result()
	if r.ExitCode != 0 || strings.Contains(string(r.Stdout), "CALLGATE_PROBE") || strings.Contains(string(r.Stdout), "KUBERNETES_") {
		t.Errorf("%+v; environment %s", r, r.Stdout)
	}
}

func TestNetworkThatStaysOpen(t *testing.T) {
	t.Parallel()
	s := open(t, apiServerAt(listen(t).Addr()))
	s.send(call("touch", "ran"))
	if code := s.exit(); code != wire.ExitNetworkOpen {
		t.Errorf("exit code %d, want %d", code, wire.ExitNetworkOpen)
	}
	state := s.Snapshot()
	if state.Ready || state.Accepted != nil || !strings.Contains(state.NoCall, "the network policy is not in force: the API server at 127.0.0.1") {
		t.Errorf("%+v", state)
	}
	if _, err := os.Stat(s.dir + "/ran"); err == nil {
		t.Error("the tool ran")
	}
	if _, err := os.Stat(s.dir + "/state/used"); err == nil {
		t.Error("the sandbox is marked as used")
	}
}

func TestNoAddressNoProof(t *testing.T) {
	for _, env := range [][]string{{}, {"KUBERNETES_SERVICE_HOST=api.example.com", "KUBERNETES_SERVICE_PORT=443"}, {"KUBERNETES_SERVICE_HOST=10.0.0.1"}} {
		s := open(t, func(c *exec.Cmd) { c.Env = append(append(c.Env, probeVariable+"=true"), env...) })
		if code := s.exit(); code != wire.ExitNetworkOpen || !strings.Contains(s.Snapshot().NoCall, "cannot be proven") {
			t.Errorf("%q: exit code %d, %q", env, code, s.Snapshot().NoCall)
		}
	}
}

// On this machine more can be written to than in a sandbox.
func TestNoCallWhereMoreCanBeWritten(t *testing.T) {
	s := open(t, func(c *exec.Cmd) { c.Env = append(c.Env, writableVariable+"=") })
	if code := s.exit(); code != wire.ExitWritable || !strings.Contains(s.Snapshot().NoCall, "can be written to, on ") {
		t.Errorf("exit code %d, %q", code, s.Snapshot().NoCall)
	}
}

func TestPauseForThePlugin(t *testing.T) {
	begin := time.Now()
	r := run(t, call("env"), func(c *exec.Cmd) { c.Env = append(c.Env, probeVariable+"="+probePauseOnly) })
	if r.ExitCode != 0 || time.Since(begin) < pluginTime || strings.Contains(string(r.Stdout), "CALLGATE_") {
		t.Errorf("%d after %s: %s", r.ExitCode, time.Since(begin), r.Stdout)
	}
}

func TestSIGTERMWhileTheNetworkIsOpen(t *testing.T) {
	l := listen(t)
	s := open(t, apiServerAt(l.Addr()))
	if _, err := l.Accept(); err != nil {
		t.Fatal(err)
	}
	begin := time.Now()
	_ = s.cmd.Process.Signal(unix.SIGTERM) // it may not be gone: the exit code tells
	if code := s.exit(); code != wire.ExitNoCall || time.Since(begin) > probeLimit/2 {
		t.Errorf("exit code %d after %v", code, time.Since(begin))
	}
}

func TestAPIServerAddress(t *testing.T) {
	for _, tc := range []struct{ host, port, want string }{
		{"10.96.0.1", "443", "10.96.0.1:443"},
		{"fd00::1", "6443", "[fd00::1]:6443"},
		{"", "443", ""}, {"10.96.0.1", "", ""}, {"kubernetes.default", "443", ""},
	} {
		got, err := apiServer(tc.host, tc.port)
		if err == nil != (tc.want != "") || tc.want != "" && got.String() != tc.want {
			t.Errorf("%q %q: %s (%v), want %q", tc.host, tc.port, got, err, tc.want)
		}
	}
}
