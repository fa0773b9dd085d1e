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

func reversed(p *Packet) *Packet { return &Packet{Src: p.Dst, Dst: p.Src} }

func TestPrecedence(t *testing.T) {
	spec := exampleSpec()
	first := spec.PDRs[1]
	first.ID, first.Precedence = 3, 10
	spec.PDRs[3] = first
	up := packet(t, udp4)
	if got := compile(t, spec).MatchTunnel(1, 9, up); got.ID != 3 {
		t.Errorf("PDR %d, want 3", got.ID)
	}
	first.PDI.SomeFlows = true // which are not distinguished: the rule for all packets has them
	spec.PDRs[3] = first
	if got := compile(t, spec).MatchTunnel(1, 9, up); got.ID != 1 {
		t.Errorf("PDR %d, want 1", got.ID)
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
