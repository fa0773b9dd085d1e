// Package own knows which addresses are the machine's own: what a terminal sends there would be handed to the sockets of
// this UPF or of its machine (GTP-U into other tunnels, PFCP), as if a peer on N3 or N4 had sent it.
package own

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"sync/atomic"
	"syscall"

	"golang.org/x/sys/unix"

	"slicepilot/userplane/internal/upf/session"
)

// groups are the changes of addresses and routes (rtnetlink(7)).
const groups = unix.RTMGRP_IPV4_IFADDR | unix.RTMGRP_IPV6_IFADDR | unix.RTMGRP_IPV4_ROUTE | unix.RTMGRP_IPV6_ROUTE

// Addresses are what the kernel of this network namespace delivers to itself.
type Addresses struct {
	table   atomic.Pointer[table]
	changes *os.File
}

// table is one reading of the routes of the types local, broadcast and anycast. Immutable.
type table []network

type network struct{ address, mask session.Address }

// Watch reads the addresses; Follow keeps them up to date.
func Watch() (*Addresses, error) {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, unix.NETLINK_ROUTE)
	if err != nil {
		return nil, os.NewSyscallError("netlink socket", err)
	}
	a := &Addresses{changes: os.NewFile(uintptr(fd), "netlink")}
	if err := unix.Bind(fd, &unix.SockaddrNetlink{Family: unix.AF_NETLINK, Groups: groups}); err != nil {
		a.changes.Close()
		return nil, os.NewSyscallError("netlink bind", err)
	}
	if err := a.read(); err != nil { // after Bind: no change in between is missed
		a.changes.Close()
		return nil, err
	}
	return a, nil
}

// Close ends following.
func (a *Addresses) Close() { a.changes.Close() }

// Has says whether a packet to that address would not be forwarded by the kernel, but taken in: addresses of its own,
// broadcast, multicast, link-local and unspecified addresses.
func (a *Addresses) Has(to session.Address) bool {
	if special(to) {
		return true
	}
	known := *a.table.Load()
	for i := range known {
		n := &known[i]
		if to.High&n.mask.High == n.address.High && to.Low&n.mask.Low == n.address.Low {
			return true
		}
	}
	return false
}

// special says whether an address is of no single machine elsewhere: 0.0.0.0/8, 127.0.0.0/8 and 224.0.0.0/3 (RFC 6890),
// ::, ::1, fe80::/10 and ff00::/8 (RFC 4291).
func special(a session.Address) bool {
	if a.IsIPv4() {
		first := byte(a.Low >> 24)
		return first == 0 || first == 127 || first >= 224
	}
	return a.High == 0 && a.Low <= 1 || a.High>>54 == 0xfe80>>6 || a.High>>56 == 0xff
}

// Follow reads everything anew after each change, until Close; a full socket buffer (ENOBUFS) is one, too.
func (a *Addresses) Follow() error {
	buffer := make([]byte, 1<<16)
	for {
		_, err := a.changes.Read(buffer)
		switch {
		case errors.Is(err, os.ErrClosed):
			return nil
		case err != nil && !errors.Is(err, unix.ENOBUFS):
			return err
		}
		if err := a.read(); err != nil {
			return err
		}
	}
}

func (a *Addresses) read() error {
	octets, err := syscall.NetlinkRIB(syscall.RTM_GETROUTE, syscall.AF_UNSPEC)
	if err != nil {
		return fmt.Errorf("own addresses: %w", os.NewSyscallError("RTM_GETROUTE", err))
	}
	messages, err := syscall.ParseNetlinkMessage(octets)
	if err != nil {
		return fmt.Errorf("own addresses: %w", err)
	}
	var read table
	for i := range messages {
		if prefix, is := taken(&messages[i]); is {
			read.add(prefix)
		}
	}
	a.table.Store(&read)
	return nil
}

func (t *table) add(prefix netip.Prefix) {
	address, bits := session.AddressOf(prefix.Masked().Addr()), prefix.Bits()
	if prefix.Addr().Is4() {
		bits += 96
	}
	mask := session.Address{High: ^uint64(0) << max(64-bits, 0), Low: ^uint64(0) << min(128-bits, 64)}
	*t = append(*t, network{address, mask})
}

// taken returns the destination of a route by which the kernel takes packets in.
func taken(m *syscall.NetlinkMessage) (netip.Prefix, bool) {
	// struct rtmsg: family, lengths of destination and source, TOS, table, protocol, scope, type, flags
	if m.Header.Type != unix.RTM_NEWROUTE || len(m.Data) < unix.SizeofRtMsg {
		return netip.Prefix{}, false
	}
	switch m.Data[7] {
	case unix.RTN_LOCAL, unix.RTN_BROADCAST, unix.RTN_ANYCAST:
	default:
		return netip.Prefix{}, false
	}
	attributes, err := syscall.ParseNetlinkRouteAttr(m)
	if err != nil {
		return netip.Prefix{}, false
	}
	address := netip.IPv4Unspecified() // a route to everything has no destination
	if m.Data[0] == unix.AF_INET6 {
		address = netip.IPv6Unspecified()
	}
	for _, attribute := range attributes {
		if attribute.Attr.Type == unix.RTA_DST {
			var known bool
			if address, known = netip.AddrFromSlice(attribute.Value); !known {
				return netip.Prefix{}, false
			}
		}
	}
	prefix := netip.PrefixFrom(address, int(m.Data[1]))
	return prefix, prefix.IsValid()
}
