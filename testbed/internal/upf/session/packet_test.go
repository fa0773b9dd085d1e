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
		if !ok || p.Src.netip().String() != test.src || p.Dst.netip().String() != test.dst {
			t.Errorf("%s: got %s > %s, %v", test.name, p.Src.netip(), p.Dst.netip(), ok)
		}
		if got := AddressOf(netip.MustParseAddr(test.src)); got != p.Src {
			t.Errorf("%s: AddressOf gives %x, the packet %x", test.name, got, p.Src)
		}
		if got, want := p.transport(), (transport{17, 5000, 6000, true}); got != want {
			t.Errorf("%s: transport %+v, want %+v", test.name, got, want)
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

func TestTransportOfFragments(t *testing.T) {
	later := "45000020" + "00000001" + udp4[16:]
	p, _ := ParsePacket(octets(t, later))
	if got := p.transport(); got.hasPorts || got.protocol != 17 {
		t.Errorf("a later fragment: %+v", got)
	}
	fragment6 := "60000000" + "000c2c40" + "20010db8006000010000000000000001" + "20010db8010300000000000000000002" +
		"11000008" + "00000001" + "01020304"
	p, _ = ParsePacket(octets(t, fragment6))
	if got := p.transport(); got.hasPorts || got.protocol != 17 {
		t.Errorf("a later IPv6 fragment: %+v", got)
	}
}

// FuzzParsePacket holds that nothing a terminal sends makes the walk to the ports leave the packet.
func FuzzParsePacket(f *testing.F) {
	for _, text := range []string{udp4, udp6} {
		b, _ := hex.DecodeString(text)
		f.Add(b)
	}
	f.Fuzz(func(_ *testing.T, b []byte) {
		if p, ok := ParsePacket(b); ok {
			p.transport()
		}
	})
}
