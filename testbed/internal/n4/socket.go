package n4

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"slicepilot/userplane/internal/sockaddr"
)

// maxDatagram is more than any PFCP message: its length field has 16 bits, a UDP datagram is shorter still.
const maxDatagram = 65535

// socket is a UDP socket whose reader blocks in the system call itself: an answer then wakes its thread directly, and
// the round trips reported hold no scheduling by the Go runtime.
type socket struct {
	fd    int
	local netip.AddrPort
}

func listen(address netip.AddrPort) (*socket, error) {
	fd, err := unix.Socket(sockaddr.Family(address.Addr()), unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("socket: %w", err)
	}
	if err := unix.Bind(fd, sockaddr.To(address)); err != nil {
		unix.Close(fd)
		return nil, fmt.Errorf("bind %s: %w", address, err)
	}
	bound, err := unix.Getsockname(fd)
	if err != nil {
		unix.Close(fd)
		return nil, fmt.Errorf("getsockname: %w", err)
	}
	return &socket{fd: fd, local: sockaddr.From(bound)}, nil
}

func (s *socket) send(b []byte, to netip.AddrPort) error {
	for {
		if err := unix.Sendto(s.fd, b, 0, s.reach(to)); !errors.Is(err, unix.EINTR) {
			return os.NewSyscallError("sendto", err)
		}
	}
}

// receive waits for a datagram and returns when it was read. It ends with an error after wake.
func (s *socket) receive(b []byte) (int, netip.AddrPort, time.Time, error) {
	for {
		n, from, err := unix.Recvfrom(s.fd, b, 0)
		at := time.Now()
		switch {
		case errors.Is(err, unix.EINTR), errors.Is(err, unix.ECONNREFUSED):
			continue // a signal; an ICMP message about an earlier datagram
		case err != nil:
			return 0, netip.AddrPort{}, at, os.NewSyscallError("recvfrom", err)
		case from == nil:
			return 0, netip.AddrPort{}, at, os.ErrClosed // shut down: no datagram, so no sender
		}
		return n, sockaddr.From(from), at, nil
	}
}

// wake makes a blocked receive return. On a socket that is not connected shutdown(2) reports ENOTCONN, and does it.
func (s *socket) wake() { _ = unix.Shutdown(s.fd, unix.SHUT_RDWR) }

func (s *socket) close() { unix.Close(s.fd) }

// reach writes an IPv4 address in its IPv6 form where the socket is an IPv6 one.
func (s *socket) reach(to netip.AddrPort) unix.Sockaddr {
	if s.local.Addr().Is6() && to.Addr().Is4() {
		to = netip.AddrPortFrom(netip.AddrFrom16(to.Addr().As16()), to.Port())
	}
	return sockaddr.To(to)
}

// localAddressTowards is the address this host would send from: what a peer has to be told when the socket is bound to
// all addresses. Connecting a UDP socket sends nothing.
func localAddressTowards(to netip.AddrPort) (netip.Addr, error) {
	fd, err := unix.Socket(sockaddr.Family(to.Addr()), unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return netip.Addr{}, fmt.Errorf("socket: %w", err)
	}
	defer unix.Close(fd)
	if err := unix.Connect(fd, sockaddr.To(to)); err != nil {
		return netip.Addr{}, fmt.Errorf("no route to UPF %s: %w", to, err)
	}
	name, err := unix.Getsockname(fd)
	if err != nil {
		return netip.Addr{}, fmt.Errorf("getsockname: %w", err)
	}
	return sockaddr.From(name).Addr(), nil
}
