package traffic

import (
	"encoding/binary"
	"fmt"
	"net"
	"net/netip"
	"testing"
	"time"

	"slicepilot/userplane/internal/gtpu"
	"slicepilot/userplane/internal/inet"
)

// farEnd is a UPF's N3 socket, of which a test reads what it likes.
func farEnd(t *testing.T, address string) (*net.UDPConn, netip.AddrPort) {
	t.Helper()
	conn, err := net.ListenUDP("udp", &net.UDPAddr{IP: net.ParseIP(address)})
	if err != nil {
		t.Skipf("no %s here: %v", address, err)
	}
	_ = conn.SetReadBuffer(8 << 20)
	t.Cleanup(func() { conn.Close() })
	return conn, conn.LocalAddr().(*net.UDPAddr).AddrPort()
}

func testFlow(to netip.AddrPort, kind Kind, mbps float64) FlowSpec {
	from := "127.0.0.1:0"
	if to.Addr().Is6() {
		from = "[::1]:0"
	}
	f := *spec(kind, mbps, nil)
	f.ID, f.From, f.To = nil, from, to.String()
	return f
}

func newTestSender(t *testing.T, plan *Plan, maxLag time.Duration) *Sender {
	t.Helper()
	for i := range plan.Flows {
		// Port 0, any free one, is for tests only: a gNB has its port.
		plan.Flows[i].From = fmt.Sprintf("127.0.0.1:%d", freePort(t, plan.Flows[i].To))
		if netip.MustParseAddrPort(plan.Flows[i].To).Addr().Is6() {
			plan.Flows[i].From = fmt.Sprintf("[::1]:%d", freePort(t, plan.Flows[i].To))
		}
	}
	if err := plan.Normalize(); err != nil {
		t.Fatal(err)
	}
	if maxLag == 0 {
		maxLag = time.Second
	}
	sender, err := NewSender(plan, maxLag)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(sender.Close)
	return sender
}

func freePort(t *testing.T, like string) int {
	t.Helper()
	network := "127.0.0.1:0"
	if netip.MustParseAddrPort(like).Addr().Is6() {
		network = "[::1]:0"
	}
	conn, err := net.ListenPacket("udp", network)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	return conn.LocalAddr().(*net.UDPAddr).Port
}

// run runs a sender as load does.
func run(sender *Sender) <-chan Report {
	done := make(chan Report, 1)
	go func() {
		if err := BindThread(-1); err != nil {
			panic(err)
		}
		done <- sender.Run()
	}()
	return done
}

// drain reads what has come, by flow, in order.
func drain(t *testing.T, conn *net.UDPConn) map[uint32][]Marker {
	t.Helper()
	result := map[uint32][]Marker{}
	buffer := make([]byte, 9000)
	for {
		_ = conn.SetReadDeadline(time.Now().Add(100 * time.Millisecond))
		n, err := conn.Read(buffer)
		if err != nil {
			return result
		}
		header, err := gtpu.Parse(buffer[:n])
		if err != nil {
			t.Fatal(err)
		}
		marker, ok := ParseMarker(header.Payload(buffer[:n])[inet.IPv4HeaderLen+inet.UDPHeaderLen:])
		if !ok {
			t.Fatalf("no marker in %x", buffer[:n])
		}
		result[marker.Flow] = append(result[marker.Flow], marker)
	}
}

func TestEverythingOfferedIsSentInOrder(t *testing.T) {
	for _, address := range []string{"127.0.0.1", "::1"} {
		conn, to := farEnd(t, address)
		plan := Plan{DurationS: 0.4, Apps: testApps}
		for _, kind := range []Kind{Video, CBR, Poisson} {
			plan.Flows = append(plan.Flows, testFlow(to, kind, 20))
		}
		report, arrived := <-run(newTestSender(t, &plan, 0)), drain(t, conn)
		for i, flow := range report.Flows {
			markers := arrived[flow.Flow]
			if flow.SendErrors+flow.Skipped != 0 || flow.OfferedMbps < 10 || flow.Bytes != flow.Packets*1400 {
				t.Errorf("flow %d: %+v", i, flow)
			}
			if uint64(len(markers)) != flow.Packets {
				t.Errorf("flow %d: %d of %d packets arrived", i, len(markers), flow.Packets)
			}
			for k, marker := range markers {
				if marker.Sequence != uint64(k) || (k > 0 && marker.SentNs < markers[k-1].SentNs) {
					t.Fatalf("flow %d: packet %d is %+v", i, k, marker)
				}
			}
		}
	}
}

func TestCatchesUpWithinTheBound(t *testing.T) {
	_, to := farEnd(t, "127.0.0.1")
	plan := Plan{DurationS: 0.6, Flows: []FlowSpec{testFlow(to, CBR, 11.2)}} // 1000 packets/s
	sender := newTestSender(t, &plan, 100*time.Millisecond)
	sender.flows[0].source = &halting{sender.flows[0].source, 100}
	flow := (<-run(sender)).Flows[0]
	if due := flow.Packets + flow.Skipped; due != 600 {
		t.Errorf("%d sent and %d skipped, 600 were due", flow.Packets, flow.Skipped)
	}
	if flow.Skipped < 190 || flow.Skipped > 400 || flow.Late < 90 || flow.LatenessMax > 100e3 {
		t.Errorf("after 300 ms with a bound of 100: %+v", flow)
	}
}

// halting is a source at whose nth packet the sending thread cannot run for 300 ms.
type halting struct {
	source
	n int
}

func (h *halting) next() packet {
	if h.n--; h.n == 0 {
		time.Sleep(300 * time.Millisecond)
	}
	return h.source.next()
}

func TestFlowsThatEndEndTheRun(t *testing.T) {
	_, to := farEnd(t, "127.0.0.1")
	f, end := testFlow(to, CBR, 10), 0.05
	f.EndS = &end
	plan := Plan{Flows: []FlowSpec{f}}
	select {
	case report := <-run(newTestSender(t, &plan, 0)):
		if report.Flows[0].Packets < 40 || report.Flows[0].Packets > 45 {
			t.Errorf("%+v", report.Flows[0])
		}
	case <-time.After(5 * time.Second):
		t.Fatal("it goes on")
	}
}

func TestRefusedPacketsAreErrors(t *testing.T) {
	_, to := farEnd(t, "127.0.0.1")
	f := testFlow(to, CBR, 10)
	plan := Plan{DurationS: 0.05, Flows: []FlowSpec{f}}
	sender := newTestSender(t, &plan, 0)
	for i := range sender.batches[0].messages {
		sender.batches[0].messages[i].hdr.Name = new(byte) // an address of no family
		sender.batches[0].messages[i].hdr.Namelen = 1
	}
	flow := (<-run(sender)).Flows[0]
	if flow.Packets != 0 || flow.SendErrors < 40 || flow.FirstError == "" {
		t.Errorf("%+v", flow)
	}
}

func TestGNBAnswersAndCounts(t *testing.T) {
	conn, to := farEnd(t, "127.0.0.1")
	f, late := testFlow(to, CBR, 1), 3600.0
	f.StartS = late // it listens until it is stopped
	plan := Plan{Flows: []FlowSpec{f}}
	sender := newTestSender(t, &plan, 0)
	done := run(sender)
	gnb := net.UDPAddrFromAddrPort(netip.MustParseAddrPort(plan.Flows[0].From))
	send := func(b []byte) {
		if _, err := conn.WriteToUDP(b, gnb); err != nil {
			t.Fatal(err)
		}
	}
	send([]byte{0x32, gtpu.TypeEchoRequest, 0, 4, 0, 0, 0, 0, 0x12, 0x34, 0, 0})
	answer := make([]byte, 100)
	_ = conn.SetReadDeadline(time.Now().Add(2 * time.Second))
	n, err := conn.Read(answer)
	if err != nil {
		t.Fatal(err)
	}
	header, err := gtpu.Parse(answer[:n])
	if err != nil || header.Type != gtpu.TypeEchoResponse || header.Seq != 0x1234 {
		t.Errorf("echo answer %x: %+v, %v", answer[:n], header, err)
	}
	indication := []byte{0x32, gtpu.TypeErrorIndication, 0, 16, 0, 0, 0, 0, 0, 0, 0, 0, 16, 0, 0, 0, 99, 133, 0, 4, 10, 0, 0, 2}
	send(indication)
	send(indication)
	send(append(gtpu.AppendGPDU(nil, 1001, gtpu.PDUTypeDownlink, 9, 100), make([]byte, 100)...))
	send([]byte{0xff})
	deadline := time.Now().Add(2 * time.Second)
	for sender.responders[0].downlinkPackets.Load() == 0 && time.Now().Before(deadline) {
		time.Sleep(time.Millisecond)
	}
	sender.Stop()
	peer := (<-done).Peers[0]
	if peer.ErrorIndications != 2 || len(peer.UnknownTEIDs) != 1 || peer.UnknownTEIDs[0] != 99 || peer.DownlinkBytes != 100 {
		t.Errorf("%+v", peer)
	}
}

func FuzzResponder(f *testing.F) {
	f.Add([]byte{0x32, gtpu.TypeEchoRequest, 0, 4, 0, 0, 0, 0, 0x12, 0x34, 0, 0})
	f.Add(binary.BigEndian.AppendUint32([]byte{0x30, gtpu.TypeErrorIndication, 0, 5, 0, 0, 0, 0, 16}, 99))
	f.Fuzz(func(_ *testing.T, b []byte) {
		r := &responder{fd: -1}
		r.handle(b)
	})
}
