package session

import (
	"encoding/hex"
	"net/netip"
	"testing"
)

func octets(t *testing.T, text string) []byte {
	t.Helper()
	b, err := hex.DecodeString(text)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

const (
	udp4 = "45000020" + "00004000" + "40110000" + "0a3c0001" + "0a670002" + "1388" + "1770" + "000c0000" + "01020304"
	// A UDP packet over IPv6 with a hop-by-hop options header.
	udp6 = "60000000" + "00140040" + "20010db8006000010000000000000001" + "20010db8010300000000000000000002" +
		"1100010400000000" + "1388" + "1770" + "000c0000" + "01020304"
)

func TestParsePacket(t *testing.T) {
	for _, test := range []struct {
		name, packet, src, dst string
	}{
		{"IPv4", udp4, "10.60.0.1", "10.103.0.2"},
		{"IPv6", udp6, "2001:db8:60:1::1", "2001:db8:103::2"},
	} {
		p, ok := ParsePacket(octets(t, test.packet))
		src, dst := AddressOf(netip.MustParseAddr(test.src)), AddressOf(netip.MustParseAddr(test.dst))
		if !ok || p.Src != src || p.Dst != dst {
			t.Errorf("%s: got %x > %x, %v, want %x > %x", test.name, p.Src, p.Dst, ok, src, dst)
		}
	}
	for name, packet := range map[string]string{
		"empty": "", "19 octets": udp4[:38], "version 5": "55" + udp4[2:], "longer than it is": "45000021" + udp4[8:],
		"shorter than its header": "45000013" + udp4[8:], "IPv6 header cut": udp6[:70], "IPv6 payload cut": udp6[:len(udp6)-2],
	} {
		if p, ok := ParsePacket(octets(t, packet)); ok {
			t.Errorf("%s: accepted as %+v", name, p)
		}
	}
}

// FuzzParsePacket holds that nothing a terminal sends makes reading its addresses leave the packet.
func FuzzParsePacket(f *testing.F) {
	for _, text := range []string{udp4, udp6} {
		b, _ := hex.DecodeString(text)
		f.Add(b)
	}
	f.Fuzz(func(_ *testing.T, b []byte) { ParsePacket(b) })
}
