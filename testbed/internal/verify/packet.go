package verify

import (
	"encoding/binary"
	"net/netip"
)

const (
	ipv4HeaderLen = 20
	ipv6HeaderLen = 40
	udpHeaderLen  = 8
	protocolUDP   = 17
	hopLimit      = 64
	// markLen is what a payload begins with: the rig's number, the volley's and the packet's.
	markLen = 16
	// minSize is the smallest packet, from its IP header on, in either family.
	minSize = ipv6HeaderLen + udpHeaderLen + markLen
)

// mark is what a packet is recognised by. A packet of an earlier volley that comes late is not taken for one of a later.
type mark struct {
	rig            uint64
	volley, number uint32
}

func (m mark) put(b []byte) {
	binary.BigEndian.PutUint64(b, m.rig)
	binary.BigEndian.PutUint32(b[8:], m.volley)
	binary.BigEndian.PutUint32(b[12:], m.number)
}

func readMark(payload []byte) (mark, bool) {
	if len(payload) < markLen {
		return mark{}, false
	}
	return mark{
		binary.BigEndian.Uint64(payload), binary.BigEndian.Uint32(payload[8:]), binary.BigEndian.Uint32(payload[12:]),
	}, true
}

// headerLen is the length of IP and UDP headers in an address's family.
func headerLen(a netip.Addr) int {
	if a.Is4() {
		return ipv4HeaderLen + udpHeaderLen
	}
	return ipv6HeaderLen + udpHeaderLen
}

// userPacket is a terminal's UDP packet of size octets, from its IP header on.
func userPacket(from, to netip.AddrPort, size int, m mark) []byte {
	b := make([]byte, size)
	udp := b[headerLen(from.Addr())-udpHeaderLen:]
	if from.Addr().Is4() {
		const dontFragment = 0x40
		b[0], b[6], b[8], b[9] = 0x45, dontFragment, hopLimit, protocolUDP
		binary.BigEndian.PutUint16(b[2:], uint16(size))
		copy(b[12:], from.Addr().AsSlice())
		copy(b[16:], to.Addr().AsSlice())
		binary.BigEndian.PutUint16(b[10:], checksum(b[:ipv4HeaderLen]))
	} else {
		b[0], b[6], b[7] = 0x60, protocolUDP, hopLimit
		binary.BigEndian.PutUint16(b[4:], uint16(len(udp)))
		copy(b[8:], from.Addr().AsSlice())
		copy(b[24:], to.Addr().AsSlice())
	}
	binary.BigEndian.PutUint16(udp, from.Port())
	binary.BigEndian.PutUint16(udp[2:], to.Port())
	binary.BigEndian.PutUint16(udp[4:], uint16(len(udp)))
	m.put(udp[udpHeaderLen:])
	pseudo := []byte{0, protocolUDP, byte(len(udp) >> 8), byte(len(udp))}
	sum := checksum(from.Addr().AsSlice(), to.Addr().AsSlice(), pseudo, udp)
	if sum == 0 {
		sum = 0xffff // 0 means no checksum (RFC 768)
	}
	binary.BigEndian.PutUint16(udp[6:], sum)
	return b
}

// userPayload is what a UDP packet without IP options or extension headers carries; ok is false for anything else.
func userPayload(b []byte) (payload []byte, ok bool) {
	switch {
	case len(b) >= ipv4HeaderLen+udpHeaderLen && b[0] == 0x45 && b[9] == protocolUDP:
		return b[ipv4HeaderLen+udpHeaderLen:], true
	case len(b) >= ipv6HeaderLen+udpHeaderLen && b[0]>>4 == 6 && b[6] == protocolUDP:
		return b[ipv6HeaderLen+udpHeaderLen:], true
	}
	return nil, false
}

// checksum is the Internet checksum (RFC 1071) of parts that follow each other; all but the last have an even length.
func checksum(parts ...[]byte) uint16 {
	sum := uint32(0)
	for _, b := range parts {
		for i := 0; i < len(b); i += 2 {
			sum += uint32(b[i]) << 8
			if i+1 < len(b) {
				sum += uint32(b[i+1])
			}
		}
	}
	for sum > 0xffff {
		sum = sum>>16 + sum&0xffff
	}
	return ^uint16(sum)
}
