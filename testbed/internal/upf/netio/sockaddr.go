// Package netio is the thin layer between the data path and the kernel: datagrams in batches (recvmmsg, sendmmsg),
// socket addresses in the kernel's own form, and waiting that can be interrupted. Nothing here allocates after it is
// set up.
package netio

import (
	"encoding/binary"
	"net/netip"

	"golang.org/x/sys/unix"
)

// Sockaddr is a socket address as the kernel reads it, ready to be pointed at by a message header.
type Sockaddr struct {
	raw [unix.SizeofSockaddrInet6]byte
	len uint32
}

// SockaddrOf converts an address and port; the zero AddrPort gives the zero Sockaddr.
func SockaddrOf(a netip.AddrPort) Sockaddr {
	var s Sockaddr
	if !a.IsValid() {
		return s
	}
	binary.BigEndian.PutUint16(s.raw[2:], a.Port())
	if a.Addr().Is4() {
		binary.NativeEndian.PutUint16(s.raw[:], unix.AF_INET)
		ip := a.Addr().As4()
		copy(s.raw[4:], ip[:])
		s.len = unix.SizeofSockaddrInet4
		return s
	}
	binary.NativeEndian.PutUint16(s.raw[:], unix.AF_INET6)
	ip := a.Addr().As16()
	copy(s.raw[8:], ip[:])
	s.len = unix.SizeofSockaddrInet6
	return s
}

// AddrPort converts back; an unknown family gives the zero AddrPort.
func (s *Sockaddr) AddrPort() netip.AddrPort {
	port := binary.BigEndian.Uint16(s.raw[2:])
	switch binary.NativeEndian.Uint16(s.raw[:]) {
	case unix.AF_INET:
		return netip.AddrPortFrom(netip.AddrFrom4([4]byte(s.raw[4:8])), port)
	case unix.AF_INET6:
		return netip.AddrPortFrom(netip.AddrFrom16([16]byte(s.raw[8:24])), port)
	}
	return netip.AddrPort{}
}
