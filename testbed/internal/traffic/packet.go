package traffic

import (
	"encoding/binary"

	"slicepilot/userplane/internal/gtpu"
	"slicepilot/userplane/internal/inet"
)

// template builds a flow's packets: GTP-U, inner IP, inner UDP, marker, zeros. The zeros are what makes a checksum cost
// a few additions, whatever the packet's length.
type template struct {
	prefix   []byte // GTP-U header, inner headers and the marker, with varying fields zero
	gtpLen   int    // length of the GTP-U header
	ipv6     bool
	ipSum    uint32 // of the constant parts of the IPv4 header
	udpSum   uint32 // of the constant parts of pseudo-header, UDP header and marker
	sequence uint64
	marker   Marker
}

func newTemplate(p path, flow uint32, run uint16) *template {
	t := &template{ipv6: p.ue.Is6(), marker: Marker{Run: run, Flow: flow}}
	if p.qfi >= 0 {
		t.prefix = gtpu.AppendGPDU(nil, p.teid, gtpu.PDUTypeUplink, uint8(p.qfi), 0)
	} else {
		t.prefix = gtpu.AppendPlainGPDU(nil, p.teid, 0)
	}
	t.gtpLen = len(t.prefix)
	ip := make([]byte, p.innerHeaderLen()+MarkerLen)
	udp := ip[p.innerHeaderLen()-inet.UDPHeaderLen:]
	if t.ipv6 {
		ip[0], ip[6], ip[7] = 0x60, inet.ProtocolUDP, inet.HopLimit
		copy(ip[8:], p.ue.AsSlice())
		copy(ip[24:], p.dst.AsSlice())
	} else {
		const dontFragment = 0x40
		ip[0], ip[6], ip[8], ip[9] = 0x45, dontFragment, inet.HopLimit, inet.ProtocolUDP
		copy(ip[12:], p.ue.AsSlice())
		copy(ip[16:], p.dst.AsSlice())
		t.ipSum = inet.Sum16(ip[:inet.IPv4HeaderLen])
	}
	binary.BigEndian.PutUint16(udp, p.srcPort)
	binary.BigEndian.PutUint16(udp[2:], p.dstPort)
	t.marker.Put(udp[inet.UDPHeaderLen:])
	t.udpSum = inet.Sum16(p.ue.AsSlice()) + inet.Sum16(p.dst.AsSlice()) + inet.ProtocolUDP + inet.Sum16(udp)
	t.prefix = append(t.prefix, ip...)
	return t
}

// innerHeaderLen is the length of the inner IP and UDP headers.
func (t *template) innerHeaderLen() int { return len(t.prefix) - t.gtpLen - MarkerLen }

// maxPrefixLen is the longest prefix of any template.
const maxPrefixLen = gtpu.GPDULen + inet.IPv6HeaderLen + inet.UDPHeaderLen + MarkerLen

// build writes the next packet, of size octets from the inner IP header on, to b, and returns its length with the
// tunnel's header. b is one that only templates have written to.
func (t *template) build(b []byte, size int, sentNs int64) int {
	clear(b[copy(b, t.prefix):maxPrefixLen])
	binary.BigEndian.PutUint16(b[2:], binary.BigEndian.Uint16(t.prefix[2:])+uint16(size))
	ip := b[t.gtpLen:]
	headers := t.innerHeaderLen()
	udpLen := size - headers + inet.UDPHeaderLen
	if t.ipv6 {
		binary.BigEndian.PutUint16(ip[4:], uint16(udpLen))
	} else {
		binary.BigEndian.PutUint16(ip[2:], uint16(size))
		binary.BigEndian.PutUint16(ip[10:], inet.Fold(t.ipSum+uint32(size)))
	}
	udp := ip[headers-inet.UDPHeaderLen:]
	binary.BigEndian.PutUint16(udp[4:], uint16(udpLen))
	t.marker.Sequence, t.marker.SentNs = t.sequence, sentNs
	t.marker.putVarying(udp[inet.UDPHeaderLen:])
	t.sequence++
	// The UDP length is summed twice: in the pseudo-header and in the header.
	sum := inet.Fold(t.udpSum + 2*uint32(udpLen) + inet.Sum16(udp[inet.UDPHeaderLen+8:inet.UDPHeaderLen+MarkerLen]))
	if sum == 0 { // would say that there is no checksum (RFC 768)
		sum = 0xffff
	}
	binary.BigEndian.PutUint16(udp[6:], sum)
	return t.gtpLen + size
}

// MarkerLen is the length of a Marker in octets.
const MarkerLen = 24

const markerMagic = 0x5350

// Marker is what every inner packet's UDP payload starts with; the rest of the payload is zero.
//
//	0                   1                   2                   3
//	|         0x5350        |          run          |
//	|                     flow                      |
//	|                  sequence, 8 octets           |
//	|                  sent (ns), 8 octets          |
type Marker struct {
	Run      uint16 // differs from one run of the sender to the next
	Flow     uint32
	Sequence uint64 // 0, 1, ... within the run and the flow
	SentNs   int64  // CLOCK_MONOTONIC of the sender's machine when the packet was handed to the kernel
}

// Put writes the marker to the start of b, in network byte order.
func (m *Marker) Put(b []byte) {
	binary.BigEndian.PutUint16(b, markerMagic)
	binary.BigEndian.PutUint16(b[2:], m.Run)
	binary.BigEndian.PutUint32(b[4:], m.Flow)
	m.putVarying(b)
}

// putVarying writes what differs from one packet of a flow to the next.
func (m *Marker) putVarying(b []byte) {
	binary.BigEndian.PutUint64(b[8:], m.Sequence)
	binary.BigEndian.PutUint64(b[16:], uint64(m.SentNs))
}

// ParseMarker reads the marker at the start of b; ok is false where there is none.
func ParseMarker(b []byte) (m Marker, ok bool) {
	if len(b) < MarkerLen || binary.BigEndian.Uint16(b) != markerMagic {
		return m, false
	}
	return Marker{
		Run:      binary.BigEndian.Uint16(b[2:]),
		Flow:     binary.BigEndian.Uint32(b[4:]),
		Sequence: binary.BigEndian.Uint64(b[8:]),
		SentNs:   int64(binary.BigEndian.Uint64(b[16:])),
	}, true
}
