package n4

import (
	"net"
	"net/netip"
	"testing"

	"github.com/wmnsk/go-pfcp/ie"
	"github.com/wmnsk/go-pfcp/message"

	"slicepilot/userplane/internal/pfcp"
)

// Sessions in the shapes that the SMFs of Open5GS and free5GC set up, after their sources.

// Open5GS: TEIDs are chosen by the UPF, PDRs beside user traffic for messages between terminal and SMF, a BAR, a URR
// with every trigger it knows, flow descriptions, two octets of Apply Action.
func TestOpen5GSSession(t *testing.T) {
	s := newTestServer(t)
	associate(t, s)
	const chooseUser, chooseControl = 0x0d, 0x0d // CHID, CH, IPv4
	smfTunnel := ie.NewOuterHeaderCreation(0x0100, 99, "10.101.0.1", "", 0, 0, 0)
	dnn := ie.New(ie.NetworkInstance, []byte("\x08internet"))
	ue := ie.NewUEIPAddress(0x06, "10.45.0.2", "", 0, 0)
	seid, answer := establish(t, s, 2,
		ie.NewCreatePDR(ie.NewPDRID(1), ie.NewPrecedence(255), ie.NewPDI(ie.NewSourceInterface(ie.SrcInterfaceCore), dnn, ue),
			ie.NewFARID(1), ie.NewURRID(1), ie.NewQERID(1)),
		ie.NewCreatePDR(ie.NewPDRID(2), ie.NewPrecedence(255), ie.NewPDI(ie.NewSourceInterface(ie.SrcInterfaceAccess),
			ie.NewFTEID(chooseUser, 0, nil, nil, 5), dnn, ie.NewUEIPAddress(0x02, "10.45.0.2", "", 0, 0), ie.NewQFI(1)),
			ie.NewOuterHeaderRemoval(6, 0x01), ie.NewFARID(2), ie.NewURRID(1), ie.NewQERID(1)),
		ie.NewCreatePDR(ie.NewPDRID(3), ie.NewPrecedence(1000), ie.NewPDI(ie.NewSourceInterface(ie.SrcInterfaceCPFunction),
			ie.NewFTEID(chooseControl, 0, nil, nil, 6), dnn), ie.NewOuterHeaderRemoval(6, 0x01), ie.NewFARID(1)),
		ie.NewCreatePDR(ie.NewPDRID(4), ie.NewPrecedence(1), ie.NewPDI(ie.NewSourceInterface(ie.SrcInterfaceAccess),
			ie.NewFTEID(chooseUser, 0, nil, nil, 5), dnn, ie.NewSDFFilter("permit out 58 from ff02::2/128 to assigned", "", "", "", 0)),
			ie.NewOuterHeaderRemoval(6, 0x01), ie.NewFARID(3)),
		ie.NewCreateFAR(ie.NewFARID(1), ie.NewApplyAction(0x0c, 0), ie.NewBARID(1)),
		ie.NewCreateFAR(ie.NewFARID(2), ie.NewApplyAction(0x02, 0), ie.NewForwardingParameters(ie.NewDestinationInterface(ie.DstInterfaceCore), dnn)),
		ie.NewCreateFAR(ie.NewFARID(3), ie.NewApplyAction(0x02, 0),
			ie.NewForwardingParameters(ie.NewDestinationInterface(ie.DstInterfaceCPFunction), dnn, smfTunnel)),
		ie.NewCreateURR(ie.NewURRID(1), ie.NewMeasurementMethod(0, 1, 1), ie.NewReportingTriggers(0x06, 0x03, 0),
			ie.NewVolumeThreshold(7, 1<<30, 1<<30, 1<<30)),
		ie.NewCreateQER(ie.NewQERID(1), ie.NewGateStatus(0, 0), ie.NewMBR(1_000_000, 1_000_000), ie.NewQFI(1)),
		ie.NewCreateBAR(ie.NewBARID(1)), ie.NewPDNType(ie.PDNTypeIPv4), ie.NewAPNDNN("internet"), ie.NewSNSSAI(1, 0xffffff),
	)
	teids := map[uint16]uint32{}
	for _, created := range answer.CreatedPDR {
		id, err := created.PDRID()
		if err != nil {
			t.Fatal(err)
		}
		fteid, err := created.FTEID()
		if err != nil || !fteid.IPv4Address.Equal(net.IP(s.config.N3.AsSlice())) {
			t.Fatalf("PDR %d: F-TEID %+v, %v", id, fteid, err)
		}
		teids[id] = fteid.TEID
	}
	if len(teids) != 3 || teids[2] != teids[4] || teids[2] == teids[3] || teids[2] == 0 {
		t.Fatalf("TEIDs %v: PDRs 2 and 4 chose with one ID, PDR 3 with another", teids)
	}
	checkTables(t, s)

	// The access network is known: the PDI comes again, with the TEID that was chosen, and the FAR forwards.
	change := exchange[*message.SessionModificationResponse](t, s, message.NewSessionModificationRequest(0, 0, seid, 3, 0,
		ie.NewUpdatePDR(ie.NewPDRID(2), ie.NewPDI(ie.NewSourceInterface(ie.SrcInterfaceAccess),
			ie.NewFTEID(1, teids[2], s.config.N3.AsSlice(), nil, 0), dnn, ie.NewUEIPAddress(0x02, "10.45.0.2", "", 0, 0), ie.NewQFI(1))),
		ie.NewUpdateFAR(ie.NewFARID(1), ie.NewApplyAction(0x02, 0), ie.NewUpdateForwardingParameters(
			ie.NewDestinationInterface(ie.DstInterfaceAccess), dnn, ie.NewOuterHeaderCreation(0x0100, 7, "10.100.0.1", "", 0, 0, 0)))))
	checkCause(t, change.Cause, ie.CauseRequestAccepted)
	compiled := s.sessions[seid].session.Rules()
	if far := compiled.Plain[0].FAR; !far.Forward || !far.Tunnelled || far.Peer != (pfcp.Tunnel{Address: netip.MustParseAddr("10.100.0.1"), TEID: 7}) {
		t.Errorf("downlink FAR %+v", far)
	}
	checkTables(t, s)
}

// free5GC: TEIDs are its own, one octet of Apply Action, DROP until the access network is known, Network Instance as
// plain text, BUFF and NOCP when the terminal is idle, SNDEM at a handover.
func TestFree5GCSession(t *testing.T) {
	s := newTestServer(t)
	associate(t, s)
	dnn := ie.NewNetworkInstance("internet")
	seid, _ := establish(t, s, 2,
		ie.NewCreatePDR(ie.NewPDRID(1), ie.NewPrecedence(255), ie.NewPDI(ie.NewSourceInterface(ie.SrcInterfaceAccess),
			ie.NewFTEID(1, 5, s.config.N3.AsSlice(), nil, 0), dnn, ie.NewUEIPAddress(0x02, "10.60.0.1", "", 0, 0)),
			ie.NewOuterHeaderRemoval(0, 0), ie.NewFARID(1), ie.NewQERID(1)),
		ie.NewCreatePDR(ie.NewPDRID(2), ie.NewPrecedence(255), ie.NewPDI(ie.NewSourceInterface(ie.SrcInterfaceCore), dnn,
			ie.NewUEIPAddress(0x06, "10.60.0.1", "", 0, 0)), ie.NewFARID(2), ie.NewQERID(1)),
		ie.NewCreateFAR(ie.NewFARID(1), ie.NewApplyAction(0x02), ie.NewForwardingParameters(ie.NewDestinationInterface(ie.DstInterfaceCore), dnn)),
		ie.NewCreateFAR(ie.NewFARID(2), ie.NewApplyAction(0x01)),
		ie.NewCreateQER(ie.NewQERID(1), ie.NewGateStatus(0, 0), ie.NewMBR(1_000_000, 1_000_000), ie.NewGBR(0, 0), ie.NewQFI(9)),
		ie.NewPDNType(ie.PDNTypeIPv4),
	)
	steps := []*ie.IE{
		ie.NewUpdateFAR(ie.NewFARID(2), ie.NewApplyAction(0x02), ie.NewUpdateForwardingParameters(ie.NewDestinationInterface(ie.DstInterfaceAccess),
			dnn, ie.NewOuterHeaderCreation(0x0100, 7, "10.100.0.1", "", 0, 0, 0), ie.NewPFCPSMReqFlags(0))),
		ie.NewUpdateFAR(ie.NewFARID(2), ie.NewApplyAction(0x0c)),
		ie.NewUpdateFAR(ie.NewFARID(2), ie.NewApplyAction(0x02), ie.NewUpdateForwardingParameters(ie.NewDestinationInterface(ie.DstInterfaceAccess),
			dnn, ie.NewOuterHeaderCreation(0x0100, 8, "10.100.0.3", "", 0, 0, 0), ie.NewPFCPSMReqFlags(2))),
	}
	for i, step := range steps {
		m := message.NewSessionModificationRequest(0, 0, seid, uint32(3+i), 0, ie.NewFSEID(2, net.IPv4(10, 101, 0, 1), nil), step)
		checkCause(t, exchange[*message.SessionModificationResponse](t, s, m).Cause, ie.CauseRequestAccepted)
	}
	if far := s.sessions[seid].session.Rules().Plain[0].FAR; far.Peer.TEID != 8 || !far.Forward {
		t.Errorf("downlink FAR %+v", far)
	}
	checkTables(t, s)
}
