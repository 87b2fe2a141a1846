//go:build linux

package main

import (
	"errors"
	"fmt"
	"net"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// sockets asks for a socket of every family there is.
func sockets(_ input, r *report) {
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM, 0)
	r.control("AF_UNIX", err)
	if err == nil {
		_ = unix.Close(fd)
	}
	families := map[string]int{}
	for family := 2; family < 46; family++ {
		families[strconv.Itoa(family)] = family
	}
	for name, family := range map[string]int{"AF_INET": unix.AF_INET, "AF_INET6": unix.AF_INET6, "AF_NETLINK": unix.AF_NETLINK, "AF_PACKET": unix.AF_PACKET,
		"AF_VSOCK": unix.AF_VSOCK, "AF_ALG": unix.AF_ALG, "AF_KEY": unix.AF_KEY, "AF_XDP": unix.AF_XDP, "AF_BLUETOOTH": unix.AF_BLUETOOTH, "AF_CAN": unix.AF_CAN,
		"AF_TIPC": unix.AF_TIPC, "AF_RDS": unix.AF_RDS, "AF_SMC": unix.AF_SMC, "AF_QIPCRTR": unix.AF_QIPCRTR} {
		delete(families, strconv.Itoa(family))
		families[name] = family
	}
	for name, family := range families {
		for kind, k := range map[string]int{"stream": unix.SOCK_STREAM, "datagram": unix.SOCK_DGRAM, "raw": unix.SOCK_RAW, "packet": unix.SOCK_SEQPACKET} {
			fd, err := unix.Socket(family, k, 0)
			r.try("socket "+name+" "+kind, err)
			if err == nil {
				_ = unix.Close(fd)
			}
		}
		pair, err := unix.Socketpair(family, unix.SOCK_STREAM, 0)
		r.try("socketpair "+name, err)
		if err == nil {
			_ = unix.Close(pair[0])
			_ = unix.Close(pair[1])
		}
	}
	for _, protocol := range []int{unix.IPPROTO_ICMP, unix.IPPROTO_TCP, unix.IPPROTO_RAW} {
		_, err := unix.Socket(unix.AF_INET, unix.SOCK_RAW, protocol)
		r.try(fmt.Sprintf("raw IPv4 of protocol %d", protocol), err)
	}
	_, err = unix.Socket(unix.AF_PACKET, unix.SOCK_RAW, 0x0300)
	r.try("all packets", err)
	uring := [32]uint32{}
	_, _, errno := unix.RawSyscall(unix.SYS_IO_URING_SETUP, 4, ptr(&uring), 0)
	r.try("io_uring, which makes sockets itself", errOf(errno))
}

// inherited looks for descriptors that somebody left open.
func inherited(_ input, r *report) {
	var st unix.Stat_t
	r.control("stdout is there", unix.Fstat(1, &st))
	first := -1
	sockets := 0
	for fd := range 4096 {
		if unix.Fstat(fd, &st) != nil {
			continue
		}
		if st.Mode&unix.S_IFMT == unix.S_IFSOCK {
			sockets++
		}
		// Those of the Go runtime of this program: an eventfd and an epoll.
		target, _ := os.Readlink("/proc/self/fd/" + strconv.Itoa(fd))
		if fd > 2 && !strings.HasPrefix(target, "anon_inode:") && !strings.Contains(target, "/cgroup/") && first < 0 {
			first = fd
			r.note("descriptor %d is %s", fd, target)
		}
	}
	r.try("find an open descriptor above 2", boolError(first >= 0))
	r.try("find a socket among the descriptors", boolError(sockets > 0))
}

// connect tries each target: "tcp:HOST:PORT" or "udp:HOST:PORT"; a leading "!"
// makes it a control. UDP counts if something answers a DNS question.
func connect(in input, r *report) {
	if in.Seconds > 0 {
		time.Sleep(hold(in)) // until whatever enforces a policy had its time
	}
	got := make([]error, len(in.Targets))
	var all sync.WaitGroup
	for i, target := range in.Targets {
		all.Go(func() {
			network, address, _ := strings.Cut(strings.TrimPrefix(target, "!"), ":")
			got[i] = reach(network, address)
		})
	}
	all.Wait()
	for i, target := range in.Targets {
		if name, ok := strings.CutPrefix(target, "!"); ok {
			r.control("connect to "+name, got[i])
		} else {
			r.try("connect to "+target, got[i])
		}
	}
	// The program can do it: to itself, or where no socket is, to a Unix socket.
	r.control("make an AF_UNIX socket pair", func() error {
		pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM, 0)
		if err == nil {
			_, err = unix.Write(pair[0], []byte("x"))
		}
		return err
	}())
}

func reach(network, address string) error {
	if network == "resolve" {
		_, err := net.LookupHost(address)
		return err
	}
	c, err := net.DialTimeout(network, address, 3*time.Second)
	if err != nil {
		return err
	}
	defer c.Close()
	if network == "tcp" {
		return nil
	}
	_ = c.SetDeadline(time.Now().Add(3 * time.Second)) // fails only for a closed one
	// One question: the address of secret.attacker.test.
	question := "\x12\x34\x01\x00\x00\x01\x00\x00\x00\x00\x00\x00\x06secret\x08attacker\x04test\x00\x00\x01\x00\x01"
	if _, err := c.Write([]byte(question)); err != nil {
		return err
	}
	_, err = c.Read(make([]byte, 512))
	return err
}

// serve answers on TCP and UDP for a while: a neighbour to be reached.
func serve(in input, _ *report) {
	l, err := net.Listen("tcp", ":8080") //nolint:gosec // to be reached is the point
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			c.Close()
		}
	}()
	p, err := net.ListenPacket("udp", ":5353")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	go func() {
		buf := make([]byte, 512)
		for {
			n, from, err := p.ReadFrom(buf)
			if err != nil {
				return
			}
			_, _ = p.WriteTo(buf[:n], from)
		}
	}()
	time.Sleep(hold(in))
	os.Exit(0)
}

// portClash holds a port on every address for a while.
func portClash(in input, r *report) {
	const everywhere = "0.0.0.0:8080"
	l, err := net.Listen("tcp", everywhere) //nolint:gosec // to clash is the point
	r.control("listen on 0.0.0.0:8080", err)
	if err != nil {
		return
	}
	_, err = net.Listen("tcp", everywhere) //nolint:gosec // as above
	r.try("listen there twice", err)
	time.Sleep(hold(in))
	_, port, _ := net.SplitHostPort(l.Addr().String())
	r.control("reach oneself", func() error {
		c, err := net.DialTimeout("tcp", "127.0.0.1:"+port, 2*time.Second)
		return errors.Join(err, closeIf(c))
	}())
}

func closeIf(c net.Conn) error {
	if c == nil {
		return nil
	}
	return c.Close()
}
