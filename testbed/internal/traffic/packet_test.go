package traffic

import (
	"bytes"
	"encoding/binary"
	"net/netip"
	"testing"

	"slicepilot/userplane/internal/gtpu"
	"slicepilot/userplane/internal/inet"
)

var (
	path4 = path{
		teid: 0x01020304, qfi: 9, ue: netip.MustParseAddr("10.60.0.2"), dst: netip.MustParseAddr("10.103.0.2"),
		srcPort: 40000, dstPort: 6000,
	}
	path6 = path{
		teid: 7, qfi: 63, ue: netip.MustParseAddr("2001:db8::2"), dst: netip.MustParseAddr("2001:db8:ffff::1"),
		srcPort: 40001, dstPort: 6001,
	}
	plain4 = path{teid: 5, qfi: -1, ue: path4.ue, dst: path4.dst, srcPort: 1, dstPort: 2}
)

// internetChecksum is RFC 1071 the slow way.
func internetChecksum(parts ...[]byte) uint16 {
	var all []byte
	for _, part := range parts {
		all = append(all, part...)
	}
	if len(all)%2 == 1 {
		all = append(all, 0)
	}
	sum := uint64(0)
	for i := 0; i < len(all); i += 2 {
		sum += uint64(binary.BigEndian.Uint16(all[i:]))
	}
	for sum > 0xffff {
		sum = sum&0xffff + sum>>16
	}
	return ^uint16(sum)
}

// checkInner holds an inner packet to RFC 791, 8200 and 768 and returns its UDP payload.
func checkInner(t *testing.T, ip []byte, p path) []byte {
	t.Helper()
	udp, protocol := ip[inet.IPv4HeaderLen:], ip[9]
	if p.ue.Is6() {
		udp, protocol = ip[inet.IPv6HeaderLen:], ip[6]
		if ip[0]>>4 != 6 || int(binary.BigEndian.Uint16(ip[4:])) != len(udp) || ip[7] != inet.HopLimit {
			t.Fatalf("IPv6 header %x", ip[:inet.IPv6HeaderLen])
		}
	} else {
		if ip[0] != 0x45 || int(binary.BigEndian.Uint16(ip[2:])) != len(ip) || ip[6] != 0x40 || ip[8] != inet.HopLimit {
			t.Fatalf("IPv4 header %x of a packet of %d", ip[:inet.IPv4HeaderLen], len(ip))
		}
		if sum := internetChecksum(ip[:inet.IPv4HeaderLen]); sum != 0 {
			t.Fatalf("IPv4 header checksum is off by %#x", sum)
		}
	}
	src, dst := ip[len(ip)-len(udp)-2*len(p.ue.AsSlice()):], ip[len(ip)-len(udp)-len(p.ue.AsSlice()):]
	if !bytes.HasPrefix(src, p.ue.AsSlice()) || !bytes.HasPrefix(dst, p.dst.AsSlice()) || protocol != inet.ProtocolUDP {
		t.Fatalf("addresses or protocol: %x", ip[:len(ip)-len(udp)])
	}
	if binary.BigEndian.Uint16(udp) != p.srcPort || binary.BigEndian.Uint16(udp[2:]) != p.dstPort ||
		int(binary.BigEndian.Uint16(udp[4:])) != len(udp) {
		t.Fatalf("UDP header %x of %d", udp[:8], len(udp))
	}
	pseudo := binary.BigEndian.AppendUint32(nil, uint32(len(udp)))
	pseudo = append(pseudo, 0, inet.ProtocolUDP)
	if sum := internetChecksum(p.ue.AsSlice(), p.dst.AsSlice(), pseudo, udp); sum != 0 || binary.BigEndian.Uint16(udp[6:]) == 0 {
		t.Fatalf("UDP checksum %x is off by %#x", udp[6:8], sum)
	}
	return udp[inet.UDPHeaderLen:]
}

func TestPacketsAreWellFormed(t *testing.T) {
	// One buffer for all, as in a batch: what one template leaves must not show in another's packet.
	buffer := make([]byte, 9000)
	templates := map[*template]path{
		newTemplate(path4, 1, 77): path4, newTemplate(path6, 2, 78): path6,
		newTemplate(plain4, 3, 79): plain4,
	}
	for round := range uint64(300) {
		for template, p := range templates {
			low := p.innerHeaderLen() + MarkerLen
			size := low + int(round*37)%(8900-low)
			sentNs := int64(round) * 1234567891234
			n := template.build(buffer, size, sentNs)
			header, err := gtpu.Parse(buffer[:n])
			if err != nil || header.Type != gtpu.TypeGPDU || header.TEID != p.teid || header.QFI != p.qfi {
				t.Fatalf("%+v, %v", header, err)
			}
			if p.qfi >= 0 && header.PDUType != gtpu.PDUTypeUplink {
				t.Fatalf("PDU type %d, want uplink", header.PDUType)
			}
			inner := header.Payload(buffer[:n])
			if len(inner) != size {
				t.Fatalf("inner packet of %d octets, want %d", len(inner), size)
			}
			payload := checkInner(t, inner, p)
			marker, ok := ParseMarker(payload)
			if !ok || marker.Sequence != round || marker.SentNs != sentNs || marker.Run != template.marker.Run {
				t.Fatalf("marker %+v, %v", marker, ok)
			}
			if rest := bytes.TrimLeft(payload[MarkerLen:], "\x00"); len(rest) > 0 {
				t.Fatalf("payload has %x behind the marker", rest)
			}
			if id := binary.BigEndian.Uint16(inner[4:]); !p.ue.Is6() && id != 0 {
				t.Fatalf("identification %d in round %d", id, round)
			}
		}
	}
}
