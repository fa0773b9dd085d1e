package upf

import (
	"encoding/binary"
	"net/netip"
	"testing"
	"time"

	"github.com/wmnsk/go-pfcp/ie"
	"github.com/wmnsk/go-pfcp/message"

	"slicepilot/userplane/internal/gtpu"
	"slicepilot/userplane/internal/upf/datapath"
)

func TestPacketsBothWays(t *testing.T) {
	b := newBench(t, nil)
	b.associate()
	b.establish(b.toGNB())
	for number := range uint32(3) {
		b.fromGNB(gpdu(teid, uplinkPacket(100, number)))
		b.expectAtNetwork(uplinkPacket(100, number))
		b.fromNetwork(downlinkPacket(1500, number))
		b.expectAtGNB(downlinkPacket(1500, number))
	}
	stats := b.upf.Stats()
	if stats.Uplink.Packets != 3 || stats.Uplink.Bytes != 300 || stats.Downlink.Packets != 3 || stats.Downlink.Bytes != 4500 {
		t.Errorf("counted %+v", stats)
	}
}

func TestUnknownTunnelIsAnsweredWithAnErrorIndication(t *testing.T) {
	b := newBench(t, nil)
	for range 50 { // one burst, one answer: they are limited in rate
		b.fromGNB(gpdu(0xdead, uplinkPacket(100, 0)))
	}
	answer := b.atGNB(patience)
	unknown, peer, ok := gtpu.ReadErrorIndication(answer)
	if !ok || unknown != 0xdead || peer != b.n3 {
		t.Fatalf("%x: TEID %#x, peer %s, %v", answer, unknown, peer, ok)
	}
	b.expectDropped("uplink", "no_session", 50)
	answers := 1
	for b.atGNB(silence) != nil {
		answers++
	}
	if answers > 10 {
		t.Errorf("%d answers to one burst", answers)
	}
}

func TestEcho(t *testing.T) {
	b := newBench(t, nil)
	b.fromGNB([]byte{0x32, gtpu.TypeEchoRequest, 0, 4, 0, 0, 0, 0, 0x12, 0x34, 0, 0})
	answer := b.atGNB(patience)
	header, err := gtpu.Parse(answer)
	if err != nil || header.Type != gtpu.TypeEchoResponse || header.Seq != 0x1234 {
		t.Errorf("%x: %+v, %v", answer, header, err)
	}
}

func TestUnknownExtensionHeader(t *testing.T) {
	b := newBench(t, nil)
	b.associate()
	b.establish(b.toGNB())
	packet := uplinkPacket(100, 1)
	extended := func(kind byte) []byte {
		d := []byte{0x34, gtpu.TypeGPDU, 0, byte(8 + len(packet)), 0, 0, 0x10, 0x01, 0, 0, 0, kind, 1, 0, 0, 0}
		return append(d, packet...)
	}
	b.fromGNB(extended(0x20)) // may be skipped
	b.expectAtNetwork(packet)
	b.fromGNB(extended(0x84)) // must be understood
	answer := b.atGNB(patience)
	if header, err := gtpu.Parse(answer); err != nil || header.Type != gtpu.TypeSupportedExtensionHeadersNot {
		t.Errorf("%x: %+v, %v", answer, header, err)
	}
	b.expectDropped("uplink", "extension_header", 1)
}

func TestSpoofedAndMalformedPackets(t *testing.T) {
	b := newBench(t, nil)
	b.associate()
	b.establish(b.toGNB())
	b.fromGNB(gpdu(teid, userPacket(netip.MustParseAddr("10.60.0.2"), server, 100, 0)))
	b.expectDropped("uplink", "no_rule", 1)
	b.fromGNB(gpdu(teid, []byte{0x45, 0}))
	b.fromGNB([]byte{1, 2, 3})
	b.fromGNB(make([]byte, 9000))
	b.expectDropped("uplink", "malformed", 3)
	b.fromNetwork(userPacket(server, netip.MustParseAddr("10.60.0.9"), 100, 0))
	b.expectDropped("downlink", "no_session", 1)
	b.fromNetwork([]byte{0x45})
	b.expectDropped("downlink", "malformed", 1)
	b.fromGNB(gpdu(teid, uplinkPacket(100, 7)))
	b.expectAtNetwork(uplinkPacket(100, 7))
}

func TestBufferedPacketsComeFirstAndInOrder(t *testing.T) {
	b := newBench(t, nil)
	b.associate()
	b.establish(ie.NewCreateFAR(ie.NewFARID(2), ie.NewApplyAction(0x0c, 0), ie.NewBARID(1)),
		ie.NewCreateBAR(ie.NewBARID(1), ie.NewSuggestedBufferingPacketsCount(10)))
	for number := range uint32(12) {
		b.fromNetwork(downlinkPacket(200, number))
	}
	report := b.expectReport()
	if !report.ReportType.HasDLDR() {
		t.Fatalf("report type %v, want downlink data", report.ReportType)
	}
	if pdr, err := report.DownlinkDataReport.PDRID(); err != nil || pdr != 2 {
		t.Errorf("PDR %d, %v; want 2", pdr, err)
	}
	b.expectDropped("downlink", "buffer_full", 2)
	b.modify(ie.NewUpdateFAR(ie.NewFARID(2), ie.NewApplyAction(2, 0), ie.NewUpdateForwardingParameters(
		ie.NewDestinationInterface(ie.DstInterfaceAccess), ie.NewOuterHeaderCreation(0x0100, gnbTEID, b.gnbAddr.String(), "", 0, 0, 0))))
	b.fromNetwork(downlinkPacket(200, 100))
	for number := range uint32(10) {
		b.expectAtGNB(downlinkPacket(200, number))
	}
	b.expectAtGNB(downlinkPacket(200, 100))
	if len(b.reports) != 0 {
		t.Error("the SMF was told more than once")
	}
	// Idle again: what was buffered then may be dropped on request (DROBU).
	b.modify(ie.NewUpdateFAR(ie.NewFARID(2), ie.NewApplyAction(0x0c, 0)))
	b.fromNetwork(downlinkPacket(200, 200))
	b.expectReport()
	b.modify(ie.NewPFCPSMReqFlags(0x01), ie.NewUpdateFAR(ie.NewFARID(2), ie.NewApplyAction(2, 0)))
	b.fromNetwork(downlinkPacket(200, 201))
	b.expectAtGNB(downlinkPacket(200, 201))
}

func TestErrorIndicationStopsTheTunnel(t *testing.T) {
	b := newBench(t, nil)
	b.associate()
	b.establish(b.toGNB())
	b.fromGNB(gtpu.ErrorIndication(gnbTEID, b.gnbAddr))
	report := b.expectReport()
	if !report.ReportType.HasERIR() {
		t.Fatalf("report type %v, want error indication", report.ReportType)
	}
	remote, err := report.ErrorIndicationReport.FTEID()
	if err != nil || remote.TEID != gnbTEID || remote.IPv4Address.String() != b.gnbAddr.String() {
		t.Errorf("remote F-TEID %+v, %v", remote, err)
	}
	b.fromNetwork(downlinkPacket(100, 1))
	b.expectDropped("downlink", "no_tunnel", 1)
	b.modify(ie.NewUpdateFAR(ie.NewFARID(2), ie.NewUpdateForwardingParameters(
		ie.NewOuterHeaderCreation(0x0100, gnbTEID, b.gnbAddr.String(), "", 0, 0, 0))))
	b.fromNetwork(downlinkPacket(100, 2))
	b.expectAtGNB(downlinkPacket(100, 2))
}

func TestEndMarkerFollowsTheLastPacket(t *testing.T) {
	b := newBench(t, nil)
	b.associate()
	b.establish(b.toGNB())
	b.fromNetwork(downlinkPacket(100, 1))
	b.expectAtGNB(downlinkPacket(100, 1))
	b.modify(ie.NewUpdateFAR(ie.NewFARID(2), ie.NewUpdateForwardingParameters(
		ie.NewOuterHeaderCreation(0x0100, 0x3003, b.gnbAddr.String(), "", 0, 0, 0), ie.NewPFCPSMReqFlags(0x02))))
	b.fromNetwork(downlinkPacket(100, 2))
	marker := b.atGNB(patience)
	if header, err := gtpu.Parse(marker); err != nil || header.Type != gtpu.TypeEndMarker || header.TEID != gnbTEID {
		t.Errorf("%x: %+v, %v; want an End Marker for the old tunnel", marker, header, err)
	}
	next := b.atGNB(patience)
	if header, err := gtpu.Parse(next); err != nil || header.Type != gtpu.TypeGPDU || header.TEID != 0x3003 {
		t.Errorf("%x: %+v, %v; want the next packet in the new tunnel", next, header, err)
	}
	b.fromGNB(gtpu.AppendEndMarker(nil, teid))
	for deadline := time.Now().Add(patience); b.upf.Stats().Path.EndMarkers != 1; time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("the gNB's End Marker was not counted: %+v", b.upf.Stats().Path)
		}
	}
}

func TestGate(t *testing.T) {
	b := newBench(t, nil)
	b.associate()
	b.establish(b.toGNB())
	b.modify(ie.NewUpdateQER(ie.NewQERID(1), ie.NewGateStatus(ie.GateStatusClosed, ie.GateStatusOpen)))
	b.fromGNB(gpdu(teid, uplinkPacket(100, 1)))
	b.expectDropped("uplink", "gate", 1)
	b.fromNetwork(downlinkPacket(100, 1))
	b.expectAtGNB(downlinkPacket(100, 1))
	b.modify(ie.NewUpdateQER(ie.NewQERID(1), ie.NewGateStatus(ie.GateStatusOpen, ie.GateStatusClosed)))
	b.fromGNB(gpdu(teid, uplinkPacket(100, 2)))
	b.expectAtNetwork(uplinkPacket(100, 2))
	b.fromNetwork(downlinkPacket(100, 2))
	b.expectDropped("downlink", "gate", 1)
}

// Twice the maximum bit rate is offered for a while: no more than the rate and the bucket's depth may pass. That no
// less passes is the meter's own test; here the machine may stall.
func TestMaximumBitRate(t *testing.T) {
	b := newBench(t, nil)
	b.associate()
	const rateKbps, size = 4000, 1000
	b.establish(b.toGNB(), ie.NewCreateQER(ie.NewQERID(1), ie.NewGateStatus(0, 0), ie.NewMBR(rateKbps, rateKbps), ie.NewQFI(qfi)))
	start := time.Now()
	const duration = 500 * time.Millisecond
	sent := 0
	for elapsed := time.Duration(0); elapsed < duration; elapsed = time.Since(start) {
		due := int(elapsed.Seconds() * 2 * rateKbps * 1000 / 8 / size)
		for ; sent < due; sent++ {
			b.fromGNB(gpdu(teid, uplinkPacket(size, uint32(sent))))
			b.fromNetwork(downlinkPacket(size, uint32(sent)))
		}
		for b.atNetwork(time.Millisecond) != nil {
		}
	}
	stats := b.upf.Stats()
	const burstKbit = rateKbps * 0.05
	most := rateKbps*time.Since(start).Seconds() + burstKbit
	for name, direction := range map[string]datapath.Direction{"uplink": stats.Uplink, "downlink": stats.Downlink} {
		passed := float64(direction.Bytes) * 8 / 1000
		if passed > 1.01*most || passed < burstKbit/2 || direction.Dropped["mbr"] == 0 {
			t.Errorf("%s: %.0f kbit passed, at most %.0f may: %+v", name, passed, most, direction)
		}
	}
}

func TestVolumes(t *testing.T) {
	b := newBench(t, nil)
	b.associate()
	b.establish(b.toGNB(), ie.NewCreateURR(ie.NewURRID(1), ie.NewMeasurementMethod(0, 1, 1), ie.NewReportingTriggers(0x02, 0, 0),
		ie.NewVolumeThreshold(0x01, 1000, 0, 0)))
	up := func(n uint32) {
		b.fromGNB(gpdu(teid, uplinkPacket(300, n)))
		b.expectAtNetwork(uplinkPacket(300, n))
	}
	down := func(n uint32) {
		b.fromNetwork(downlinkPacket(400, n))
		b.expectAtGNB(downlinkPacket(400, n))
	}
	up(1)
	down(1)
	up(2) // 1000 octets
	report := b.expectReport()
	if !report.ReportType.HasUSAR() || len(report.UsageReport) != 1 {
		t.Fatalf("report %+v", report)
	}
	checkVolume(t, report.UsageReport[0], 0, 600, 400)
	up(3)
	answer := b.modify(ie.NewQueryURR(ie.NewURRID(1)))
	checkVolume(t, answer.UsageReport[0], 1, 300, 0)
	down(2)
	deleted := b.ask(message.NewSessionDeletionRequest(0, 0, b.seid.Load(), b.nextSeq(), 0)).(*message.SessionDeletionResponse)
	checkCause(t, deleted.Cause, ie.CauseRequestAccepted)
	checkVolume(t, deleted.UsageReport[0], 2, 0, 400)
	b.fromNetwork(downlinkPacket(400, 3))
	b.expectDropped("downlink", "no_session", 1)
	b.fromGNB(gpdu(teid, uplinkPacket(300, 4)))
	b.expectDropped("uplink", "no_session", 1)
}

func checkVolume(t *testing.T, report *ie.IE, seqn uint32, uplink, downlink uint64) {
	t.Helper()
	v, err := report.VolumeMeasurement()
	if err != nil || v.UplinkVolume != uplink || v.DownlinkVolume != downlink || v.TotalVolume != uplink+downlink {
		t.Errorf("volume %+v, %v; want %d up and %d down", v, err, uplink, downlink)
	}
	if got, err := report.URSEQN(); err != nil || got != seqn {
		t.Errorf("UR-SEQN %d, %v; want %d", got, err, seqn)
	}
}

// Rules of the same IDs are other rules when they have been removed in between, be it in one request.
func TestRulesReplacedUnderTheSameID(t *testing.T) {
	b := newBench(t, nil)
	b.associate()
	b.establish(b.toGNB())
	b.fromNetwork(downlinkPacket(400, 1))
	b.expectAtGNB(downlinkPacket(400, 1))
	answer := b.modify(
		ie.NewRemoveFAR(ie.NewFARID(2)), ie.NewRemoveURR(ie.NewURRID(1)),
		ie.NewCreateFAR(ie.NewFARID(2), ie.NewApplyAction(1, 0)),
		ie.NewCreateURR(ie.NewURRID(1), ie.NewMeasurementMethod(0, 1, 0), ie.NewReportingTriggers(0, 0, 0)),
		ie.NewUpdatePDR(ie.NewPDRID(1), ie.NewURRID(1)), ie.NewUpdatePDR(ie.NewPDRID(2), ie.NewFARID(2), ie.NewURRID(1)))
	checkVolume(t, answer.UsageReport[0], 0, 0, 400)
	b.fromNetwork(downlinkPacket(400, 2))
	b.expectDropped("downlink", "far_drop", 1)
	b.fromGNB(gpdu(teid, uplinkPacket(300, 1)))
	b.expectAtNetwork(uplinkPacket(300, 1))
	checkVolume(t, b.modify(ie.NewQueryURR(ie.NewURRID(1))).UsageReport[0], 0, 300, 0)
}

func TestQuotaStopsAtItsEnd(t *testing.T) {
	b := newBench(t, nil)
	b.associate()
	b.establish(b.toGNB(), ie.NewCreateURR(ie.NewURRID(1), ie.NewMeasurementMethod(0, 1, 0), ie.NewReportingTriggers(0, 0x01, 0),
		ie.NewVolumeQuota(0x01, 200, 0, 0)))
	for n := range uint32(3) {
		b.fromGNB(gpdu(teid, uplinkPacket(100, n)))
	}
	b.expectDropped("uplink", "quota", 1)
	b.expectReport()
	b.modify(ie.NewUpdateURR(ie.NewURRID(1), ie.NewVolumeQuota(0x01, 300, 0, 0)))
	for n := range uint32(4) {
		b.fromGNB(gpdu(teid, uplinkPacket(100, n)))
	}
	b.expectDropped("uplink", "quota", 2)
}

func TestPeriodicReports(t *testing.T) {
	b := newBench(t, nil)
	b.associate()
	b.establish(b.toGNB(), ie.NewCreateURR(ie.NewURRID(1), ie.NewMeasurementMethod(0, 1, 0), ie.NewReportingTriggers(0x01, 0, 0),
		ie.NewMeasurementPeriod(time.Second)))
	b.fromGNB(gpdu(teid, uplinkPacket(100, 1)))
	checkVolume(t, b.expectReport().UsageReport[0], 0, 100, 0)
	checkVolume(t, b.expectReport().UsageReport[0], 1, 0, 0)
}

func TestSessionThatTheSMFHasForgottenIsRemoved(t *testing.T) {
	b := newBench(t, nil)
	b.answerReport.Store(uint32(ie.CauseSessionContextNotFound))
	b.associate()
	b.establish(ie.NewCreateFAR(ie.NewFARID(2), ie.NewApplyAction(0x0c, 0)))
	b.fromNetwork(downlinkPacket(100, 1))
	b.expectReport()
	for deadline := time.Now().Add(patience); b.upf.Stats().PFCP.Sessions != 0; time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("the session is still there")
		}
	}
}

// While the SMF changes rules as fast as it can, no packet is lost, duplicated or overtaken.
func TestModificationsDoNotDisturbTraffic(t *testing.T) {
	b := newBench(t, nil)
	b.associate()
	b.establish(b.toGNB())
	const packets = 3000
	done := make(chan int)
	go func() {
		defer close(done)
		for n := range uint32(packets) {
			if n%32 == 0 {
				time.Sleep(time.Millisecond) // loopback queues are not endless
			}
			if _, err := b.gnb.WriteToUDPAddrPort(gpdu(teid, uplinkPacket(100, n)), netip.AddrPortFrom(b.n3, gtpu.Port)); err != nil {
				t.Error(err)
			}
			if _, err := b.network.Write(downlinkPacket(100, n)); err != nil {
				t.Error(err)
			}
		}
	}()
	received := make(chan string, 2)
	check := func(name string, next func() uint32) {
		for want := range uint32(packets) {
			if got := next(); got != want {
				received <- name + " out of order or lost"
				return
			}
		}
		received <- ""
	}
	number := func(packet []byte) uint32 {
		if len(packet) < 32 {
			return packets
		}
		return binary.BigEndian.Uint32(packet[28:])
	}
	go check("uplink", func() uint32 { return number(b.atNetwork(patience)) })
	go check("downlink", func() uint32 {
		datagram := b.atGNB(patience)
		header, err := gtpu.Parse(datagram)
		if err != nil {
			return packets
		}
		return number(header.Payload(datagram))
	})
	changes := 0
	for running := true; running; changes++ {
		b.modify(
			ie.NewUpdateQER(ie.NewQERID(1), ie.NewGateStatus(0, 0), ie.NewMBR(uint64(1e6+changes), 1e6)),
			ie.NewUpdateFAR(ie.NewFARID(2), ie.NewUpdateForwardingParameters(
				ie.NewOuterHeaderCreation(0x0100, gnbTEID, b.gnbAddr.String(), "", 0, 0, 0))))
		select {
		case <-done:
			running = false
		default:
		}
	}
	for range 2 {
		if problem := <-received; problem != "" {
			t.Errorf("%s after %d changes: %+v", problem, changes, b.upf.Stats())
		}
	}
	if changes < 10 {
		t.Errorf("only %d changes", changes)
	}
}

// A terminal goes idle and active again and again while packets keep coming: none overtakes another.
func TestBufferingKeepsTheOrder(t *testing.T) {
	b := newBench(t, nil)
	b.associate()
	b.establish(b.toGNB(), ie.NewCreateBAR(ie.NewBARID(1), ie.NewSuggestedBufferingPacketsCount(255)))
	const packets = 2000
	sent := make(chan struct{})
	go func() {
		defer close(sent)
		for n := range uint32(packets) {
			if _, err := b.network.Write(downlinkPacket(64, n)); err != nil {
				t.Error(err)
			}
			time.Sleep(50 * time.Microsecond)
		}
	}()
	switches := 0
	for running := true; running; switches++ {
		b.modify(ie.NewUpdateFAR(ie.NewFARID(2), ie.NewApplyAction(0x04, 0), ie.NewBARID(1)))
		time.Sleep(time.Millisecond)
		b.modify(ie.NewUpdateFAR(ie.NewFARID(2), ie.NewApplyAction(0x02, 0)))
		select {
		case <-sent:
			running = false
		default:
		}
	}
	next := uint32(0)
	for datagram := b.atGNB(silence); datagram != nil; datagram = b.atGNB(silence) {
		header, err := gtpu.Parse(datagram)
		must(t, err)
		number := binary.BigEndian.Uint32(header.Payload(datagram)[28:])
		if number < next {
			t.Fatalf("packet %d after packet %d", number, next-1)
		}
		next = number + 1
	}
	stats := b.upf.Stats().Downlink
	if lost := stats.Dropped["buffer_full"]; stats.Buffered == 0 || stats.Packets+lost != packets {
		t.Errorf("%+v after %d switches", stats, switches)
	}
}

func TestStopLeavesNothingBehind(t *testing.T) {
	b := newBench(t, func(c *Config) { c.Heartbeat = time.Hour })
	b.associate()
	b.establish(ie.NewCreateFAR(ie.NewFARID(2), ie.NewApplyAction(0x0c, 0)),
		ie.NewCreateURR(ie.NewURRID(1), ie.NewMeasurementMethod(0, 1, 0), ie.NewReportingTriggers(0x01, 0, 0), ie.NewMeasurementPeriod(time.Hour)))
	stopped := make(chan struct{})
	go func() {
		b.upf.server.Stop()
		b.upf.plane.Stop()
		close(stopped)
	}()
	select {
	case <-stopped:
	case <-time.After(patience):
		t.Fatal("a thread does not end")
	}
	b.upf.server, b.upf.plane = nil, nil
}
