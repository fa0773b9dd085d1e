// Package n4 is the UPF's side of N4: PFCP (3GPP TS 29.244) over UDP, turning what a CP function asks for into rules
// of the data path.
//
// One loop reads requests and answers them; that is the path a Session Modification takes. Timers run on other
// goroutines: one lock covers all state of the control plane. No packet ever waits for it.
package n4

import (
	"fmt"
	"log"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"github.com/wmnsk/go-pfcp/ie"
	"github.com/wmnsk/go-pfcp/message"
	"golang.org/x/sys/unix"

	"slicepilot/userplane/internal/pfcp"
	"slicepilot/userplane/internal/upf/datapath"
	"slicepilot/userplane/internal/upf/netio"
)

const (
	// DefaultT1 is how long an answer is waited for before a request is sent again, attempts is how often it is sent
	// in all (T1 and N1 of clause 6.4).
	DefaultT1 = 3 * time.Second
	attempts  = 3
	// replayFor and maxReplies bound the memory of answers: a peer repeats its requests for about T1 times N1.
	replayFor  = 20 * time.Second
	maxReplies = 4096
	// receivePause keeps an error that lasts from filling the log and the CPU.
	receivePause = 10 * time.Millisecond
	// maxMessage is the longest UDP datagram.
	maxMessage = 1 << 16
)

// Config is what the server works with. The socket stays the caller's to close, after Stop.
type Config struct {
	Socket      *netio.Socket
	NodeID      netip.Addr
	N3          netip.Addr // the address that goes into F-TEIDs
	MaxSessions int
	PeerPort    uint16        // where requests to a CP function go; 0: the port that it sent its last request from
	Heartbeat   time.Duration // between heartbeats to a CP function; 0: none are sent
	T1          time.Duration // DefaultT1 in service
	Log         *log.Logger
}

// Server serves N4.
type Server struct {
	config   Config
	plane    *datapath.Plane
	started  time.Time
	waker    *netio.Waker
	stopping atomic.Bool
	loops    sync.WaitGroup
	counters counters

	mu           sync.Mutex // covers what follows
	associations map[string]*association
	sessions     map[uint64]*record
	replies      *pfcp.Replay
	pending      map[uint32]*association // whose heartbeat of this sequence number was not answered yet
	nextSeq      uint32
	nextSEID     uint64
	nextTEID     uint32
}

// Start starts serving.
func Start(config Config, plane *datapath.Plane) (*Server, error) {
	waker, err := netio.NewWaker()
	if err != nil {
		return nil, err
	}
	s := newServer(config, plane)
	s.waker = waker
	s.loops.Add(1)
	go s.serve()
	return s, nil
}

func newServer(config Config, plane *datapath.Plane) *Server {
	s := &Server{
		config: config, plane: plane, started: time.Now(),
		associations: map[string]*association{}, sessions: map[uint64]*record{},
		replies: pfcp.NewReplay(maxReplies, replayFor), pending: map[uint32]*association{},
	}
	s.seedIdentifiers()
	return s
}

// Stop stops serving. Sessions are left as they are; the data path is the caller's to stop.
func (s *Server) Stop() {
	s.stopping.Store(true)
	s.waker.Wake()
	s.loops.Wait()
	s.waker.Close()
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, a := range s.associations {
		a.stopTimer()
	}
}

// serve reads and answers until Stop.
func (s *Server) serve() {
	defer s.loops.Done()
	var yielder netio.Yielder
	buffer := make([]byte, maxMessage)
	var from netio.Sockaddr
	for !s.stopping.Load() {
		yielder.Yield()
		n, err := s.config.Socket.ReceiveFrom(buffer, &from)
		switch {
		case err == unix.EAGAIN:
			if err := s.waker.Wait(s.config.Socket.FD); err != nil {
				s.config.Log.Printf("N4: %v", err)
				return
			}
		case err != nil:
			// What an earlier datagram has caused (ICMP), or a shortage of the kernel's: both pass.
			s.config.Log.Printf("N4: receiving: %v", err)
			time.Sleep(receivePause)
		default:
			if answer := s.handle(buffer[:min(n, len(buffer))], from.AddrPort()); answer != nil {
				s.send(answer, &from)
			}
		}
	}
}

func (s *Server) send(b []byte, to *netio.Sockaddr) {
	if err := s.config.Socket.SendTo(b, to); err != nil {
		s.config.Log.Printf("N4: sending to %s: %v", to.AddrPort(), err)
	}
}

// handle takes one datagram and returns the answer to it, nil for none.
func (s *Server) handle(b []byte, from netip.AddrPort) []byte {
	header, err := pfcp.PeekHeader(b)
	if err == pfcp.ErrVersion {
		s.counters.malformed.Add(1)
		return s.versionNotSupported(header)
	}
	if err != nil {
		s.counters.malformed.Add(1)
		return nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	now := time.Now()
	if answer := s.replies.Answer(from, header, b, now); answer != nil {
		s.counters.repeated.Add(1)
		return answer
	}
	answer, err := s.dispatch(b, from)
	if err != nil {
		s.counters.malformed.Add(1)
		return nil
	}
	if answer == nil {
		return nil
	}
	octets, err := pfcp.Encode(answer)
	if err != nil {
		s.config.Log.Printf("N4: %v", err)
		return nil
	}
	s.replies.Remember(from, header, b, octets, now)
	return octets
}

// versionNotSupported answers another version of PFCP, but not such an answer (clause 7.6.2).
func (s *Server) versionNotSupported(header pfcp.Header) []byte {
	if header.Type == message.MsgTypeVersionNotSupportedResponse {
		return nil
	}
	octets, err := pfcp.Encode(message.NewVersionNotSupportedResponse(header.Seq))
	if err != nil {
		return nil
	}
	return octets
}

// dispatch carries a message out. A message whose elements cannot be read comes back as an error; nothing has changed
// then, because sessions change only after everything has been read.
func (s *Server) dispatch(b []byte, from netip.AddrPort) (answer message.Message, err error) {
	defer func() {
		if r := recover(); r != nil {
			answer, err = nil, fmt.Errorf("malformed: %v", r)
		}
	}()
	// The library keeps references into the octets, and sessions may outlive the buffer.
	octets, ignored := pfcp.WithoutUnreadable(append([]byte(nil), b...))
	m, err := pfcp.Decode(octets)
	if err != nil {
		return nil, err
	}
	s.counters.received.Add(1)
	s.counters.ignored.Add(uint64(ignored))
	return s.carryOut(m, from), nil
}

// carryOut does what a message says and returns the answer, nil for none. The library may panic on elements that are
// malformed inside.
func (s *Server) carryOut(m message.Message, from netip.AddrPort) message.Message {
	switch m := m.(type) {
	case *message.HeartbeatRequest:
		return s.heartbeat(m, from)
	case *message.AssociationSetupRequest:
		return s.associate(m, from)
	case *message.AssociationUpdateRequest:
		return s.updateAssociation(m, from)
	case *message.AssociationReleaseRequest:
		return s.release(m)
	case *message.SessionEstablishmentRequest:
		return s.establish(m, from)
	case *message.SessionModificationRequest:
		return s.modify(m)
	case *message.SessionDeletionRequest:
		return s.delete(m)
	case *message.PFDManagementRequest:
		return message.NewPFDManagementResponse(m.Sequence(), ie.NewCause(ie.CauseServiceNotSupported), nil)
	case *message.SessionSetDeletionRequest:
		return message.NewSessionSetDeletionResponse(m.Sequence(), s.nodeID(), ie.NewCause(ie.CauseServiceNotSupported), nil)
	default:
		s.answered(m, from)
		return nil
	}
}

// nodeID is our Node ID element.
func (s *Server) nodeID() *ie.IE {
	if s.config.NodeID.Is4() {
		return ie.NewNodeID(s.config.NodeID.String(), "", "")
	}
	return ie.NewNodeID("", s.config.NodeID.String(), "")
}

// recoveryTimeStamp tells a restart from silence: it is when this process started.
func (s *Server) recoveryTimeStamp() *ie.IE { return ie.NewRecoveryTimeStamp(s.started) }

// counters count messages.
type counters struct{ received, repeated, malformed, ignored, lost atomic.Uint64 }

// Stats is a reading of the server's counters.
type Stats struct {
	Associations int    `json:"associations"`
	Sessions     int    `json:"sessions"`
	Messages     uint64 `json:"messages"`
	Repeated     uint64 `json:"repeated"`  // requests answered from memory
	Malformed    uint64 `json:"malformed"` // messages that could not be read
	Ignored      uint64 `json:"ignored"`   // optional elements that could not, of messages that were
	Unanswered   uint64 `json:"unanswered"`
}

// Stats reads the counters.
func (s *Server) Stats() Stats {
	s.mu.Lock()
	defer s.mu.Unlock()
	return Stats{
		Associations: len(s.associations), Sessions: len(s.sessions), Messages: s.counters.received.Load(),
		Repeated: s.counters.repeated.Load(), Malformed: s.counters.malformed.Load(), Ignored: s.counters.ignored.Load(),
		Unanswered: s.counters.lost.Load(),
	}
}
