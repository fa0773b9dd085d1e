package verify

import (
	"context"
	"net"
	"net/netip"
	"os"
	"sync"
	"testing"
	"time"

	"github.com/wmnsk/go-pfcp/ie"
	"github.com/wmnsk/go-pfcp/message"

	"slicepilot/userplane/internal/gtpu"
	"slicepilot/userplane/internal/inet"
	"slicepilot/userplane/internal/n4"
)

// Addresses of the rig, all on loopback and this process's own. The terminal's is one as well: what is sent to it reaches
// the far end below.
var (
	gnbAddress    = host(1)
	upfAddress    = host(2)
	serverAddress = host(3)
	ueAddress     = host(4)
)

func host(last byte) netip.Addr {
	pid := os.Getpid()
	return netip.AddrFrom4([4]byte{127, byte(1 + pid>>8%200), byte(pid), last})
}

// farEnd is a UPF that does as a test says: each rule is enforced, ignored or refused. Real UPFs are tried in
// tests/testbed; no real one can be told to behave in all these ways.
type farEnd struct {
	t           *testing.T
	n4, n3, n6  *net.UDPConn
	ignores     map[string]bool
	refuses     map[string]bool
	leaky       bool   // every second packet passes a closed gate
	sticky      bool   // gates that were closed stay closed
	totalOnly   bool   // volumes are those of both directions together
	tunnelBytes uint64 // counted with every packet
	silent      bool   // nothing passes

	mu      sync.Mutex
	closed  [2]bool
	limited bool
	credit  [2]float64 // octets
	since   [2]time.Time
	bytes   [2]uint64
	odd     bool
}

func startFarEnd(t *testing.T, change func(*farEnd)) *n4.Peer {
	t.Helper()
	f := &farEnd{t: t, ignores: map[string]bool{}, refuses: map[string]bool{}}
	if change != nil {
		change(f)
	}
	listen := func(address netip.Addr, port uint16) *net.UDPConn {
		conn, err := net.ListenUDP("udp4", net.UDPAddrFromAddrPort(netip.AddrPortFrom(address, port)))
		if err != nil {
			t.Fatal(err)
		}
		return conn
	}
	f.n4, f.n3, f.n6 = listen(upfAddress, 0), listen(upfAddress, gtpu.Port), listen(ueAddress, terminalPort)
	var loops sync.WaitGroup
	for conn, take := range map[*net.UDPConn]func([]byte, netip.AddrPort){f.n4: f.control, f.n3: f.uplink, f.n6: f.downlink} {
		loops.Add(1)
		go func() {
			defer loops.Done()
			for buffer := make([]byte, 1<<16); ; {
				n, from, err := conn.ReadFromUDPAddrPort(buffer)
				if err != nil {
					return
				}
				take(append([]byte(nil), buffer[:n]...), from)
			}
		}()
	}
	t.Cleanup(func() {
		f.n4.Close()
		f.n3.Close()
		f.n6.Close()
		loops.Wait()
	})
	return f.session()
}

// session is an associated peer with session "a".
func (f *farEnd) session() *n4.Peer {
	endpoint, err := n4.Listen(n4.Config{Local: netip.AddrPortFrom(gnbAddress, 0), T1: time.Second, N1: 1})
	if err != nil {
		f.t.Fatal(err)
	}
	f.t.Cleanup(endpoint.Close)
	peer, err := endpoint.Peer(f.n4.LocalAddr().(*net.UDPAddr).AddrPort())
	if err != nil {
		f.t.Fatal(err)
	}
	if _, err := peer.Associate(context.Background()); err != nil {
		f.t.Fatal(err)
	}
	_, err = peer.Establish(context.Background(), n4.SessionSpec{
		Name: "a", UE: ueAddress, QFI: 9, GNB: gnbAddress, GNBTEID: 1001, SD: n4.NoSD, DNN: "internet",
	})
	if err != nil {
		f.t.Fatal(err)
	}
	return peer
}

func (f *farEnd) control(b []byte, from netip.AddrPort) {
	request, err := message.Parse(b)
	if err != nil {
		f.t.Errorf("%x: %v", b, err)
		return
	}
	ok, node := ie.NewCause(ie.CauseRequestAccepted), ie.NewNodeID(upfAddress.String(), "", "")
	var answer message.Message
	switch m := request.(type) {
	case *message.AssociationSetupRequest:
		answer = message.NewAssociationSetupResponse(m.Sequence(), node, ok, ie.NewRecoveryTimeStamp(time.Unix(1e9, 0)),
			ie.NewUPFunctionFeatures(0x10, 0))
	case *message.SessionEstablishmentRequest:
		answer = message.NewSessionEstablishmentResponse(0, 0, 1, m.Sequence(), 0, node, ok,
			ie.NewFSEID(1, net.IP(upfAddress.AsSlice()), nil),
			ie.NewCreatedPDR(ie.NewPDRID(1), ie.NewFTEID(1, 17, net.IP(upfAddress.AsSlice()), nil, 0)))
	case *message.SessionModificationRequest:
		answer = message.NewSessionModificationResponse(0, 0, 1, m.Sequence(), 0, f.modify(m)...)
	default:
		return
	}
	encoded := make([]byte, answer.MarshalLen())
	if err := answer.MarshalTo(encoded); err != nil {
		f.t.Error(err)
	}
	_, _ = f.n4.WriteToUDPAddrPort(encoded, from)
}

func (f *farEnd) modify(m *message.SessionModificationRequest) []*ie.IE {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, qer := range m.UpdateQER {
		up, errUp := qer.MBRUL()
		status, _ := qer.GateStatus()
		closed := [2]bool{status>>2&3 != 0, status&3 != 0}
		if f.refuses["gate"] && closed != [2]bool{} || f.refuses["mbr"] && errUp == nil {
			return []*ie.IE{ie.NewCause(ie.CauseRuleCreationModificationFailure)}
		}
		if errUp == nil {
			f.limited = up == 1000
		}
		for i := range closed {
			f.closed[i] = closed[i] || f.sticky && f.closed[i]
		}
	}
	answer := []*ie.IE{ie.NewCause(ie.CauseRequestAccepted)}
	if len(m.QueryURR) == 0 || f.ignores["urr"] {
		return answer
	}
	if f.refuses["urr"] {
		return []*ie.IE{ie.NewCause(ie.CauseServiceNotSupported)}
	}
	volume := ie.NewVolumeMeasurement(0x07, f.bytes[0]+f.bytes[1], f.bytes[0], f.bytes[1], 0, 0, 0)
	if f.totalOnly {
		volume = ie.NewVolumeMeasurement(0x01, f.bytes[0]+f.bytes[1], 0, 0, 0, 0, 0)
	}
	f.bytes = [2]uint64{}
	return append(answer, ie.NewUsageReportWithinSessionModificationResponse(ie.NewURRID(n4.SessionURR), volume))
}

// pass decides on a packet of a direction (0: uplink).
func (f *farEnd) pass(direction, size int) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.silent {
		return false
	}
	if f.closed[direction] && !f.ignores["gate"] {
		if f.odd = !f.odd; !f.leaky || f.odd {
			return false
		}
	}
	if f.limited && !f.ignores["mbr"] {
		const bucket = 50_000
		now := time.Now()
		f.credit[direction] = min(bucket, f.credit[direction]+now.Sub(f.since[direction]).Seconds()*1e6/8)
		f.since[direction] = now
		if f.credit[direction] < float64(size) {
			return false
		}
		f.credit[direction] -= float64(size)
	}
	f.bytes[direction] += uint64(size) + f.tunnelBytes
	return true
}

func (f *farEnd) uplink(b []byte, _ netip.AddrPort) {
	header, err := gtpu.Parse(b)
	if err != nil || header.TEID != 17 || header.QFI != 9 || header.PDUType != gtpu.PDUTypeUplink {
		f.t.Errorf("uplink %x: %+v, %v", b, header, err)
		return
	}
	packet := header.Payload(b)
	payload, ok := userPayload(packet)
	if !ok || !f.pass(0, len(packet)) {
		return
	}
	port := uint16(packet[inet.IPv4HeaderLen+2])<<8 | uint16(packet[inet.IPv4HeaderLen+3])
	_, _ = f.n6.WriteToUDPAddrPort(payload, netip.AddrPortFrom(serverAddress, port))
}

func (f *farEnd) downlink(payload []byte, from netip.AddrPort) {
	packet := userPacket(from, netip.AddrPortFrom(ueAddress, terminalPort), len(payload)+headerLen(ueAddress), mark{})
	copy(packet[headerLen(ueAddress):], payload)
	if !f.pass(1, len(packet)) {
		return
	}
	datagram := append(gtpu.AppendGPDU(nil, 1001, gtpu.PDUTypeDownlink, 9, len(packet)), packet...)
	_, _ = f.n3.WriteToUDPAddrPort(datagram, netip.AddrPortFrom(gnbAddress, gtpu.Port))
}
