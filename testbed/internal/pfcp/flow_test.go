package pfcp

import (
	"net/netip"
	"testing"
)

func TestParseFlow(t *testing.T) {
	type packet struct {
		protocol                  uint8
		network, terminal         string
		networkPort, terminalPort uint16
		hasPorts, want            bool
	}
	for _, test := range []struct {
		text    string
		any     bool
		packets []packet
	}{
		{"permit out ip from any to assigned", true, []packet{{17, "1.2.3.4", "10.60.0.1", 1, 2, true, true}}},
		{"permit out ip from any to any", true, nil},
		{"permit out 17 from 10.0.0.0/8 53 to assigned", false, []packet{
			{17, "10.1.2.3", "10.60.0.1", 53, 9, true, true},
			{6, "10.1.2.3", "10.60.0.1", 53, 9, true, false},
			{17, "11.1.2.3", "10.60.0.1", 53, 9, true, false},
			{17, "10.1.2.3", "10.60.0.1", 54, 9, true, false},
			{17, "10.1.2.3", "10.60.0.1", 0, 0, false, false}, // a later fragment has no ports to compare
		}},
		{"permit out 6 from 192.0.2.1 80,8000-8080 to 10.60.0.0/24 1024-65535", false, []packet{
			{6, "192.0.2.1", "10.60.0.7", 8080, 1024, true, true},
			{6, "192.0.2.1", "10.60.0.7", 81, 1024, true, false},
			{6, "192.0.2.1", "10.60.0.7", 80, 1023, true, false},
			{6, "192.0.2.1", "10.61.0.7", 80, 1024, true, false},
			{6, "192.0.2.2", "10.60.0.7", 80, 1024, true, false},
		}},
		{"permit out 58 from ff02::2/128 to assigned", false, []packet{ // as Open5GS asks for router solicitations
			{58, "ff02::2", "fe80::1", 0, 0, false, true},
			{58, "ff02::1", "fe80::1", 0, 0, false, false},
			{58, "10.0.0.1", "10.60.0.1", 0, 0, false, false},
		}},
	} {
		flow, err := ParseFlow(test.text)
		if err != nil {
			t.Errorf("%q: %v", test.text, err)
			continue
		}
		if flow.Any() != test.any {
			t.Errorf("%q: Any() is %v", test.text, flow.Any())
		}
		for _, p := range test.packets {
			got := flow.Match(p.protocol, netip.MustParseAddr(p.network), netip.MustParseAddr(p.terminal),
				p.networkPort, p.terminalPort, p.hasPorts)
			if got != p.want {
				t.Errorf("%q: %+v: got %v", test.text, p, got)
			}
		}
	}
}

func TestParseFlowRefuses(t *testing.T) {
	for _, text := range []string{
		"", "permit", "deny out ip from any to assigned", "permit in ip from any to assigned",
		"permit out ip from !10.0.0.0/8 to assigned", "permit out 256 from any to assigned", "permit out udp from any to any",
		"permit out ip from any to", "permit out ip from any 53 assigned to", "permit out ip from 10.0.0.0/33 to any",
		"permit out 17 from any 70000 to any", "permit out 17 from any 9-8 to any", "permit out 17 from any 1, to any",
		"permit out 6 from any to any established", "permit out ip from fe80::1%eth0 to any",
	} {
		if flow, err := ParseFlow(text); err == nil {
			t.Errorf("%q was accepted as %+v", text, flow)
		}
	}
}

func FuzzParseFlow(f *testing.F) {
	f.Add("permit out ip from any to assigned")
	f.Add("permit out 17 from 10.0.0.0/8 53,60-70 to 2001:db8::/32 1-2")
	f.Fuzz(func(t *testing.T, text string) {
		flow, err := ParseFlow(text)
		if err != nil {
			return
		}
		flow.Match(17, netip.MustParseAddr("10.1.1.1"), netip.MustParseAddr("2001:db8::1"), 53, 1, true)
		for _, r := range append(flow.FromPorts, flow.ToPorts...) {
			if r.Low > r.High {
				t.Fatalf("%q: ports %v", text, r)
			}
		}
	})
}
