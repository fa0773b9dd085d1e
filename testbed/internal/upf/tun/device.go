// Package tun makes the TUN device through which a UPF exchanges packets with the data network.
package tun

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// Limits of a device's MTU: the smallest that IPv4 allows (RFC 791), the largest a packet can fill.
const (
	MinMTU = 68
	MaxMTU = 65535
)

const clone = "/dev/net/tun"

// Device is an open TUN device. It disappears when it is closed.
type Device struct {
	FD   int // non-blocking; one packet for each read and write, without any header
	Name string
}

// Open makes a TUN device, sets its MTU, brings it up and routes the pools to it.
//
// A pool with host bits (10.60.0.254/24) also gives the device that address; one without (10.60.0.0/24) is routed only,
// which leaves every address to the terminals.
func Open(name string, mtu int, pools []netip.Prefix) (*Device, error) {
	fd, err := unix.Open(clone, unix.O_RDWR|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("open %s: %w", clone, err)
	}
	d := &Device{FD: fd, Name: name}
	if err := d.setUp(mtu, pools); err != nil {
		d.Close()
		return nil, fmt.Errorf("TUN device %s: %w", name, err)
	}
	return d, nil
}

// Close closes and so removes the device.
func (d *Device) Close() error { return unix.Close(d.FD) }

func (d *Device) setUp(mtu int, pools []netip.Prefix) error {
	request, err := unix.NewIfreq(d.Name)
	if err != nil {
		return err
	}
	request.SetUint16(unix.IFF_TUN | unix.IFF_NO_PI | unix.IFF_TUN_EXCL)
	if err := unix.IoctlIfreq(d.FD, unix.TUNSETIFF, request); err != nil {
		return explain("TUNSETIFF", err)
	}
	return configure(d.Name, mtu, pools)
}

// explain adds what to do to errors that have one common cause.
func explain(call string, err error) error {
	switch {
	case errors.Is(err, unix.EBUSY):
		return fmt.Errorf("%w: it exists already", os.NewSyscallError(call, err))
	case errors.Is(err, unix.EPERM):
		return fmt.Errorf("%w: CAP_NET_ADMIN is needed", os.NewSyscallError(call, err))
	}
	return os.NewSyscallError(call, err)
}

// configure sets the MTU of a device of this namespace, brings it up, and adds addresses and routes.
func configure(name string, mtu int, pools []netip.Prefix) error {
	device, err := net.InterfaceByName(name)
	if err != nil {
		return err
	}
	quietIPv6(name, pools)
	route, err := dialNetlink()
	if err != nil {
		return err
	}
	defer route.close()
	if err := route.up(device.Index, mtu); err != nil {
		return fmt.Errorf("MTU %d: %w", mtu, explain("RTM_NEWLINK", err))
	}
	for _, pool := range pools {
		if pool.Addr() != pool.Masked().Addr() {
			if err := route.addAddress(device.Index, pool.Addr()); err != nil {
				return fmt.Errorf("address %s: %w", pool.Addr(), err)
			}
		}
		if err := route.addRoute(device.Index, pool.Masked()); err != nil {
			return fmt.Errorf("route %s: %w", pool.Masked(), err)
		}
	}
	return nil
}

// quietIPv6 keeps the kernel from talking on the device by itself (router solicitations, multicast listener reports),
// which terminals should not see: no link-local address, and no IPv6 at all without an IPv6 pool. That it may fail
// where IPv6 is not built in is no harm.
func quietIPv6(name string, pools []netip.Prefix) {
	settings := map[string]string{"addr_gen_mode": "1", "router_solicitations": "0", "disable_ipv6": "1"}
	for _, pool := range pools {
		if pool.Addr().Is6() {
			settings["disable_ipv6"] = "0"
		}
	}
	for setting, value := range settings {
		_ = os.WriteFile(filepath.Join("/proc/sys/net/ipv6/conf", name, setting), []byte(value), 0)
	}
}

// netlink is a route netlink socket (rtnetlink(7)) for requests that are answered by an acknowledgement.
type netlink struct {
	fd  int
	seq uint32
}

func dialNetlink() (*netlink, error) {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.NETLINK_ROUTE)
	if err != nil {
		return nil, os.NewSyscallError("netlink socket", err)
	}
	return &netlink{fd: fd}, nil
}

func (n *netlink) close() { unix.Close(n.fd) }

var native = binary.NativeEndian

// up sets a device's MTU and brings it up.
func (n *netlink) up(index, mtu int) error {
	// struct ifinfomsg: family, padding, type, index, flags, change
	body := native.AppendUint32([]byte{unix.AF_UNSPEC, 0, 0, 0}, uint32(index))
	body = native.AppendUint32(body, unix.IFF_UP)
	body = native.AppendUint32(body, unix.IFF_UP)
	body = appendAttribute(body, unix.IFLA_MTU, native.AppendUint32(nil, uint32(mtu)))
	return n.request(unix.RTM_NEWLINK, 0, body)
}

// addAddress gives a device one address, without a route to the network around it.
func (n *netlink) addAddress(index int, address netip.Addr) error {
	// struct ifaddrmsg: family, prefix length, flags, scope, index
	body := []byte{family(address), uint8(address.BitLen()), unix.IFA_F_NODAD, unix.RT_SCOPE_UNIVERSE}
	body = native.AppendUint32(body, uint32(index))
	body = appendAttribute(body, unix.IFA_LOCAL, address.AsSlice())
	body = appendAttribute(body, unix.IFA_ADDRESS, address.AsSlice())
	return n.request(unix.RTM_NEWADDR, unix.NLM_F_CREATE|unix.NLM_F_EXCL, body)
}

// addRoute routes a network to a device.
func (n *netlink) addRoute(index int, network netip.Prefix) error {
	// struct rtmsg: family, lengths of destination and source, TOS, table, protocol, scope, type, flags
	body := []byte{
		family(network.Addr()), uint8(network.Bits()), 0, 0,
		unix.RT_TABLE_MAIN, unix.RTPROT_STATIC, unix.RT_SCOPE_LINK, unix.RTN_UNICAST,
	}
	body = native.AppendUint32(body, 0)
	body = appendAttribute(body, unix.RTA_DST, network.Addr().AsSlice())
	body = appendAttribute(body, unix.RTA_OIF, native.AppendUint32(nil, uint32(index)))
	return n.request(unix.RTM_NEWROUTE, unix.NLM_F_CREATE|unix.NLM_F_EXCL, body)
}

func family(a netip.Addr) uint8 {
	if a.Is4() {
		return unix.AF_INET
	}
	return unix.AF_INET6
}

// appendAttribute appends a struct rtattr with its payload, padded to four octets.
func appendAttribute(b []byte, kind uint16, payload []byte) []byte {
	b = native.AppendUint16(b, uint16(unix.SizeofRtAttr+len(payload)))
	b = native.AppendUint16(b, kind)
	b = append(b, payload...)
	for len(b)%unix.RTA_ALIGNTO != 0 {
		b = append(b, 0)
	}
	return b
}

// request sends one request and returns the error number in its acknowledgement.
func (n *netlink) request(kind, flags uint16, body []byte) error {
	n.seq++
	// struct nlmsghdr: length, type, flags, sequence number, port
	message := native.AppendUint32(nil, uint32(unix.SizeofNlMsghdr+len(body)))
	message = native.AppendUint16(message, kind)
	message = native.AppendUint16(message, unix.NLM_F_REQUEST|unix.NLM_F_ACK|flags)
	message = native.AppendUint32(message, n.seq)
	message = native.AppendUint32(message, 0)
	message = append(message, body...)
	if err := unix.Sendto(n.fd, message, 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}); err != nil {
		return os.NewSyscallError("netlink send", err)
	}
	return n.acknowledgement()
}

func (n *netlink) acknowledgement() error {
	buffer := make([]byte, os.Getpagesize())
	size, _, err := unix.Recvfrom(n.fd, buffer, 0)
	if err != nil {
		return os.NewSyscallError("netlink receive", err)
	}
	answer := buffer[:size]
	if size < unix.SizeofNlMsghdr+4 || native.Uint16(answer[4:]) != unix.NLMSG_ERROR || native.Uint32(answer[8:]) != n.seq {
		return os.NewSyscallError("netlink", unix.EBADMSG)
	}
	if code := int32(native.Uint32(answer[unix.SizeofNlMsghdr:])); code != 0 {
		return unix.Errno(-code)
	}
	return nil
}
