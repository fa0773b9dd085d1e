package n4

import (
	"net"
	"net/netip"
	"testing"
	"time"

	"github.com/wmnsk/go-pfcp/ie"
	"github.com/wmnsk/go-pfcp/message"

	"slicepilot/userplane/internal/pfcp"
)

// peer is a CP function at a socket of its own.
type peer struct {
	t      *testing.T
	socket *net.UDPConn
	at     netip.AddrPort
}

// newPeer starts a server with threads, short timers, and a CP function with an association.
func newPeer(t *testing.T, change func(*Config)) (*Server, *peer) {
	t.Helper()
	template := newTestServer(t)
	config := template.config
	config.Heartbeat, config.PeerPort = 20*time.Millisecond, 0
	if change != nil {
		change(&config)
	}
	s, err := Start(config, template.plane)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Stop)
	socket, err := net.ListenUDP("udp", net.UDPAddrFromAddrPort(netip.AddrPortFrom(config.N3, 0)))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { socket.Close() })
	p := &peer{t: t, socket: socket, at: socket.LocalAddr().(*net.UDPAddr).AddrPort()}
	p.send(s, message.NewAssociationSetupRequest(1, ie.NewNodeID("10.101.0.1", "", ""), ie.NewRecoveryTimeStamp(time.Unix(1_700_000_000, 0))))
	answer, ok := p.receive().(*message.AssociationSetupResponse)
	if !ok {
		t.Fatal("no association")
	}
	checkCause(t, answer.Cause, ie.CauseRequestAccepted)
	return s, p
}

func (p *peer) send(s *Server, m message.Message) {
	p.t.Helper()
	if _, err := p.socket.WriteToUDPAddrPort(encoded(p.t, m), s.config.Socket.Local); err != nil {
		p.t.Fatal(err)
	}
}

func (p *peer) receive() message.Message {
	p.t.Helper()
	if err := p.socket.SetReadDeadline(time.Now().Add(5 * time.Second)); err != nil {
		p.t.Fatal(err)
	}
	buffer := make([]byte, 2048)
	n, err := p.socket.Read(buffer)
	if err != nil {
		p.t.Fatal(err)
	}
	m, err := pfcp.Decode(buffer[:n])
	if err != nil {
		p.t.Fatal(err)
	}
	return m
}

func (p *peer) receiveHeartbeat() *message.HeartbeatRequest {
	p.t.Helper()
	m, ok := p.receive().(*message.HeartbeatRequest)
	if !ok {
		p.t.Fatal("not a heartbeat")
	}
	return m
}

func eventually(t *testing.T, what string, holds func() bool) {
	t.Helper()
	for deadline := time.Now().Add(5 * time.Second); !holds(); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal(what)
		}
	}
}

func TestHeartbeatsGoOnAsLongAsTheyAreAnswered(t *testing.T) {
	s, p := newPeer(t, nil)
	var before uint32
	for range 5 {
		m := p.receiveHeartbeat()
		if stamp, err := m.RecoveryTimeStamp.RecoveryTimeStamp(); err != nil || stamp.Unix() != s.started.Unix() {
			t.Fatalf("Recovery Time Stamp %v, %v", stamp, err)
		}
		if m.Sequence() == before {
			t.Errorf("sequence number %d again", before)
		}
		before = m.Sequence()
		p.send(s, message.NewHeartbeatResponse(m.Sequence(), ie.NewRecoveryTimeStamp(time.Unix(1_700_000_000, 0))))
	}
	if s.Stats().Associations != 1 {
		t.Error("the association is gone")
	}
}

func TestSilentPeerLosesItsAssociation(t *testing.T) {
	s, p := newPeer(t, nil)
	for range maxUnanswered {
		p.receiveHeartbeat()
	}
	eventually(t, "the association is still there", func() bool { return s.Stats().Associations == 0 })
	if s.Stats().Unanswered != 1 {
		t.Errorf("%+v", s.Stats())
	}
}

func TestAnswerWithALaterRecoveryTimeStampIsARestart(t *testing.T) {
	s, p := newPeer(t, func(c *Config) { c.Heartbeat = time.Second })
	m := p.receiveHeartbeat()
	p.send(s, message.NewHeartbeatResponse(m.Sequence(), ie.NewRecoveryTimeStamp(time.Unix(1_700_000_001, 0))))
	eventually(t, "the association is still there", func() bool { return s.Stats().Associations == 0 })
	if s.Stats().Unanswered != 0 {
		t.Error("the answer counts as none")
	}
}

func TestAnswersFromElsewhereDoNotCount(t *testing.T) {
	s, p := newPeer(t, func(c *Config) { c.Heartbeat = 500 * time.Millisecond })
	m := p.receiveHeartbeat()
	s.mu.Lock()
	stranger := netip.MustParseAddrPort("192.0.2.1:8805")
	s.answered(message.NewHeartbeatResponse(m.Sequence(), ie.NewRecoveryTimeStamp(time.Now())), stranger)
	s.answered(message.NewAssociationSetupResponse(m.Sequence(), ie.NewCause(1)), p.at)
	// As the answer to the heartbeat of another CP function with the same address would be.
	s.answered(message.NewHeartbeatResponse(m.Sequence()+1, ie.NewRecoveryTimeStamp(time.Now())), p.at)
	unanswered := 0
	for _, a := range s.associations {
		unanswered += a.unanswered
	}
	s.mu.Unlock()
	if unanswered != 1 {
		t.Errorf("%d heartbeats are without an answer, want 1", unanswered)
	}
}
