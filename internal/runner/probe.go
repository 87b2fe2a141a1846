//go:build linux

package runner

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"callgate.dev/callgate/internal/wire"
)

const (
	// probeVariable, if it is set, asks for a proof that the network policy is in
	// force; the value probePauseOnly says that there can be none, and to give the
	// network plugin some time. The tool does not get it.
	probeVariable  = "CALLGATE_PROBE_NETWORK"
	probePauseOnly = "pause"
	// pluginTime is that time. On the local cluster a policy was in force within
	// 0.3 s of the start of the container.
	pluginTime = time.Second

	// probeTries is how many connections must fail one after the other: one that is
	// silent may be a packet that was lost.
	probeTries = 2
	// probeSilence is how long each may stay without an answer. A plugin that drops
	// packets costs every start probeTries times as much; one that rejects them
	// costs nothing. An API server answers within a few milliseconds.
	probeSilence = 150 * time.Millisecond
	// probePause is the pause before it is tried again while the network is open.
	probePause = 100 * time.Millisecond
	// probeLimit is how long the network may stay open. The controller gives up on a
	// call that is not accepted 10 s after it attached.
	probeLimit = 8 * time.Second
)

// proveNetworkPolicy returns only when the API server, which every pod reaches
// that no policy holds, cannot be reached, or says in which way there is no proof.
// An object of kind NetworkPolicy is none: a plugin may not know the kind, or may
// be slow to put it in force.
func proveNetworkPolicy(stop <-chan os.Signal) (code int, reason string) {
	switch os.Getenv(probeVariable) {
	case "":
		return 0, ""
	case probePauseOnly:
		select {
		case <-stop:
			return wire.ExitNoCall, "told to stop before a call came"
		case <-time.After(pluginTime):
			return 0, ""
		}
	}
	address, err := apiServer(os.Getenv("KUBERNETES_SERVICE_HOST"), os.Getenv("KUBERNETES_SERVICE_PORT"))
	if err != nil {
		return wire.ExitNetworkOpen, fmt.Sprintf("whether the network policy is in force cannot be proven: %v", err)
	}
	return awaitRefusal(address, probeLimit, stop)
}

// apiServer is the address that the kubelet names in every container.
func apiServer(host, port string) (netip.AddrPort, error) {
	address, err := netip.ParseAddrPort(host + ":" + port)
	if err != nil { // IPv6 has no brackets there
		address, err = netip.ParseAddrPort("[" + host + "]:" + port)
	}
	if err != nil {
		return address, fmt.Errorf("KUBERNETES_SERVICE_HOST %.64q and KUBERNETES_SERVICE_PORT %.16q are no address", host, port)
	}
	return address, nil
}

func awaitRefusal(address netip.AddrPort, limit time.Duration, stop <-chan os.Signal) (code int, reason string) {
	for deadline := time.Now().Add(limit); ; {
		err := refused(address)
		if err == nil {
			return 0, ""
		}
		if time.Now().After(deadline) {
			return wire.ExitNetworkOpen, fmt.Sprintf("the network policy is not in force: %v, %s after the start", err, limit)
		}
		select {
		case <-stop:
			return wire.ExitNoCall, "told to stop before a call came"
		case <-time.After(probePause):
		}
	}
}

// refused returns nil if every connection to an address fails, and otherwise
// what speaks against that.
func refused(address netip.AddrPort) error {
	for range probeTries {
		switch err := connect(address, probeSilence); {
		case err == nil:
			return fmt.Errorf("the API server at %s can be reached", address)
		case errors.Is(err, errNotSent):
			return err
		}
	}
	return nil
}

// errNotSent is wrapped by errors of connect that say nothing of the network.
var errNotSent = errors.New("no connection could be tried")

// connect opens a TCP connection and closes it again. Any error but errNotSent is
// a refusal: of the peer, of a router, of the kernel, or silence.
func connect(address netip.AddrPort, silence time.Duration) error {
	family, to := unix.AF_INET6, unix.Sockaddr(&unix.SockaddrInet6{Port: int(address.Port()), Addr: address.Addr().As16()})
	if address.Addr().Unmap().Is4() {
		family, to = unix.AF_INET, &unix.SockaddrInet4{Port: int(address.Port()), Addr: address.Addr().Unmap().As4()}
	}
	fd, err := unix.Socket(family, unix.SOCK_STREAM|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0)
	if errors.Is(err, unix.EAFNOSUPPORT) {
		return err // a kernel without this family reaches nobody by it
	}
	if err != nil {
		return fmt.Errorf("%w: socket: %w", errNotSent, err)
	}
	defer func() { _ = unix.Close(fd) }() // whatever it says, the descriptor is gone
	switch err := unix.Connect(fd, to); {
	case errors.Is(err, unix.EADDRNOTAVAIL), errors.Is(err, unix.ENOBUFS), errors.Is(err, unix.ENOMEM):
		return fmt.Errorf("%w: connect: %w", errNotSent, err)
	case err == nil, !errors.Is(err, unix.EINPROGRESS) && !errors.Is(err, unix.EINTR):
		return err
	}
	polled := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLOUT}}
	for deadline := time.Now().Add(silence); ; {
		left := max(time.Until(deadline), 0)
		n, err := unix.Poll(polled, int((left+time.Millisecond-1)/time.Millisecond))
		switch {
		case errors.Is(err, unix.EINTR):
			continue
		case err != nil:
			return fmt.Errorf("%w: poll: %w", errNotSent, err)
		case n == 0:
			return unix.ETIMEDOUT
		}
		code, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_ERROR)
		if err != nil {
			return fmt.Errorf("%w: getsockopt: %w", errNotSent, err)
		}
		if code != 0 {
			return syscall.Errno(code)
		}
		return nil
	}
}
