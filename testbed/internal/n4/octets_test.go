package n4

import (
	"bytes"
	"encoding/hex"
	"net/netip"
	"testing"

	"github.com/wmnsk/go-pfcp/ie"
	"github.com/wmnsk/go-pfcp/message"
)

func octets(t *testing.T, text string) []byte {
	t.Helper()
	b, err := hex.DecodeString(text)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// What a modification says of gates, rates and usage, octet by octet from the figures of TS 29.244: IE type and length
// in two octets each (clause 8.1.1), then what the comment's clause says.
func TestModificationsAsTheSpecificationWritesThem(t *testing.T) {
	yes, rate, none := true, 1.0, 0.0
	const (
		qerID    = "006d" + "0004" + "00000001"                  // QER ID, 8.2.75
		qfi      = "007c" + "0001" + "09"                        // QFI, 8.2.89
		upClosed = "0019" + "0001" + "04"                        // Gate Status, 8.2.7: UL Gate in bits 4 and 3
		dnClosed = "0019" + "0001" + "01"                        // DL Gate in bits 2 and 1
		open     = "0019" + "0001" + "00"                        //
		upOnly   = "001a" + "000a" + "00000003e8" + "00ee6b2800" // MBR, 8.2.8: UL in octets 5 to 9, kbit/s
		nobody   = "001a" + "000a" + "00ee6b2800" + "00ee6b2800" // no limit is a limit beyond any link
	)
	limited := newRules(testSpec())
	limited.MBRUplinkMbps = 1
	for name, test := range map[string]struct {
		before rules
		change Change
		want   string
	}{
		"closing uplink":   {newRules(testSpec()), Change{CloseUplink: &yes}, "000e" + "0012" + qerID + upClosed + qfi},
		"closing downlink": {newRules(testSpec()), Change{CloseDownlink: &yes}, "000e" + "0012" + qerID + dnClosed + qfi},
		"limiting uplink":  {newRules(testSpec()), Change{MBRUplinkMbps: &rate}, "000e" + "0020" + qerID + open + upOnly + qfi},
		// Without MBR in it the UPF keeps the old limit (table 7.5.4.5-1).
		"lifting": {limited, Change{MBRUplinkMbps: &none, MBRDownlinkMbps: &none}, "000e" + "0020" + qerID + open + nobody + qfi},
		// Query URR, table 7.5.4.10-1, with a URR ID, 8.2.54
		"querying": {newRules(testSpec()), Change{QueryURR: true}, "004d" + "0008" + "0051" + "0004" + "00000001"},
	} {
		after, err := test.before.with(test.change)
		if err != nil {
			t.Fatal(err)
		}
		var got []byte
		for _, part := range after.change(&test.before, test.change) {
			b, err := part.Marshal()
			if err != nil {
				t.Fatal(err)
			}
			got = append(got, b...)
		}
		if !bytes.Equal(got, octets(t, test.want)) {
			t.Errorf("%s:\n got %x\nwant %s", name, got, test.want)
		}
	}
}

// Usage Reports in a Session Modification Response (type 78, table 7.5.5.2-1), written by hand. Which volumes there are
// is what the flags in octet 5 say (clause 8.2.44).
func TestUsageReportsAsTheSpecificationWritesThem(t *testing.T) {
	const (
		urr     = "0051" + "0004" + "00000001" // URR ID
		number  = "0068" + "0004" + "00000007" // UR-SEQN, 8.2.71
		trigger = "003f" + "0003" + "800000"   // Usage Report Trigger, 8.2.41: IMMER
		three   = "0042" + "0019" + "07" + "0000000000000bb8" + "00000000000007d0" + "00000000000003e8"
		total   = "0042" + "0009" + "01" + "0000000000000bb8"
		cut     = "0042" + "0009" + "07" + "0000000000000bb8" // flags promise more than there is
		packets = "0042" + "0011" + "09" + "0000000000000bb8" + "0000000000000014"
	)
	for name, test := range map[string]struct {
		body string
		want Usage
	}{
		"three volumes":     {urr + number + trigger + three, Usage{URR: 1, Sequence: 7, TotalBytes: 3000, UplinkBytes: 2000, DownlinkBytes: 1000}},
		"the total alone":   {urr + number + trigger + total, Usage{URR: 1, Sequence: 7, TotalBytes: 3000}},
		"packets as well":   {urr + number + trigger + packets, Usage{URR: 1, Sequence: 7, TotalBytes: 3000, TotalPackets: 20}},
		"shorter than said": {urr + number + trigger + cut, Usage{URR: 1, Sequence: 7}},
		"nothing":           {"", Usage{}},
	} {
		body := octets(t, test.body)
		encoded := append([]byte{0, 78, 0, byte(len(body))}, body...)
		report, err := ie.Parse(encoded)
		if err != nil {
			t.Fatal(err)
		}
		if got := readUsage([]*ie.IE{report}); len(got) != 1 || got[0] != test.want {
			t.Errorf("%s: %+v, want %+v", name, got, test.want)
		}
	}
}

func TestTheStateHasTheTunnelThatTheUPFChose(t *testing.T) {
	stub := newStub(t)
	endpoint, _ := newEndpoint(t, nil)
	peer := newPeer(t, endpoint, stub)
	if _, err := peer.Associate(ctx); err != nil {
		t.Fatal(err)
	}
	spec := testSpec()
	spec.TEID = 0
	if _, err := peer.Establish(ctx, spec); err != nil {
		t.Fatal(err)
	}
	closed := true
	if _, err := peer.Modify(ctx, "a", Change{CloseUplink: &closed}); err != nil {
		t.Fatal(err)
	}
	state, err := peer.State("a")
	if err != nil || state.TEID != 0xabc || state.N3 != netip.MustParseAddr("10.9.9.9") || !state.CloseUplink || state.CloseDownlink {
		t.Errorf("%+v, %v", state, err)
	}
	asked := stub.received(message.MsgTypeSessionModificationRequest)
	if len(asked) != 1 {
		t.Errorf("%d modifications", len(asked))
	}
	if _, err := peer.State("b"); err == nil {
		t.Error("a session that is not there has a state")
	}
}

// A UPF's requests may come from any port (clause 4.2.2), and its features may change (clause 6.2.7.3).
func TestRequestsFromAnotherPortOfTheUPF(t *testing.T) {
	stub := newStub(t)
	endpoint, _ := newEndpoint(t, nil)
	peer := newPeer(t, endpoint, stub)
	if _, err := peer.Associate(ctx); err != nil {
		t.Fatal(err)
	}
	elsewhere := netip.AddrPortFrom(stub.address().Addr(), 1)
	update := message.NewAssociationUpdateRequest(1, ie.NewNodeID("127.0.0.1", "", ""), ie.NewUPFunctionFeatures(0, 0))
	causeOf := func() uint8 {
		cause, err := endpoint.reply(update, elsewhere).(*message.AssociationUpdateResponse).Cause.Cause()
		if err != nil {
			t.Fatal(err)
		}
		return cause
	}
	if cause := causeOf(); cause != ie.CauseRequestAccepted {
		t.Errorf("cause %d", cause)
	}
	spec := testSpec()
	spec.TEID = 0
	if _, err := peer.Establish(ctx, spec); err == nil {
		t.Error("a UPF that no longer chooses TEIDs was asked for one")
	}
	if _, err := endpoint.Peer(netip.AddrPortFrom(elsewhere.Addr(), 2)); err != nil { // a second UPF at the address
		t.Fatal(err)
	}
	if cause := causeOf(); cause != ie.CauseNoEstablishedPFCPAssociation {
		t.Errorf("cause %d for one of two UPFs", cause)
	}
}
