package tun

import (
	"encoding/binary"
	"net/netip"
	"os"

	"golang.org/x/sys/unix"
)

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
