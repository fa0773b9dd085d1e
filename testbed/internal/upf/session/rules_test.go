package session

import (
	"net/netip"
	"testing"

	"github.com/wmnsk/go-pfcp/ie"

	"slicepilot/userplane/internal/pfcp"
)

var local = netip.MustParseAddr("10.100.0.2")

// exampleSpec is what an SMF sets up for a terminal with one QoS flow (QFI 9): uplink by F-TEID, downlink by address.
func exampleSpec() *Spec {
	spec := NewSpec()
	tunnel := &pfcp.LocalTunnel{TEID: 1, IPv4: local}
	ue4, ue6 := netip.MustParsePrefix("10.60.0.1/32"), netip.MustParsePrefix("2001:db8:60:1::/64")
	spec.PDRs[1] = pfcp.PDR{
		ID: 1, Precedence: 100, FAR: 1, QERs: []uint32{1},
		PDI: pfcp.PDI{Source: pfcp.Access, Tunnel: tunnel, UE4: ue4, UE6: ue6, QFIs: 1 << 9},
	}
	spec.PDRs[2] = pfcp.PDR{ID: 2, Precedence: 100, FAR: 2, QERs: []uint32{1}, PDI: pfcp.PDI{Source: pfcp.Core, UE4: ue4, UE6: ue6}}
	spec.FARs[1] = pfcp.FAR{ID: 1, Action: pfcp.ActionForward, HasParameters: true, Destination: pfcp.Core}
	spec.FARs[2] = pfcp.FAR{
		ID: 2, Action: pfcp.ActionForward, HasParameters: true, Destination: pfcp.Access,
		Peer: pfcp.Tunnel{TEID: 1001, Address: netip.MustParseAddr("10.100.0.1")},
	}
	spec.QERs[1] = pfcp.QER{ID: 1, QFI: 9}
	return spec
}

func compile(t *testing.T, spec *Spec) *Rules {
	t.Helper()
	rules, reject := spec.Compile(local)
	if reject != nil {
		t.Fatal(reject)
	}
	return rules
}

func packet(t *testing.T, text string) *Packet {
	t.Helper()
	p, ok := ParsePacket(octets(t, text))
	if !ok {
		t.Fatal("malformed")
	}
	return &p
}

func TestMatch(t *testing.T) {
	rules := compile(t, exampleSpec())
	up4, up6 := packet(t, udp4), packet(t, udp6)
	spoofed := packet(t, "45000020"+"00004000"+"40110000"+"0a3c0002"+udp4[32:])
	otherPrefix := packet(t, udp6[:16]+"20010db800600002"+udp6[32:])
	for _, test := range []struct {
		name string
		got  *PDR
		want uint16
	}{
		{"uplink IPv4", rules.MatchTunnel(1, 9, up4), 1},
		{"uplink IPv6, any address of the prefix", rules.MatchTunnel(1, 9, up6), 1},
		{"another TEID", rules.MatchTunnel(2, 9, up4), 0},
		{"another QFI", rules.MatchTunnel(1, 8, up4), 0},
		{"no QFI", rules.MatchTunnel(1, -1, up4), 0},
		{"somebody else's address", rules.MatchTunnel(1, 9, spoofed), 0},
		{"somebody else's prefix", rules.MatchTunnel(1, 9, otherPrefix), 0},
		{"downlink", rules.MatchPlain(reversed(up4)), 2},
		{"downlink IPv6", rules.MatchPlain(reversed(up6)), 2},
		{"downlink to nobody", rules.MatchPlain(up4), 0},
	} {
		id := uint16(0)
		if test.got != nil {
			id = test.got.ID
		}
		if id != test.want {
			t.Errorf("%s: PDR %d, want %d", test.name, id, test.want)
		}
	}
}

func reversed(p *Packet) *Packet { return &Packet{Data: p.Data, Src: p.Dst, Dst: p.Src} }

func TestPrecedenceAndFilters(t *testing.T) {
	spec := exampleSpec()
	video, err := pfcp.ParseFlow("permit out 17 from 10.103.0.0/16 6000 to assigned 5000")
	if err != nil {
		t.Fatal(err)
	}
	voice, _ := pfcp.ParseFlow("permit out 17 from 10.104.0.0/16 to assigned")
	first := spec.PDRs[1]
	first.ID, first.Precedence = 3, 10
	first.PDI.Filters = []pfcp.Filter{{Flow: &voice}, {Flow: &video, ID: 77, HasID: true}}
	spec.PDRs[3] = first
	second := spec.PDRs[2] // the downlink refers to the same filter by its ID
	second.ID, second.Precedence = 4, 10
	second.PDI.Filters = []pfcp.Filter{{ID: 77, HasID: true}}
	spec.PDRs[4] = second
	rules := compile(t, spec)
	up := packet(t, udp4)
	if got := rules.MatchTunnel(1, 9, up); got.ID != 3 {
		t.Errorf("uplink: PDR %d, want 3", got.ID)
	}
	// The addresses of Packet say which way it goes; ports are read from the data, so a real answer is needed.
	down := packet(t, "45000020"+"00004000"+"40110000"+"0a670002"+"0a3c0001"+"1770"+"1388"+"000c0000"+"01020304")
	if got := rules.MatchPlain(down); got.ID != 4 {
		t.Errorf("downlink: PDR %d, want 4", got.ID)
	}
	otherPort := packet(t, udp4[:44]+"1771"+udp4[48:])
	if got := rules.MatchTunnel(1, 9, otherPort); got.ID != 1 {
		t.Errorf("another port: PDR %d, want 1", got.ID)
	}
}

func TestCompileRefuses(t *testing.T) {
	for name, test := range map[string]struct {
		change    func(*Spec)
		kind      uint8
		offending uint16
	}{
		"unknown FAR": {func(s *Spec) { delete(s.FARs, 2) }, ie.RuleIDTypePDR, ie.FARID},
		"unknown QER": {func(s *Spec) { delete(s.QERs, 1) }, ie.RuleIDTypePDR, ie.QERID},
		"nothing to detect by": {
			func(s *Spec) { s.PDRs[2] = pfcp.PDR{ID: 2, FAR: 2, PDI: pfcp.PDI{Source: pfcp.Core}} }, ie.RuleIDTypePDR, ie.UEIPAddress,
		},
		"unknown filter": {func(s *Spec) {
			pdr := s.PDRs[2]
			pdr.PDI.Filters = []pfcp.Filter{{ID: 4, HasID: true}}
			s.PDRs[2] = pdr
		}, ie.RuleIDTypePDR, ie.SDFFilter},
		"peer of the other family": {func(s *Spec) {
			far := s.FARs[2]
			far.Peer.Address = netip.MustParseAddr("2001:db8::1")
			s.FARs[2] = far
		}, ie.RuleIDTypeFAR, ie.OuterHeaderCreation},
	} {
		spec := exampleSpec()
		test.change(spec)
		_, reject := spec.Compile(local)
		if reject == nil || reject.Cause != ie.CauseRuleCreationModificationFailure || reject.Offending != test.offending ||
			reject.Rule == nil || reject.Rule.Kind != test.kind {
			t.Errorf("%s: %v", name, reject)
		}
	}
}

func TestKeys(t *testing.T) {
	rules := compile(t, exampleSpec())
	keys := rules.Keys()
	_, teid := keys.TEIDs[1]
	_, ue4 := keys.Addresses[AddressOf(netip.MustParseAddr("10.60.0.1"))]
	_, ue6 := keys.Addresses[AddressOf(netip.MustParseAddr("2001:db8:60:1::"))]
	if !teid || !ue4 || !ue6 || len(keys.TEIDs) != 1 || len(keys.Addresses) != 2 {
		t.Errorf("keys %+v", keys)
	}
}
