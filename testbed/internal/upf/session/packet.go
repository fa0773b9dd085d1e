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

// Packet is a user packet, as far as rules look at it.
type Packet struct {
	Src, Dst Address
}

const (
	ipv4MinLen = 20
	ipv6Len    = 40
)

// ParsePacket reads the addresses of an IPv4 or IPv6 packet. ok is false for anything else and for a packet that is
// shorter than it says.
func ParsePacket(b []byte) (p Packet, ok bool) {
	if len(b) < ipv4MinLen {
		return p, false
	}
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
