package upf

import (
	"bytes"
	"encoding/binary"
	"io"
	"log"
	"math/rand/v2"
	"net"
	"net/netip"
	"os"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/wmnsk/go-pfcp/ie"
	"github.com/wmnsk/go-pfcp/message"
	"golang.org/x/sys/unix"

	"slicepilot/userplane/internal/gtpu"
	"slicepilot/userplane/internal/upf/tun"
)

// bench is a UPF on loopback addresses, with everything around it: an SMF, a gNB, and the data network behind a packet
// socket in the role of the kernel's end of the TUN device. It needs no privileges.
type bench struct {
	t           *testing.T
	upf         *UPF
	stop        func()   // ends it, once
	network     *os.File // what the UPF writes to its TUN device comes out here, and the other way round
	smf, gnb    *net.UDPConn
	n3, gnbAddr netip.Addr
	seq         uint32
	seid        atomic.Uint64 // of the session last established
	answers     chan message.Message
}

const (
	teid    = 0x1001
	gnbTEID = 0x2002
	qfi     = 9
	// patience is for what has to happen; quiet is how long nothing has to happen.
	patience = 5 * time.Second
	quiet    = 100 * time.Millisecond
)

var (
	terminal = netip.MustParseAddr("10.60.0.1")
	server   = netip.MustParseAddr("10.103.0.2")
)

// newBench starts a UPF. Each has its own network 127.x.y.0/24, so that tests may run beside each other.
func newBench(t *testing.T, change func(*Config)) *bench {
	t.Helper()
	host := func(last byte) netip.Addr {
		return netip.AddrFrom4([4]byte{127, byte(1 + os.Getpid()%200), byte(rand.IntN(256)), last})
	}
	b := &bench{
		t: t, n3: host(1), gnbAddr: host(2), answers: make(chan message.Message, 16),
	}
	smf := host(3)
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0)
	must(t, err)
	for _, end := range pair {
		must(t, unix.SetsockoptInt(end, unix.SOL_SOCKET, unix.SO_SNDBUF, 1<<20))
	}
	b.network = os.NewFile(uintptr(pair[1]), "network")
	b.smf = listen(t, netip.AddrPortFrom(smf, 8805))
	b.gnb = listen(t, netip.AddrPortFrom(b.gnbAddr, gtpu.Port))
	config := Config{
		NodeID: b.n3, N4: netip.AddrPortFrom(b.n3, 8805), N3: netip.AddrPortFrom(b.n3, gtpu.Port), PeerPort: 8805,
		TUN: "test", TUNMTU: 1500, ReceiveBuffer: 1 << 20, MaxSessions: 8, Log: log.New(io.Discard, "", 0),
	}
	if change != nil {
		change(&config)
	}
	b.upf, err = assemble(config, &tun.Device{FD: pair[0], Name: "test"})
	must(t, err)
	b.stop = sync.OnceFunc(b.upf.Stop)
	t.Cleanup(func() {
		b.stop()
		b.smf.Close()
		b.gnb.Close()
		b.network.Close()
	})
	go b.receivePFCP()
	return b
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func listen(t *testing.T, at netip.AddrPort) *net.UDPConn {
	t.Helper()
	c, err := net.ListenUDP("udp", net.UDPAddrFromAddrPort(at))
	must(t, err)
	must(t, c.SetReadBuffer(4<<20))
	return c
}

// receivePFCP is the SMF: it takes the answers.
func (b *bench) receivePFCP() {
	buffer := make([]byte, 1<<16)
	for {
		n, err := b.smf.Read(buffer)
		if err != nil {
			return
		}
		m, err := message.Parse(append([]byte(nil), buffer[:n]...))
		if err != nil {
			b.t.Errorf("the UPF sent %x: %v", buffer[:n], err)
			continue
		}
		b.answers <- m
	}
}

func (b *bench) send(m message.Message) {
	octets := make([]byte, m.MarshalLen())
	if err := m.MarshalTo(octets); err != nil {
		b.t.Error(err)
	}
	if _, err := b.smf.WriteToUDPAddrPort(octets, netip.AddrPortFrom(b.n3, 8805)); err != nil {
		b.t.Error(err)
	}
}

// exchange sends a request and returns the answer.
func (b *bench) exchange(m message.Message) message.Message {
	b.t.Helper()
	b.send(m)
	select {
	case answer := <-b.answers:
		if answer.Sequence() != m.Sequence() {
			b.t.Fatalf("answer to request %d, want %d", answer.Sequence(), m.Sequence())
		}
		return answer
	case <-time.After(patience):
		b.t.Fatalf("no answer to %s", m.MessageTypeName())
		return nil
	}
}

func (b *bench) nextSeq() uint32 {
	b.seq++
	return b.seq
}

func (b *bench) associate() {
	b.t.Helper()
	smf := b.smf.LocalAddr().(*net.UDPAddr).IP.String()
	answer := b.exchange(message.NewAssociationSetupRequest(b.nextSeq(), ie.NewNodeID(smf, "", ""), ie.NewRecoveryTimeStamp(time.Now())))
	checkCause(b.t, answer.(*message.AssociationSetupResponse).Cause, ie.CauseRequestAccepted)
}

func checkCause(t *testing.T, e *ie.IE, want uint8) {
	t.Helper()
	if e == nil {
		t.Fatal("no cause")
	}
	if got, err := e.Cause(); err != nil || got != want {
		t.Fatalf("cause %d, %v; want %d", got, err, want)
	}
}

// establish sets up the session of one terminal; more elements may be added, and the downlink's FAR exchanged.
func (b *bench) establish(downlinkFAR *ie.IE, more ...*ie.IE) *message.SessionEstablishmentResponse {
	b.t.Helper()
	answer := b.exchange(b.establishment(downlinkFAR, more...)).(*message.SessionEstablishmentResponse)
	checkCause(b.t, answer.Cause, ie.CauseRequestAccepted)
	fseid, err := answer.UPFSEID.FSEID()
	must(b.t, err)
	b.seid.Store(fseid.SEID)
	return answer
}

func (b *bench) establishment(downlinkFAR *ie.IE, more ...*ie.IE) *message.SessionEstablishmentRequest {
	smf := b.smf.LocalAddr().(*net.UDPAddr).IP
	ies := []*ie.IE{
		ie.NewNodeID(smf.String(), "", ""), ie.NewFSEID(77, smf, nil),
		ie.NewCreatePDR(ie.NewPDRID(1), ie.NewPrecedence(100), ie.NewPDI(
			ie.NewSourceInterface(ie.SrcInterfaceAccess), ie.NewFTEID(0x01, teid, b.n3.AsSlice(), nil, 0),
			ie.NewNetworkInstance("internet"), ie.NewUEIPAddress(0x02, terminal.String(), "", 0, 0)),
			ie.NewOuterHeaderRemoval(0, 0), ie.NewFARID(1), ie.NewQERID(1), ie.NewURRID(1)),
		ie.NewCreatePDR(ie.NewPDRID(2), ie.NewPrecedence(100), ie.NewPDI(
			ie.NewSourceInterface(ie.SrcInterfaceCore), ie.NewNetworkInstance("internet"), ie.NewUEIPAddress(0x06, terminal.String(), "", 0, 0)),
			ie.NewFARID(2), ie.NewQERID(1), ie.NewURRID(1)),
		ie.NewCreateFAR(ie.NewFARID(1), ie.NewApplyAction(2, 0), ie.NewForwardingParameters(ie.NewDestinationInterface(ie.DstInterfaceCore))),
		downlinkFAR,
	}
	ies = append(ies, more...)
	has := func(kind uint16) bool {
		for _, e := range ies {
			if e.Type == kind {
				return true
			}
		}
		return false
	}
	if !has(ie.CreateQER) {
		ies = append(ies, ie.NewCreateQER(ie.NewQERID(1), ie.NewGateStatus(0, 0), ie.NewQFI(qfi)))
	}
	if !has(ie.CreateURR) {
		ies = append(ies, ie.NewCreateURR(ie.NewURRID(1), ie.NewMeasurementMethod(0, 1, 0), ie.NewReportingTriggers(0, 0, 0)))
	}
	return message.NewSessionEstablishmentRequest(0, 0, 0, b.nextSeq(), 0, ies...)
}

func (b *bench) modify(ies ...*ie.IE) *message.SessionModificationResponse {
	b.t.Helper()
	answer := b.exchange(message.NewSessionModificationRequest(0, 0, b.seid.Load(), b.nextSeq(), 0, ies...)).(*message.SessionModificationResponse)
	checkCause(b.t, answer.Cause, ie.CauseRequestAccepted)
	return answer
}

// toGNB is the FAR of a downlink whose tunnel is known.
func (b *bench) toGNB() *ie.IE {
	return ie.NewCreateFAR(ie.NewFARID(2), ie.NewApplyAction(2, 0), ie.NewForwardingParameters(
		ie.NewDestinationInterface(ie.DstInterfaceAccess), ie.NewOuterHeaderCreation(0x0100, gnbTEID, b.gnbAddr.String(), "", 0, 0, 0)))
}

// userPacket is a UDP packet of size octets whose payload begins with a number.
func userPacket(src, dst netip.Addr, size int, number uint32) []byte {
	p := make([]byte, size)
	p[0], p[8], p[9] = 0x45, 64, 17
	binary.BigEndian.PutUint16(p[2:], uint16(size))
	copy(p[12:], src.AsSlice())
	copy(p[16:], dst.AsSlice())
	binary.BigEndian.PutUint16(p[20:], 5000)
	binary.BigEndian.PutUint16(p[22:], 6000)
	binary.BigEndian.PutUint16(p[24:], uint16(size-20))
	binary.BigEndian.PutUint32(p[28:], number)
	return p
}

func uplinkPacket(size int, number uint32) []byte { return userPacket(terminal, server, size, number) }

func downlinkPacket(size int, number uint32) []byte {
	return userPacket(server, terminal, size, number)
}

// gpdu puts a user packet into the uplink tunnel.
func gpdu(tunnel uint32, packet []byte) []byte {
	return append(gtpu.AppendGPDU(nil, tunnel, gtpu.PDUTypeUplink, qfi, len(packet)), packet...)
}

func (b *bench) fromGNB(datagram []byte) {
	b.t.Helper()
	_, err := b.gnb.WriteToUDPAddrPort(datagram, netip.AddrPortFrom(b.n3, gtpu.Port))
	must(b.t, err)
}

func (b *bench) fromNetwork(packet []byte) {
	b.t.Helper()
	_, err := b.network.Write(packet)
	must(b.t, err)
}

// atGNB returns the next datagram that reaches the gNB, nil for none within the time.
func (b *bench) atGNB(within time.Duration) []byte {
	b.t.Helper()
	must(b.t, b.gnb.SetReadDeadline(time.Now().Add(within)))
	return b.readOne(b.gnb)
}

// atNetwork returns the next packet that leaves for the data network, nil for none within the time.
func (b *bench) atNetwork(within time.Duration) []byte {
	b.t.Helper()
	must(b.t, b.network.SetReadDeadline(time.Now().Add(within)))
	return b.readOne(b.network)
}

func (b *bench) readOne(from io.Reader) []byte {
	b.t.Helper()
	buffer := make([]byte, 2048)
	n, err := from.Read(buffer)
	if os.IsTimeout(err) {
		return nil
	}
	must(b.t, err)
	return buffer[:n]
}

func (b *bench) expectAtNetwork(want []byte) {
	b.t.Helper()
	if got := b.atNetwork(patience); !bytes.Equal(got, want) {
		b.t.Fatalf("to the data network went %x, want %x", got, want)
	}
}

// expectAtGNB checks the tunnel of a downlink packet and its content.
func (b *bench) expectAtGNB(want []byte) {
	b.t.Helper()
	got := b.atGNB(patience)
	header, err := gtpu.Parse(got)
	if err != nil || header.TEID != gnbTEID || header.QFI != qfi || header.PDUType != gtpu.PDUTypeDownlink ||
		!bytes.Equal(header.Payload(got), want) {
		b.t.Fatalf("to the gNB went %x (%+v, %v), want %x", got, header, err, want)
	}
}

func (b *bench) expectDropped(direction, reason string, want uint64) {
	b.t.Helper()
	var got uint64
	for deadline := time.Now().Add(patience); time.Now().Before(deadline); time.Sleep(time.Millisecond) {
		stats := b.upf.Stats()
		got = stats.Uplink.Dropped[reason]
		if direction == "downlink" {
			got = stats.Downlink.Dropped[reason]
		}
		if got == want {
			return
		}
	}
	b.t.Fatalf("%d packets dropped for %s, want %d; %+v", got, reason, want, b.upf.Stats())
}
