package n4

import (
	"net"
	"net/netip"
	"sync"
	"testing"
	"time"

	"github.com/wmnsk/go-pfcp/ie"
	"github.com/wmnsk/go-pfcp/message"
)

// stubUPF is the far end of N4: it accepts every request, and each test bends it where it looks. What real and
// independently built UPFs make of our messages is tested in tests/testbed.
type stubUPF struct {
	t    *testing.T
	conn *net.UDPConn

	mu       sync.Mutex
	recovery time.Time
	features uint8
	nextSEID uint64
	requests []message.Message
	answer   map[uint8]func(message.Message) message.Message // overrides; nil answers are not sent
}

func newStub(t *testing.T) *stubUPF {
	t.Helper()
	conn, err := net.ListenUDP("udp4", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)})
	if err != nil {
		t.Fatal(err)
	}
	const ftup = 0x10
	s := &stubUPF{
		t: t, conn: conn, recovery: time.Now().Add(-time.Hour), features: ftup, nextSEID: 100,
		answer: map[uint8]func(message.Message) message.Message{},
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		s.serve()
	}()
	t.Cleanup(func() {
		conn.Close()
		<-done
	})
	return s
}

func (s *stubUPF) address() netip.AddrPort { return s.conn.LocalAddr().(*net.UDPAddr).AddrPort() }

func (s *stubUPF) serve() {
	buffer := make([]byte, 65535)
	for {
		n, from, err := s.conn.ReadFromUDP(buffer)
		if err != nil {
			return
		}
		request, err := message.Parse(append([]byte(nil), buffer[:n]...))
		if err != nil {
			s.t.Errorf("the SMF sent %x: %v", buffer[:n], err)
			continue
		}
		s.mu.Lock()
		s.requests = append(s.requests, request)
		reply := s.reply(request)
		s.mu.Unlock()
		if reply != nil {
			s.send(reply, from)
		}
	}
}

func (s *stubUPF) send(m message.Message, to *net.UDPAddr) {
	encoded := make([]byte, m.MarshalLen())
	if err := m.MarshalTo(encoded); err != nil {
		s.t.Errorf("stub: %v", err)
	}
	_, _ = s.conn.WriteToUDP(encoded, to)
}

func (s *stubUPF) reply(request message.Message) message.Message {
	if override, ok := s.answer[request.MessageType()]; ok {
		return override(request)
	}
	return s.accept(request)
}

func (s *stubUPF) accept(request message.Message) message.Message {
	ok, node := ie.NewCause(ie.CauseRequestAccepted), ie.NewNodeID("127.0.0.1", "", "")
	sequence := request.Sequence()
	switch m := request.(type) {
	case *message.HeartbeatRequest:
		return message.NewHeartbeatResponse(sequence, ie.NewRecoveryTimeStamp(s.recovery))
	case *message.AssociationSetupRequest:
		return message.NewAssociationSetupResponse(sequence, node, ok, ie.NewRecoveryTimeStamp(s.recovery),
			ie.NewUPFunctionFeatures(s.features, 0))
	case *message.AssociationReleaseRequest:
		return message.NewAssociationReleaseResponse(sequence, node, ok)
	case *message.SessionEstablishmentRequest:
		cp, err := m.CPFSEID.FSEID()
		if err != nil {
			s.t.Errorf("CP F-SEID: %v", err)
			return nil
		}
		s.nextSEID++
		created := ie.NewCreatedPDR(ie.NewPDRID(uplinkRule), ie.NewFTEID(1, 0xabc, net.IPv4(10, 9, 9, 9), nil, 0))
		return message.NewSessionEstablishmentResponse(0, 0, cp.SEID, sequence, 0, node, ok,
			ie.NewFSEID(s.nextSEID, net.IPv4(127, 0, 0, 1), nil), created)
	case *message.SessionModificationRequest:
		return message.NewSessionModificationResponse(0, 0, m.SEID(), sequence, 0, ok)
	case *message.SessionDeletionRequest:
		return message.NewSessionDeletionResponse(0, 0, m.SEID(), sequence, 0, ok)
	}
	return nil
}

// set changes the stub between requests.
func (s *stubUPF) set(change func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	change()
}

// override has a test answer one type of request.
func (s *stubUPF) override(messageType uint8, answer func(message.Message) message.Message) {
	s.set(func() { s.answer[messageType] = answer })
}

// received are the requests of one type so far.
func (s *stubUPF) received(messageType uint8) []message.Message {
	s.mu.Lock()
	defer s.mu.Unlock()
	var result []message.Message
	for _, request := range s.requests {
		if request.MessageType() == messageType {
			result = append(result, request)
		}
	}
	return result
}

// events collects an endpoint's events.
type events struct{ channel chan Event }

func (e *events) await(t *testing.T, name string) Event {
	t.Helper()
	deadline := time.After(5 * time.Second)
	for {
		select {
		case event := <-e.channel:
			if event.Event == name {
				return event
			}
		case <-deadline:
			t.Fatalf("no event %q", name)
		}
	}
}

func (e *events) none(t *testing.T, name string, wait time.Duration) {
	t.Helper()
	deadline := time.After(wait)
	for {
		select {
		case event := <-e.channel:
			if event.Event == name {
				t.Fatalf("unexpected event %+v", event)
			}
		case <-deadline:
			return
		}
	}
}

func newEndpoint(t *testing.T, change func(*Config)) (*Endpoint, *events) {
	t.Helper()
	seen := &events{make(chan Event, 1000)}
	config := Config{
		Local: netip.MustParseAddrPort("127.0.0.1:0"), T1: 200 * time.Millisecond, N1: 2,
		OnEvent: func(event Event) { seen.channel <- event },
	}
	if change != nil {
		change(&config)
	}
	endpoint, err := Listen(config)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(endpoint.Close)
	return endpoint, seen
}

func newPeer(t *testing.T, endpoint *Endpoint, stub *stubUPF) *Peer {
	t.Helper()
	peer, err := endpoint.Peer(stub.address())
	if err != nil {
		t.Fatal(err)
	}
	return peer
}
