package n4

import (
	"bytes"
	"encoding/binary"
	"io"
	"log"
	"math/rand/v2"
	"net"
	"net/netip"
	"os"
	"testing"
	"time"

	"github.com/wmnsk/go-pfcp/ie"
	"github.com/wmnsk/go-pfcp/message"
	"golang.org/x/sys/unix"

	"slicepilot/userplane/internal/pfcp"
	"slicepilot/userplane/internal/upf/datapath"
	"slicepilot/userplane/internal/upf/netio"
	"slicepilot/userplane/internal/upf/session"
)

var smf = netip.MustParseAddrPort("10.101.0.1:8805")

// newTestServer makes a server with a running data path, without its own threads: messages are handed to it.
func newTestServer(t testing.TB) *Server {
	t.Helper()
	host := netip.AddrFrom4([4]byte{127, byte(1 + os.Getpid()%200), byte(rand.IntN(256)), byte(1 + rand.IntN(254))})
	open := func() *netio.Socket {
		s, err := netio.Listen(netip.AddrPortFrom(host, 0), 0)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { s.Close() })
		return s
	}
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	n3 := open()
	plane, err := datapath.Start(datapath.Config{N3: n3, TUN: pair[0], TUNMTU: 1400})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		plane.Stop()
		unix.Close(pair[0])
		unix.Close(pair[1])
	})
	return newServer(Config{
		Socket: open(), NodeID: netip.MustParseAddr("10.101.0.2"), N3: host, MaxSessions: 3, PeerPort: pfcp.Port,
		Log: log.New(io.Discard, "", 0),
	}, plane)
}

func encoded(t testing.TB, m message.Message) []byte {
	t.Helper()
	b, err := pfcp.Encode(m)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// exchange hands a message to the server and decodes its answer; nil for none.
func exchange[T message.Message](t testing.TB, s *Server, m message.Message) T {
	t.Helper()
	answer := s.handle(encoded(t, m), smf)
	var none T
	if answer == nil {
		return none
	}
	decoded, err := message.Parse(answer)
	if err != nil {
		t.Fatalf("the answer %x cannot be read: %v", answer, err)
	}
	typed, ok := decoded.(T)
	if !ok {
		t.Fatalf("answered with %s", decoded.MessageTypeName())
	}
	if typed.Sequence() != m.Sequence() {
		t.Fatalf("answer %d to request %d", typed.Sequence(), m.Sequence())
	}
	return typed
}

func checkCause(t testing.TB, e *ie.IE, want uint8) {
	t.Helper()
	if e == nil {
		t.Fatal("no cause")
	}
	if got, err := e.Cause(); err != nil || got != want {
		t.Fatalf("cause %d, %v; want %d", got, err, want)
	}
}

func setup(seq uint32, started time.Time) *message.AssociationSetupRequest {
	return message.NewAssociationSetupRequest(seq, ie.NewNodeID("10.101.0.1", "", ""), ie.NewRecoveryTimeStamp(started))
}

func associate(t testing.TB, s *Server) {
	t.Helper()
	answer := exchange[*message.AssociationSetupResponse](t, s, setup(1, time.Unix(1_700_000_000, 0)))
	checkCause(t, answer.Cause, ie.CauseRequestAccepted)
}

// rules of one terminal. The i-th session has its own TEID and address.
func rules(s *Server, i byte) []*ie.IE {
	address := netip.AddrFrom4([4]byte{10, 60, 0, i}).String()
	return []*ie.IE{
		ie.NewCreatePDR(ie.NewPDRID(1), ie.NewPrecedence(100), ie.NewPDI(
			ie.NewSourceInterface(ie.SrcInterfaceAccess), ie.NewFTEID(0x01, uint32(i), s.config.N3.AsSlice(), nil, 0),
			ie.NewNetworkInstance("internet"), ie.NewUEIPAddress(0x02, address, "", 0, 0), ie.NewQFI(9)),
			ie.NewOuterHeaderRemoval(0, 0), ie.NewFARID(1), ie.NewQERID(1), ie.NewURRID(1)),
		ie.NewCreatePDR(ie.NewPDRID(2), ie.NewPrecedence(100), ie.NewPDI(
			ie.NewSourceInterface(ie.SrcInterfaceCore), ie.NewUEIPAddress(0x06, address, "", 0, 0)),
			ie.NewFARID(2), ie.NewQERID(1), ie.NewURRID(1)),
		ie.NewCreateFAR(ie.NewFARID(1), ie.NewApplyAction(2, 0), ie.NewForwardingParameters(ie.NewDestinationInterface(ie.DstInterfaceCore))),
		ie.NewCreateFAR(ie.NewFARID(2), ie.NewApplyAction(0x0c, 0), ie.NewBARID(1)),
		ie.NewCreateBAR(ie.NewBARID(1), ie.NewDownlinkDataNotificationDelay(0)),
		ie.NewCreateQER(ie.NewQERID(1), ie.NewGateStatus(0, 0), ie.NewMBR(1000, 1000), ie.NewQFI(9)),
		ie.NewCreateURR(ie.NewURRID(1), ie.NewMeasurementMethod(0, 1, 0), ie.NewReportingTriggers(0x02, 0, 0), ie.NewVolumeThreshold(1, 1000, 0, 0)),
	}
}

func establishment(seq uint32, cpSEID uint64, ies ...*ie.IE) *message.SessionEstablishmentRequest {
	head := []*ie.IE{ie.NewNodeID("10.101.0.1", "", ""), ie.NewFSEID(cpSEID, net.IPv4(10, 101, 0, 1), nil)}
	return message.NewSessionEstablishmentRequest(0, 0, 0, seq, 0, append(head, ies...)...)
}

func establish(t testing.TB, s *Server, seq uint32, ies ...*ie.IE) (uint64, *message.SessionEstablishmentResponse) {
	t.Helper()
	answer := exchange[*message.SessionEstablishmentResponse](t, s, establishment(seq, uint64(seq), ies...))
	checkCause(t, answer.Cause, ie.CauseRequestAccepted)
	if answer.SEID() != uint64(seq) {
		t.Errorf("the answer's header has SEID %d, want the CP function's %d", answer.SEID(), seq)
	}
	fseid, err := answer.UPFSEID.FSEID()
	if err != nil || fseid.SEID == 0 || !fseid.IPv4Address.Equal(net.IPv4(10, 101, 0, 2)) {
		t.Fatalf("UP F-SEID %+v, %v", fseid, err)
	}
	return fseid.SEID, answer
}

// checkTables holds that the data path finds exactly the sessions that exist, under exactly their keys.
func checkTables(t testing.TB, s *Server) {
	t.Helper()
	for _, r := range s.sessions {
		if s.associations[r.owner.nodeID] != r.owner {
			t.Fatalf("session %#x belongs to an association that is gone", r.session.SEID)
		}
		want := r.session.Rules().Keys()
		if len(want.TEIDs) != len(r.keys.TEIDs) || len(want.Addresses) != len(r.keys.Addresses) {
			t.Fatalf("session %#x has keys %+v and rules for %+v", r.session.SEID, r.keys, want)
		}
		for teid := range want.TEIDs {
			if s.plane.TEIDs.Get(teid) != r.session {
				t.Fatalf("TEID %#x does not lead to session %#x", teid, r.session.SEID)
			}
		}
		for address := range want.Addresses {
			if s.plane.Addresses.Get(address) != r.session {
				t.Fatalf("address %x does not lead to session %#x", address, r.session.SEID)
			}
		}
	}
}

func TestAssociation(t *testing.T) {
	s := newTestServer(t)
	answer := exchange[*message.AssociationSetupResponse](t, s, setup(1, time.Unix(1_700_000_000, 0)))
	checkCause(t, answer.Cause, ie.CauseRequestAccepted)
	if id, err := answer.NodeID.NodeID(); err != nil || id != "10.101.0.2" {
		t.Errorf("Node ID %q, %v", id, err)
	}
	if stamp, err := answer.RecoveryTimeStamp.RecoveryTimeStamp(); err != nil || stamp.Unix() != s.started.Unix() {
		t.Errorf("Recovery Time Stamp %v, %v", stamp, err)
	}
	if !answer.UPFunctionFeatures.HasFTUP() || answer.UPFunctionFeatures.HasEMPU() || answer.UPFunctionFeatures.HasUEIP() {
		t.Errorf("features %x", answer.UPFunctionFeatures.Payload)
	}
	update := exchange[*message.AssociationUpdateResponse](t, s, message.NewAssociationUpdateRequest(2, ie.NewNodeID("10.101.0.1", "", "")))
	checkCause(t, update.Cause, ie.CauseRequestAccepted)
	release := exchange[*message.AssociationReleaseResponse](t, s, message.NewAssociationReleaseRequest(3, ie.NewNodeID("10.101.0.1", "", "")))
	checkCause(t, release.Cause, ie.CauseRequestAccepted)
	release = exchange[*message.AssociationReleaseResponse](t, s, message.NewAssociationReleaseRequest(4, ie.NewNodeID("10.101.0.1", "", "")))
	checkCause(t, release.Cause, ie.CauseNoEstablishedPFCPAssociation)
}

func TestAssociationRefused(t *testing.T) {
	s := newTestServer(t)
	for name, test := range map[string]struct {
		ies   []*ie.IE
		cause uint8
	}{
		"no Node ID":             {[]*ie.IE{ie.NewRecoveryTimeStamp(time.Now())}, ie.CauseMandatoryIEMissing},
		"no Recovery Time Stamp": {[]*ie.IE{ie.NewNodeID("10.101.0.1", "", "")}, ie.CauseMandatoryIEMissing},
		"unknown kind of Node ID": {
			[]*ie.IE{ie.New(ie.NodeID, []byte{7, 1}), ie.NewRecoveryTimeStamp(time.Now())}, ie.CauseMandatoryIEIncorrect,
		},
	} {
		answer := exchange[*message.AssociationSetupResponse](t, s, message.NewAssociationSetupRequest(1, test.ies...))
		t.Log(name)
		checkCause(t, answer.Cause, test.cause)
	}
	if len(s.associations) != 0 {
		t.Error("an association was made all the same")
	}
}

func TestSessionsGoWithTheirAssociation(t *testing.T) {
	started := time.Unix(1_700_000_000, 0)
	for name, end := range map[string]func(*testing.T, *Server){
		"release": func(t *testing.T, s *Server) {
			exchange[*message.AssociationReleaseResponse](t, s, message.NewAssociationReleaseRequest(9, ie.NewNodeID("10.101.0.1", "", "")))
		},
		"set up anew": func(t *testing.T, s *Server) {
			exchange[*message.AssociationSetupResponse](t, s, setup(9, started.Add(time.Second)))
		},
		"restart seen by heartbeat": func(t *testing.T, s *Server) {
			exchange[*message.HeartbeatResponse](t, s, message.NewHeartbeatRequest(9, ie.NewRecoveryTimeStamp(started.Add(time.Second)), nil))
		},
	} {
		t.Run(name, func(t *testing.T) {
			s := newTestServer(t)
			associate(t, s)
			establish(t, s, 2, rules(s, 1)...)
			exchange[*message.HeartbeatResponse](t, s, message.NewHeartbeatRequest(8, ie.NewRecoveryTimeStamp(started), nil))
			if s.Stats().Sessions != 1 {
				t.Fatal("an ordinary heartbeat ended the session")
			}
			end(t, s)
			if s.Stats().Sessions != 0 || s.plane.TEIDs.Get(1) != nil ||
				s.plane.Addresses.Get(session.AddressOf(netip.MustParseAddr("10.60.0.1"))) != nil {
				t.Error("the session is still there")
			}
		})
	}
}

func TestEstablishmentRefused(t *testing.T) {
	s := newTestServer(t)
	refused := func(name string, m *message.SessionEstablishmentRequest, cause uint8, offending uint16) *message.SessionEstablishmentResponse {
		t.Helper()
		answer := exchange[*message.SessionEstablishmentResponse](t, s, m)
		t.Log(name)
		checkCause(t, answer.Cause, cause)
		if got := uint16(0); answer.OffendingIE != nil || offending != 0 {
			if answer.OffendingIE != nil {
				got, _ = answer.OffendingIE.OffendingIE()
			}
			if got != offending {
				t.Errorf("%s: offending IE %d, want %d", name, got, offending)
			}
		}
		if answer.NodeID == nil {
			t.Errorf("%s: no Node ID in the answer", name)
		}
		return answer
	}
	refused("no association", establishment(2, 1, rules(s, 1)...), ie.CauseNoEstablishedPFCPAssociation, 0)
	associate(t, s)
	refused("no PDR", establishment(3, 1, rules(s, 1)[2:]...), ie.CauseMandatoryIEMissing, ie.CreatePDR)
	refused("no FAR", establishment(4, 1, rules(s, 1)[:2]...), ie.CauseMandatoryIEMissing, ie.CreateFAR)
	refused("no F-SEID", message.NewSessionEstablishmentRequest(0, 0, 0, 5, 0,
		append(rules(s, 1), ie.NewNodeID("10.101.0.1", "", ""))...), ie.CauseMandatoryIEMissing, ie.FSEID)
	answer := refused("a rule twice", establishment(6, 1, append(rules(s, 1), rules(s, 1)[1])...), ie.CauseRuleCreationModificationFailure, ie.PDRID)
	if id, err := answer.FailedRuleID.FailedRuleID(); err != nil || id != 2 || answer.SEID() != 1 {
		t.Errorf("failed rule %d, %v; SEID %d", id, err, answer.SEID())
	}
	foreign := rules(s, 1)
	foreign[0] = ie.NewCreatePDR(ie.NewPDRID(1), ie.NewPrecedence(1), ie.NewPDI(ie.NewSourceInterface(0),
		ie.NewFTEID(1, 5, net.IPv4(192, 0, 2, 1), nil, 0)), ie.NewFARID(1))
	refused("somebody else's N3 address", establishment(7, 1, foreign...), ie.CauseRuleCreationModificationFailure, ie.FTEID)
	foreign[0] = ie.NewCreatePDR(ie.NewPDRID(1), ie.NewPrecedence(1), ie.NewPDI(ie.NewSourceInterface(0),
		ie.New(ie.FTEID, []byte{0x06})), ie.NewFARID(1))
	refused("CHOOSE of IPv6 only", establishment(8, 1, foreign...), ie.CauseInvalidFTEIDAllocationOption, ie.FTEID)
	establish(t, s, 9, rules(s, 1)...)
	refused("a TEID in use", establishment(10, 1, append(rules(s, 1)[:1:1], rules(s, 2)[1:]...)...),
		ie.CauseRuleCreationModificationFailure, ie.FTEID)
	refused("an address in use", establishment(11, 1, append(rules(s, 2)[:1:1], rules(s, 1)[1:]...)...),
		ie.CauseRuleCreationModificationFailure, ie.UEIPAddress)
	establish(t, s, 12, rules(s, 2)...)
	establish(t, s, 13, rules(s, 3)...)
	refused("too many sessions", establishment(14, 1, rules(s, 4)...), ie.CauseNoResourcesAvailable, 0)
	checkTables(t, s)
	if s.plane.TEIDs.Get(4) != nil || s.plane.TEIDs.Get(5) != nil {
		t.Error("a refused session left its TEID behind")
	}
}

func TestRepeatedRequestIsCarriedOutOnce(t *testing.T) {
	s := newTestServer(t)
	associate(t, s)
	request := encoded(t, establishment(2, 1, rules(s, 1)...))
	first := s.handle(request, smf)
	second := s.handle(request, smf)
	if first == nil || !bytes.Equal(first, second) {
		t.Errorf("first answer %x\nsecond       %x", first, second)
	}
	if stats := s.Stats(); stats.Sessions != 1 || stats.Repeated != 1 {
		t.Errorf("%+v", stats)
	}
	// A peer that restarts within the second and counts from the beginning is a new peer.
	associate(t, s)
	if stats := s.Stats(); stats.Sessions != 1 || stats.Repeated != 2 {
		t.Errorf("an association request sent again: %+v", stats)
	}
	exchange[*message.AssociationSetupResponse](t, s, setup(1, time.Unix(1_700_000_100, 0)))
	third := s.handle(request, smf)
	if bytes.Equal(first, third) || s.Stats().Sessions != 1 {
		t.Error("a restarted peer got the answer to its former life's request")
	}
}

func TestModificationIsAllOrNothing(t *testing.T) {
	s := newTestServer(t)
	associate(t, s)
	seid, _ := establish(t, s, 2, rules(s, 1)...)
	before := s.sessions[seid].session.Rules()
	modify := func(seq uint32, ies ...*ie.IE) *message.SessionModificationResponse {
		t.Helper()
		return exchange[*message.SessionModificationResponse](t, s, message.NewSessionModificationRequest(0, 0, seid, seq, 0, ies...))
	}
	good := ie.NewUpdateFAR(ie.NewFARID(2), ie.NewApplyAction(1, 0))
	for seq, test := range []struct {
		bad  *ie.IE
		kind uint8
		id   uint32
	}{
		{ie.NewUpdatePDR(ie.NewPDRID(9)), ie.RuleIDTypePDR, 9}, {ie.NewUpdateFAR(ie.NewFARID(9)), ie.RuleIDTypeFAR, 9},
		{ie.NewUpdateQER(ie.NewQERID(9)), ie.RuleIDTypeQER, 9},
		{ie.NewRemovePDR(ie.NewPDRID(9)), ie.RuleIDTypePDR, 9}, {ie.NewRemoveFAR(ie.NewFARID(9)), ie.RuleIDTypeFAR, 9},
		{ie.NewRemoveQER(ie.NewQERID(9)), ie.RuleIDTypeQER, 9},
		{ie.NewUpdatePDR(ie.NewPDRID(1), ie.NewQERID(9)), ie.RuleIDTypePDR, 1},
		{ie.NewCreatePDR(ie.NewPDRID(1), ie.NewPrecedence(1), ie.NewPDI(ie.NewSourceInterface(1))), ie.RuleIDTypePDR, 1},
	} {
		answer := modify(uint32(10+seq), good, test.bad)
		checkCause(t, answer.Cause, ie.CauseRuleCreationModificationFailure)
		kind, err1 := answer.FailedRuleID.RuleIDType()
		id, err2 := answer.FailedRuleID.FailedRuleID()
		if err1 != nil || err2 != nil || kind != test.kind || id != test.id {
			t.Errorf("case %d: failed rule %d of kind %d, want %d of kind %d", seq, id, kind, test.id, test.kind)
		}
		if s.sessions[seid].session.Rules() != before {
			t.Fatalf("case %d: a refused modification changed the rules", seq)
		}
	}
	checkCause(t, modify(50, good).Cause, ie.CauseRequestAccepted)
	if s.sessions[seid].session.Rules() == before {
		t.Error("an accepted modification changed nothing")
	}
	unknown := exchange[*message.SessionModificationResponse](t, s, message.NewSessionModificationRequest(0, 0, seid+1, 51, 0))
	checkCause(t, unknown.Cause, ie.CauseSessionContextNotFound)
	if unknown.SEID() != 0 {
		t.Errorf("SEID %d in the answer for an unknown session, want 0", unknown.SEID())
	}
	gone := exchange[*message.SessionDeletionResponse](t, s, message.NewSessionDeletionRequest(0, 0, seid+1, 52, 0))
	checkCause(t, gone.Cause, ie.CauseSessionContextNotFound)
	checkTables(t, s)
}

func TestOtherMessages(t *testing.T) {
	s := newTestServer(t)
	heartbeat := exchange[*message.HeartbeatResponse](t, s, message.NewHeartbeatRequest(5, ie.NewRecoveryTimeStamp(time.Now()), nil))
	if stamp, err := heartbeat.RecoveryTimeStamp.RecoveryTimeStamp(); err != nil || stamp.Unix() != s.started.Unix() {
		t.Errorf("Recovery Time Stamp %v, %v", stamp, err)
	}
	pfd := exchange[*message.PFDManagementResponse](t, s, message.NewPFDManagementRequest(6))
	checkCause(t, pfd.Cause, ie.CauseServiceNotSupported)
	set := exchange[*message.SessionSetDeletionResponse](t, s, message.NewSessionSetDeletionRequest(7, ie.NewNodeID("10.101.0.1", "", ""), nil))
	checkCause(t, set.Cause, ie.CauseServiceNotSupported)

	version2 := encoded(t, message.NewHeartbeatRequest(8, ie.NewRecoveryTimeStamp(time.Now()), nil))
	version2[0] = version2[0]&0x1f | 2<<5
	answer, err := message.Parse(s.handle(version2, smf))
	if err != nil || answer.MessageType() != message.MsgTypeVersionNotSupportedResponse || answer.Sequence() != 8 {
		t.Errorf("another version was answered with %v, %v", answer, err)
	}
	version2[1] = message.MsgTypeVersionNotSupportedResponse
	for name, octets := range map[string][]byte{
		"such an answer": version2, "nothing": {}, "noise": {1, 2, 3, 4}, "unknown type": {0x20, 99, 0, 4, 0, 0, 1, 0},
		"an answer that nobody waits for":       encoded(t, message.NewHeartbeatResponse(9, ie.NewRecoveryTimeStamp(time.Now()))),
		"elements beyond the message's length":  {0x20, 1, 0, 12, 0, 0, 1, 0, 0, 96, 0, 9, 1, 2, 3, 4},
		"a request that is for a control plane": encoded(t, message.NewSessionReportRequest(0, 0, 1, 1, 0, ie.NewReportType(0, 0, 0, 1))),
	} {
		if answer := s.handle(octets, smf); answer != nil {
			t.Errorf("%s was answered with %x", name, answer)
		}
	}
}

// An optional element that cannot be read counts as absent (clause 7.6); one that says what to do costs the message.
func TestAMalformedOptionalElementCostsNoSession(t *testing.T) {
	with := func(m message.Message, kind uint16) []byte {
		b := append(encoded(t, m), byte(kind>>8), byte(kind), 0, 5, 0, 109, 0, 9, 0)
		binary.BigEndian.PutUint16(b[2:], uint16(len(b)-4))
		return b
	}
	s := newTestServer(t)
	associate(t, s)
	for number, kind := range []uint16{ie.CreateURR, ie.CreateBAR, ie.LoadControlInformation} {
		answer, err := message.Parse(s.handle(with(establishment(uint32(number+2), 1, rules(s, byte(number+1))...), kind), smf))
		if err != nil {
			t.Fatalf("%d: %v", kind, err)
		}
		checkCause(t, answer.(*message.SessionEstablishmentResponse).Cause, ie.CauseRequestAccepted)
	}
	if got := s.Stats(); got.Sessions != 3 || got.Ignored != 3 || got.Malformed != 0 {
		t.Errorf("%+v", got)
	}
	if answer := s.handle(with(establishment(9, 1, rules(s, 9)...), ie.CreatePDR), smf); answer != nil {
		t.Errorf("answered with %x", answer)
	}
	if got := s.Stats(); got.Sessions != 3 || got.Malformed != 1 {
		t.Errorf("%+v", got)
	}
	checkTables(t, s)
}
