package n4

import (
	"net"
	"net/netip"
	"strings"
	"testing"
)

func newLoopback() netip.AddrPort { return netip.MustParseAddrPort("127.0.0.1:0") }

// newDiscard is an address where datagrams arrive and nobody reads them.
func newDiscard(tb testing.TB) netip.AddrPort {
	tb.Helper()
	conn, err := net.ListenUDP("udp4", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)})
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { conn.Close() })
	return conn.LocalAddr().(*net.UDPAddr).AddrPort()
}

func TestValidateNamesTheField(t *testing.T) {
	if spec := testSpec(); spec.Validate() != nil {
		t.Fatalf("a good specification: %v", spec.Validate())
	}
	for field, spoil := range map[string]func(*SessionSpec){
		"session":       func(s *SessionSpec) { s.Name = "" },
		"ue":            func(s *SessionSpec) { s.UE = netip.Addr{} },
		"qfi":           func(s *SessionSpec) { s.QFI = 64 },
		"n3":            func(s *SessionSpec) { s.N3 = netip.Addr{} },
		"gnb, gnb_teid": func(s *SessionSpec) { s.GNBTEID = 0 },
		"sd":            func(s *SessionSpec) { s.SST = nil },
		"dnn":           func(s *SessionSpec) { s.DNN = "a..b" },
		"mbr":           func(s *SessionSpec) { s.MBRUplinkMbps = -1 },
	} {
		spec := testSpec()
		spoil(&spec)
		if err := spec.Validate(); err == nil || !strings.HasPrefix(err.Error(), field+":") || !strings.Contains(err.Error(), "expected") {
			t.Errorf("%s: got %v", field, err)
		}
	}
}

func TestRatesRoundUpAndStayIndependent(t *testing.T) {
	rules := rules{SessionSpec: testSpec()}
	rules.MBRUplinkMbps = 0.0001
	for _, part := range rules.enforcement(true) {
		if up, err := part.MBRUL(); err == nil {
			down, _ := part.MBRDL()
			if up != 1 || down != unlimitedKbps {
				t.Errorf("MBR %d up, %d down: want 1 and no limit", up, down)
			}
			return
		}
	}
	t.Error("no MBR")
}
