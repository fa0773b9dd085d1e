// Package sockaddr reads addresses with ports, and converts between netip addresses and those of golang.org/x/sys/unix.
package sockaddr

import (
	"fmt"
	"net/netip"
	"strings"

	"golang.org/x/sys/unix"
)

// Parse reads "address" or "address:port" ("[address]:port" for IPv6); port is used where the text has none.
func Parse(text string, port uint16) (netip.AddrPort, error) {
	address, err := netip.ParseAddr(strings.Trim(text, "[]"))
	if err != nil {
		var both netip.AddrPort
		both, err = netip.ParseAddrPort(text)
		address, port = both.Addr(), both.Port()
	}
	if err != nil || port == 0 || address.Zone() != "" {
		return netip.AddrPort{}, fmt.Errorf("%q; expected ADDRESS or ADDRESS:PORT, for IPv6 [ADDRESS]:PORT", text)
	}
	return netip.AddrPortFrom(address.Unmap(), port), nil
}

// Family is the address family that a socket for an address needs.
func Family(address netip.Addr) int {
	if address.Is4() {
		return unix.AF_INET
	}
	return unix.AF_INET6
}

// To converts for a system call.
func To(address netip.AddrPort) unix.Sockaddr {
	if address.Addr().Is4() {
		return &unix.SockaddrInet4{Addr: address.Addr().As4(), Port: int(address.Port())}
	}
	return &unix.SockaddrInet6{Addr: address.Addr().As16(), Port: int(address.Port())}
}

// From converts what a system call returned; an IPv4 address in IPv6 form becomes one in its own form. It is invalid
// for other address families.
func From(address unix.Sockaddr) netip.AddrPort {
	switch a := address.(type) {
	case *unix.SockaddrInet4:
		return netip.AddrPortFrom(netip.AddrFrom4(a.Addr), uint16(a.Port))
	case *unix.SockaddrInet6:
		return netip.AddrPortFrom(netip.AddrFrom16(a.Addr).Unmap(), uint16(a.Port))
	}
	return netip.AddrPort{}
}
