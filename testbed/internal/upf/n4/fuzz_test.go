package n4

import (
	"bytes"
	"net/netip"
	"runtime/debug"
	"testing"
	"time"

	"github.com/wmnsk/go-pfcp/ie"
	"github.com/wmnsk/go-pfcp/message"

	"slicepilot/userplane/internal/pfcp"
	"slicepilot/userplane/internal/upf/session"
)

// FuzzHandle hands arbitrary datagrams to a server that has an association and a session. It holds that nothing panics
// but the library on malformed elements, that tables and sessions agree, and that what is answered can be read.
func FuzzHandle(f *testing.F) {
	s := newTestServer(f)
	prepare := func(t testing.TB) uint64 {
		fresh := newServer(s.config, s.plane)
		fresh.nextSEID, fresh.nextTEID = 0, 1000 // so that messages in the corpus hit the session
		s = fresh
		associate(t, s)
		seid, _ := establish(t, s, 2, rules(s, 1)...)
		return seid
	}
	seid := prepare(f)
	for _, m := range seeds(s, seid) {
		f.Add(encoded(f, m))
	}
	s.dropAssociation(s.associations["10.101.0.1"], "")
	f.Fuzz(func(t *testing.T, b []byte) {
		prepare(t)
		carryOutOwnPanics(t, s, b)
		if answer := s.handle(b, smf); answer != nil {
			if _, err := message.Parse(answer); err != nil {
				t.Fatalf("answer %x: %v", answer, err)
			}
		}
		checkTables(t, s)
		for _, a := range s.associations {
			s.dropAssociation(a, "end of the run")
		}
		if len(s.sessions) != 0 || s.plane.TEIDs.Get(1) != nil || s.plane.Addresses.Get(session.AddressOf(netip.MustParseAddr("10.60.0.1"))) != nil {
			t.Fatal("something of a session is left")
		}
	})
}

// carryOutOwnPanics carries a message out without the safety net, and fails for a panic that is our own.
func carryOutOwnPanics(t *testing.T, s *Server, b []byte) {
	m, err := pfcp.Decode(bytes.Clone(b))
	if err != nil {
		return
	}
	defer func() {
		if r := recover(); r != nil && !inLibrary(debug.Stack()) {
			t.Fatalf("%v\n%s", r, debug.Stack())
		}
	}()
	s.mu.Lock()
	defer s.mu.Unlock()
	s.carryOut(m, smf)
}

// inLibrary says whether a panic came from the PFCP library: its frame is the first one below the panic.
func inLibrary(stack []byte) bool {
	_, below, _ := bytes.Cut(stack, []byte("panic("))
	library, own := bytes.Index(below, []byte("github.com/wmnsk/go-pfcp/")), bytes.Index(below, []byte("slicepilot/userplane/"))
	return library >= 0 && library < own
}

func seeds(s *Server, seid uint64) []message.Message {
	modification := func(ies ...*ie.IE) message.Message {
		return message.NewSessionModificationRequest(0, 0, seid, 10, 0, ies...)
	}
	choose := ie.NewCreatePDR(ie.NewPDRID(7), ie.NewPrecedence(9), ie.NewPDI(ie.NewSourceInterface(0), ie.NewFTEID(0x0d, 0, nil, nil, 5),
		ie.NewSDFFilter("permit out 17 from 10.0.0.0/8 53 to assigned", "", "", "", 3), ie.NewUEIPAddress(1, "", "2001:db8::", 0, 0)), ie.NewFARID(1))
	return []message.Message{
		message.NewHeartbeatRequest(10, ie.NewRecoveryTimeStamp(time.Unix(1_800_000_000, 0)), nil),
		setup(10, time.Unix(1_800_000_000, 0)),
		message.NewAssociationUpdateRequest(10, ie.NewNodeID("10.101.0.1", "", "")),
		message.NewAssociationReleaseRequest(10, ie.NewNodeID("10.101.0.1", "", "")),
		establishment(10, 5, append(rules(s, 2), choose)...),
		modification(ie.NewUpdateFAR(ie.NewFARID(2), ie.NewApplyAction(2, 0), ie.NewUpdateForwardingParameters(
			ie.NewDestinationInterface(0), ie.NewOuterHeaderCreation(0x0100, 7, "10.100.0.1", "", 0, 0, 0), ie.NewPFCPSMReqFlags(2)))),
		modification(choose, ie.NewRemovePDR(ie.NewPDRID(1)), ie.NewRemoveFAR(ie.NewFARID(2)), ie.NewRemoveQER(ie.NewQERID(1)),
			ie.NewRemoveURR(ie.NewURRID(1)), ie.NewRemoveBAR(ie.NewBARID(1))),
		modification(ie.NewUpdateQER(ie.NewQERID(1), ie.NewGateStatus(1, 1), ie.NewMBR(5, 6)), ie.NewQueryURR(ie.NewURRID(1)),
			ie.NewUpdateURR(ie.NewURRID(1), ie.NewReportingTriggers(3, 1, 0), ie.NewVolumeQuota(7, 1, 2, 3), ie.NewMeasurementPeriod(time.Hour))),
		modification(ie.NewUpdatePDR(ie.NewPDRID(1), ie.NewPDI(ie.NewSourceInterface(0), ie.NewFTEID(0x05, 0, nil, nil, 0))), ie.NewPFCPSMReqFlags(5)),
		modification(ie.NewUpdateBAR(ie.UpdateBARWithinSessionModificationRequest, ie.NewBARID(1), ie.NewSuggestedBufferingPacketsCount(3))),
		message.NewSessionDeletionRequest(0, 0, seid, 10, 0),
		message.NewSessionReportResponse(0, 0, seid, 10, 0, ie.NewCause(65)),
		message.NewPFDManagementRequest(10), message.NewSessionSetDeletionRequest(10, ie.NewNodeID("10.101.0.1", "", ""), nil),
	}
}
