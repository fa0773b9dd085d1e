package n4

import (
	"bytes"
	"math"
	"net"
	"net/netip"
	"testing"
	"time"

	"github.com/wmnsk/go-pfcp/ie"
	"github.com/wmnsk/go-pfcp/message"
)

// What users of other UPFs and SMFs have reported of messages between them (docs/reports.md).

// After a session's deletion its number comes again: in a late answer to a report (free5gc/free5gc#1059), in a repeated
// deletion (travelping/upg-vpp#125), and numbers that no session ever had (free5gc/free5gc#731).
func TestADeletedSessionIsAskedForAgain(t *testing.T) {
	s := newTestServer(t)
	associate(t, s)
	seid, _ := establish(t, s, 2, rules(s, 1)...)
	deletion := encoded(t, message.NewSessionDeletionRequest(0, 0, seid, 3, 0))
	first := s.handle(deletion, smf)
	if second := s.handle(deletion, smf); first == nil || !bytes.Equal(first, second) {
		t.Errorf("a repeated deletion was answered with %x, the first with %x", second, first)
	}
	for _, late := range []message.Message{
		message.NewSessionReportResponse(0, 0, seid, 1, 0, ie.NewCause(ie.CauseRequestAccepted)),
		message.NewSessionReportResponse(0, 0, 0, 2, 0, ie.NewCause(ie.CauseSessionContextNotFound)),
	} {
		if answer := s.handle(encoded(t, late), smf); answer != nil {
			t.Errorf("an answer was answered with %x", answer)
		}
	}
	for seq, unknown := range []uint64{seid, 0, math.MaxInt64, math.MaxUint64} {
		answer := exchange[*message.SessionDeletionResponse](t, s, message.NewSessionDeletionRequest(0, 0, unknown, uint32(10+seq), 0))
		checkCause(t, answer.Cause, ie.CauseSessionContextNotFound)
	}
	establish(t, s, 20, rules(s, 1)...)
	checkTables(t, s)
}

// A Create PDR without what it has to have is refused, and the next request is answered (free5gc/free5gc#802).
func TestRulesThatLackElementsAreRefusedOneByOne(t *testing.T) {
	s := newTestServer(t)
	associate(t, s)
	seid, _ := establish(t, s, 2, rules(s, 1)...)
	pdi := ie.NewPDI(ie.NewSourceInterface(ie.SrcInterfaceAccess))
	for seq, group := range []*ie.IE{
		ie.NewCreatePDR(), ie.NewCreatePDR(ie.NewPDRID(7)), ie.NewCreatePDR(ie.NewPDRID(7), ie.NewPrecedence(1)),
		ie.NewCreatePDR(ie.NewPDRID(7), pdi), ie.NewCreatePDR(ie.NewPrecedence(1), pdi),
		ie.NewCreatePDR(ie.NewPDRID(7), ie.NewPrecedence(1), ie.NewPDI()),
	} {
		request := message.NewSessionModificationRequest(0, 0, seid, uint32(10+seq), 0, group)
		answer := exchange[*message.SessionModificationResponse](t, s, request)
		if answer == nil {
			t.Fatalf("case %d was not answered", seq)
		}
		checkCause(t, answer.Cause, ie.CauseMandatoryIEMissing)
	}
	nothing := exchange[*message.SessionModificationResponse](t, s, message.NewSessionModificationRequest(0, 0, seid, 30, 0))
	checkCause(t, nothing.Cause, ie.CauseRequestAccepted) // open5gs/open5gs#4576: a change of nothing
	checkTables(t, s)
}

// A Recovery Time Stamp is when the UPF was started, whenever it is asked (edgecomllc/eupf#379).
func TestHeartbeatsHaveOneRecoveryTimeStamp(t *testing.T) {
	s := newTestServer(t)
	s.started = time.Now().Add(-time.Hour)
	for seq := range uint32(2) {
		request := message.NewHeartbeatRequest(seq, ie.NewRecoveryTimeStamp(time.Now()), nil)
		answer := exchange[*message.HeartbeatResponse](t, s, request)
		if stamp, err := answer.RecoveryTimeStamp.RecoveryTimeStamp(); err != nil || stamp.Unix() != s.started.Unix() {
			t.Errorf("Recovery Time Stamp %v, %v; want %v", stamp, err, s.started)
		}
	}
}

// What the control plane has chosen is not told as the UPF's choice (free5gc/go-upf#65).
func TestACreatedPDRHasWhatTheUPFHasChosenAlone(t *testing.T) {
	s := newTestServer(t)
	associate(t, s)
	_, given := establish(t, s, 2, rules(s, 1)...)
	if len(given.CreatedPDR) != 0 {
		t.Errorf("%d Created PDRs where nothing was to be chosen", len(given.CreatedPDR))
	}
	chosen := rules(s, 2)
	chosen[0] = ie.NewCreatePDR(ie.NewPDRID(1), ie.NewPrecedence(100), ie.NewPDI(
		ie.NewSourceInterface(ie.SrcInterfaceAccess), ie.NewFTEID(0x05, 0, nil, nil, 0),
		ie.NewUEIPAddress(0x02, "10.60.0.2", "", 0, 0)), ie.NewOuterHeaderRemoval(0, 0), ie.NewFARID(1), ie.NewQERID(1))
	_, answer := establish(t, s, 3, chosen...)
	if len(answer.CreatedPDR) != 1 {
		t.Fatalf("%d Created PDRs, want 1", len(answer.CreatedPDR))
	}
	if address, err := answer.CreatedPDR[0].UEIPAddress(); err == nil {
		t.Errorf("the answer has the UE's address %+v, which the request gave", address)
	}
}

// A PCC rule comes later as a PDR of its flow alone, without tunnel and address (edgecomllc/eupf#643): no packet could be
// found by it, so it is refused by its number, and the session is as it was.
func TestARuleWithoutTunnelAndAddressIsRefused(t *testing.T) {
	s := newTestServer(t)
	associate(t, s)
	seid, _ := establish(t, s, 2, rules(s, 1)...)
	before := s.sessions[seid].session.Rules()
	flow := ie.NewSDFFilter("permit out 17 from 172.17.0.23 5201 to assigned", "", "", "", 1)
	answer := exchange[*message.SessionModificationResponse](t, s, message.NewSessionModificationRequest(0, 0, seid, 3, 0,
		ie.NewUpdateFAR(ie.NewFARID(2), ie.NewApplyAction(1, 0)),
		ie.NewCreatePDR(ie.NewPDRID(5), ie.NewPrecedence(10), ie.NewPDI(ie.NewSourceInterface(ie.SrcInterfaceCore), flow),
			ie.NewFARID(2), ie.NewQERID(1))))
	checkCause(t, answer.Cause, ie.CauseRuleCreationModificationFailure)
	if id, err := answer.FailedRuleID.FailedRuleID(); err != nil || id != 5 {
		t.Errorf("failed rule %d, %v; want 5", id, err)
	}
	if s.sessions[seid].session.Rules() != before {
		t.Error("a refused modification changed the rules")
	}
	checkTables(t, s)
}

// An SMF may use several addresses; who it is says its Node ID (open5gs/open5gs#3431; TS 29.244, clause 5.8.1).
func TestAnSMFMaySpeakFromAnotherAddress(t *testing.T) {
	s := newTestServer(t)
	associate(t, s)
	elsewhere := netip.MustParseAddrPort("10.101.0.77:40000")
	octets := s.handle(encoded(t, establishment(2, 2, rules(s, 1)...)), elsewhere)
	m, err := message.Parse(octets)
	if err != nil {
		t.Fatal(err)
	}
	answer := m.(*message.SessionEstablishmentResponse)
	checkCause(t, answer.Cause, ie.CauseRequestAccepted)
	fseid, err := answer.UPFSEID.FSEID()
	if err != nil || !fseid.IPv4Address.Equal(net.IPv4(10, 101, 0, 2)) {
		t.Fatalf("UP F-SEID %+v, %v", fseid, err)
	}
	modification := message.NewSessionModificationRequest(0, 0, fseid.SEID, 3, 0, ie.NewUpdateFAR(ie.NewFARID(2), ie.NewApplyAction(1, 0)))
	m, err = message.Parse(s.handle(encoded(t, modification), elsewhere))
	if err != nil {
		t.Fatal(err)
	}
	checkCause(t, m.(*message.SessionModificationResponse).Cause, ie.CauseRequestAccepted)
	// Its sessions end with its association, wherever they came from.
	exchange[*message.AssociationSetupResponse](t, s, setup(9, time.Unix(1_700_000_100, 0)))
	if stats := s.Stats(); stats.Sessions != 0 {
		t.Errorf("%+v", stats)
	}
}
