package session

import (
	"encoding/binary"
	"net/netip"
)

// Address is an IPv4 or IPv6 address as two words, IPv4 mapped into ::ffff:0:0/96: quick to compare and to hash.
type Address struct{ High, Low uint64 }

const mappedIPv4 = 0xffff << 32

// AddressOf converts from the standard library's form.
func AddressOf(a netip.Addr) Address {
	b := a.As16()
	return Address{binary.BigEndian.Uint64(b[:8]), binary.BigEndian.Uint64(b[8:])}
}

// Prefix64 is the address's /64 prefix, the key of a terminal that owns a whole one.
func (a Address) Prefix64() Address { return Address{High: a.High} }

// IsIPv4 says whether a is a mapped IPv4 address.
func (a Address) IsIPv4() bool { return a.High == 0 && a.Low>>32 == 0xffff }

func (a Address) netip() netip.Addr {
	var b [16]byte
	binary.BigEndian.PutUint64(b[:8], a.High)
	binary.BigEndian.PutUint64(b[8:], a.Low)
	return netip.AddrFrom16(b).Unmap()
}

// Packet is a user packet, as far as rules look at it.
type Packet struct {
	Data     []byte
	Src, Dst Address
}

// IP protocol numbers and header lengths that the walk to the ports needs.
const (
	ipv4MinLen = 20
	ipv6Len    = 40

	protoHopByHop = 0
	protoTCP      = 6
	protoUDP      = 17
	protoRouting  = 43
	protoFragment = 44
	protoDstOpts  = 60
	protoSCTP     = 132
)

// ParsePacket reads the addresses of an IPv4 or IPv6 packet. ok is false for anything else and for a packet that is
// shorter than it says.
func ParsePacket(b []byte) (p Packet, ok bool) {
	if len(b) < ipv4MinLen {
		return p, false
	}
	p.Data = b
	switch b[0] >> 4 {
	case 4:
		p.Src.Low = mappedIPv4 | uint64(binary.BigEndian.Uint32(b[12:]))
		p.Dst.Low = mappedIPv4 | uint64(binary.BigEndian.Uint32(b[16:]))
		total := int(binary.BigEndian.Uint16(b[2:]))
		return p, total >= ipv4MinLen && total <= len(b)
	case 6:
		if len(b) < ipv6Len {
			return p, false
		}
		p.Src = Address{binary.BigEndian.Uint64(b[8:]), binary.BigEndian.Uint64(b[16:])}
		p.Dst = Address{binary.BigEndian.Uint64(b[24:]), binary.BigEndian.Uint64(b[32:])}
		return p, ipv6Len+int(binary.BigEndian.Uint16(b[4:])) <= len(b)
	}
	return p, false
}

// transport is what a flow description compares beside addresses.
type transport struct {
	protocol         uint8
	srcPort, dstPort uint16
	hasPorts         bool
}

// transport reads the protocol and, where there are any, the ports.
func (p *Packet) transport() transport {
	b := p.Data
	if b[0]>>4 == 4 {
		header := int(b[0]&0x0f) * 4
		first := binary.BigEndian.Uint16(b[6:])&0x1fff == 0
		return ports(b[9], b, header, first)
	}
	return p.transport6()
}

// transport6 walks IPv6 extension headers (RFC 8200 clause 4).
func (p *Packet) transport6() transport {
	b := p.Data
	protocol, offset, first := b[6], ipv6Len, true
	for offset+8 <= len(b) {
		switch protocol {
		case protoHopByHop, protoRouting, protoDstOpts:
			protocol, offset = b[offset], offset+8+8*int(b[offset+1])
		case protoFragment:
			first = binary.BigEndian.Uint16(b[offset+2:])&0xfff8 == 0
			protocol, offset = b[offset], offset+8
		default:
			return ports(protocol, b, offset, first)
		}
	}
	return transport{protocol: protocol}
}

func ports(protocol uint8, b []byte, offset int, firstFragment bool) transport {
	t := transport{protocol: protocol}
	switch protocol {
	case protoTCP, protoUDP, protoSCTP:
		if firstFragment && offset >= ipv4MinLen && offset+4 <= len(b) {
			t.srcPort = binary.BigEndian.Uint16(b[offset:])
			t.dstPort = binary.BigEndian.Uint16(b[offset+2:])
			t.hasPorts = true
		}
	}
	return t
}
