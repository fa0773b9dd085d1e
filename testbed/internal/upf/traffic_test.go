package upf

import (
	"bytes"
	"encoding/binary"
	"net/netip"
	"testing"
	"time"

	"github.com/wmnsk/go-pfcp/ie"

	"slicepilot/userplane/internal/gtpu"
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
	if want := gtpu.ErrorIndication(0xdead, b.n3); !bytes.Equal(answer, want) {
		t.Fatalf("%x, want %x", answer, want)
	}
	b.expectDropped("uplink", "no_session", 50)
	answers := 1
	for b.atGNB(quiet) != nil {
		answers++
	}
	if answers > 10 {
		t.Errorf("%d answers to one burst", answers)
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

// What an SMF may ask for and is not acted on: rates, usage reports, buffering. A FAR that is sent again under its ID
// moves the tunnel; what is to be buffered is dropped and counted.
func TestAcceptedAndNotActedOn(t *testing.T) {
	b := newBench(t, nil)
	b.associate()
	b.establish(b.toGNB(), ie.NewCreateBAR(ie.NewBARID(1), ie.NewSuggestedBufferingPacketsCount(10)),
		ie.NewCreateQER(ie.NewQERID(1), ie.NewGateStatus(0, 0), ie.NewMBR(1, 1), ie.NewQFI(qfi)))
	for number := range uint32(30) {
		b.fromGNB(gpdu(teid, uplinkPacket(1400, number)))
		b.expectAtNetwork(uplinkPacket(1400, number))
	}
	if answer := b.modify(ie.NewQueryURR(ie.NewURRID(1)), ie.NewPFCPSMReqFlags(0x04)); len(answer.UsageReport) != 0 {
		t.Errorf("%d usage reports", len(answer.UsageReport))
	}
	b.modify(ie.NewUpdateFAR(ie.NewFARID(2), ie.NewApplyAction(0x0c, 0), ie.NewBARID(1)))
	b.fromNetwork(downlinkPacket(200, 1))
	b.expectDropped("downlink", "far_drop", 1)
	b.modify(ie.NewRemoveFAR(ie.NewFARID(2)), b.toGNB(), ie.NewUpdatePDR(ie.NewPDRID(2), ie.NewFARID(2)))
	b.fromNetwork(downlinkPacket(200, 2))
	b.expectAtGNB(downlinkPacket(200, 2))
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

func TestStopLeavesNothingBehind(t *testing.T) {
	b := newBench(t, func(c *Config) { c.Heartbeat = time.Hour })
	b.associate()
	b.establish(ie.NewCreateFAR(ie.NewFARID(2), ie.NewApplyAction(0x0c, 0)),
		ie.NewCreateURR(ie.NewURRID(1), ie.NewMeasurementMethod(0, 1, 0), ie.NewReportingTriggers(0x01, 0, 0), ie.NewMeasurementPeriod(time.Hour)))
	stopped := make(chan struct{})
	go func() {
		b.stop()
		close(stopped)
	}()
	select {
	case <-stopped:
	case <-time.After(patience):
		t.Fatal("a thread does not end")
	}
}

// To addresses of the machine's own no rule lets a terminal send: N3 would take GTP-U from there for a gNB's, N4 PFCP for
// an SMF's. Neither does a rule without a UE address, without a QER, or into another tunnel.
func TestATerminalCannotReachTheUPFItself(t *testing.T) {
	b := newBench(t, nil)
	b.associate()
	const wide, onwards = teid + 1, teid + 2
	tunnel := func(id uint32) *ie.IE {
		return ie.NewPDI(ie.NewSourceInterface(ie.SrcInterfaceAccess), ie.NewFTEID(0x01, id, b.n3.AsSlice(), nil, 0))
	}
	b.establish(b.toGNB(),
		ie.NewCreatePDR(ie.NewPDRID(3), ie.NewPrecedence(1), tunnel(wide), ie.NewFARID(1)),
		ie.NewCreatePDR(ie.NewPDRID(4), ie.NewPrecedence(1), tunnel(onwards), ie.NewFARID(2)))
	inner := gpdu(wide, uplinkPacket(100, 7))
	var sent uint64
	for _, to := range []netip.Addr{b.n3, netip.MustParseAddr("127.0.0.1"), netip.MustParseAddr("255.255.255.255"), netip.IPv4Unspecified()} {
		packet := userPacket(terminal, to, 28+len(inner), 0)
		binary.BigEndian.PutUint16(packet[22:], gtpu.Port)
		copy(packet[28:], inner)
		for _, fragment := range []uint16{0, 0x2000, 0x0001} {
			binary.BigEndian.PutUint16(packet[6:], fragment)
			for _, id := range []uint32{teid, wide, onwards} {
				b.fromGNB(gpdu(id, packet))
				sent++
			}
		}
	}
	b.expectDropped("uplink", "own_address", sent)
	if got := b.atNetwork(quiet); got != nil {
		t.Errorf("to the data network went %x", got)
	}
	if got := b.atGNB(quiet); got != nil {
		t.Errorf("to the gNB went %x", got)
	}
	b.fromGNB(gpdu(wide, uplinkPacket(100, 8)))
	b.expectAtNetwork(uplinkPacket(100, 8))
}
