package verify

import (
	"encoding/binary"
	"net/netip"

	"slicepilot/userplane/internal/inet"
)

const (
	// markLen is what a payload begins with: the rig's number, the volley's and the packet's.
	markLen = 16
	// minSize is the smallest packet, from its IP header on, in either family.
	minSize = inet.IPv6HeaderLen + inet.UDPHeaderLen + markLen
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
		return inet.IPv4HeaderLen + inet.UDPHeaderLen
	}
	return inet.IPv6HeaderLen + inet.UDPHeaderLen
}

// userPacket is a terminal's UDP packet of size octets, from its IP header on.
func userPacket(from, to netip.AddrPort, size int, m mark) []byte {
	b := make([]byte, size)
	udp := b[headerLen(from.Addr())-inet.UDPHeaderLen:]
	if from.Addr().Is4() {
		const dontFragment = 0x40
		b[0], b[6], b[8], b[9] = 0x45, dontFragment, inet.HopLimit, inet.ProtocolUDP
		binary.BigEndian.PutUint16(b[2:], uint16(size))
		copy(b[12:], from.Addr().AsSlice())
		copy(b[16:], to.Addr().AsSlice())
		binary.BigEndian.PutUint16(b[10:], inet.Fold(inet.Sum16(b[:inet.IPv4HeaderLen])))
	} else {
		b[0], b[6], b[7] = 0x60, inet.ProtocolUDP, inet.HopLimit
		binary.BigEndian.PutUint16(b[4:], uint16(len(udp)))
		copy(b[8:], from.Addr().AsSlice())
		copy(b[24:], to.Addr().AsSlice())
	}
	binary.BigEndian.PutUint16(udp, from.Port())
	binary.BigEndian.PutUint16(udp[2:], to.Port())
	binary.BigEndian.PutUint16(udp[4:], uint16(len(udp)))
	m.put(udp[inet.UDPHeaderLen:])
	pseudo := inet.Sum16(from.Addr().AsSlice()) + inet.Sum16(to.Addr().AsSlice()) + inet.ProtocolUDP + uint32(len(udp))
	binary.BigEndian.PutUint16(udp[6:], inet.FoldUDP(pseudo+inet.Sum16(udp)))
	return b
}

// userPayload is what a UDP packet without IP options or extension headers carries; ok is false for anything else.
func userPayload(b []byte) (payload []byte, ok bool) {
	switch {
	case len(b) >= inet.IPv4HeaderLen+inet.UDPHeaderLen && b[0] == 0x45 && b[9] == inet.ProtocolUDP:
		return b[inet.IPv4HeaderLen+inet.UDPHeaderLen:], true
	case len(b) >= inet.IPv6HeaderLen+inet.UDPHeaderLen && b[0]>>4 == 6 && b[6] == inet.ProtocolUDP:
		return b[inet.IPv6HeaderLen+inet.UDPHeaderLen:], true
	}
	return nil, false
}
