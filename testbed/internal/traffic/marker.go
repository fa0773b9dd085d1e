package traffic

import "encoding/binary"

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
