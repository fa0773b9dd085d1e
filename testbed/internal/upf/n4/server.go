// Package n4 is the UPF's side of N4: PFCP (3GPP TS 29.244) over UDP, turning what a CP function asks for into rules
// of the data path.
//
// One loop reads requests and answers them; that is the path a Session Modification takes. Heartbeats are sent by
// another: one lock covers all state of the control plane. No packet ever waits for it.
package n4

import (
	"fmt"
	"log"
	"math/rand/v2"
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
	// maxUnanswered is how many heartbeats in a row a CP function may leave without an answer.
	maxUnanswered = 3
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
	Log         *log.Logger
}

// Server serves N4.
type Server struct {
	config   Config
	plane    *datapath.Plane
	started  time.Time
	waker    *netio.Waker
	stopping atomic.Bool
	stopped  chan struct{}
	loops    sync.WaitGroup

	mu           sync.Mutex // covers what follows
	stats        Stats
	associations map[string]*association
	sessions     map[uint64]*record
	replies      *pfcp.Replay
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
	if config.Heartbeat > 0 {
		s.loops.Add(1)
		go s.keepBeating()
	}
	return s, nil
}

// newServer starts TEIDs, SEIDs and sequence numbers at random: after a restart, packets and messages of the former life
// meet no session instead of somebody else's.
func newServer(config Config, plane *datapath.Plane) *Server {
	return &Server{
		config: config, plane: plane, started: time.Now(),
		associations: map[string]*association{}, sessions: map[uint64]*record{},
		replies: pfcp.NewReplay(maxReplies, replayFor), stopped: make(chan struct{}),
		nextTEID: rand.Uint32(), nextSEID: rand.Uint64(), nextSeq: rand.Uint32() & maxSeq,
	}
}

// Stop stops serving. Sessions are left as they are; the data path is the caller's to stop.
func (s *Server) Stop() {
	s.stopping.Store(true)
	close(s.stopped)
	s.waker.Wake()
	s.loops.Wait()
	s.waker.Close()
}

// serve reads and answers until Stop.
func (s *Server) serve() {
	defer s.loops.Done()
	receiver := netio.NewReceiver(s.config.Socket, 1, maxMessage)
	for !s.stopping.Load() {
		_, err := receiver.Receive()
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
			datagram, _ := receiver.Datagram(0)
			from := receiver.Sender(0)
			if answer := s.handle(datagram, from.AddrPort()); answer != nil {
				s.send(answer, from)
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
	s.mu.Lock()
	defer s.mu.Unlock()
	header, err := pfcp.PeekHeader(b)
	if err != nil {
		s.stats.Malformed++
	}
	if err == pfcp.ErrVersion {
		return pfcp.VersionNotSupported(header)
	}
	if err != nil {
		return nil
	}
	now := time.Now()
	if answer := s.replies.Answer(from, header, b, now); answer != nil {
		s.stats.Repeated++
		return answer
	}
	answer, err := s.dispatch(b, from)
	if err != nil {
		s.stats.Malformed++
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
	s.stats.Messages++
	s.stats.Ignored += uint64(ignored)
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
	return ie.NewNodeIDHeuristic(s.config.NodeID.String())
}

// recoveryTimeStamp tells a restart from silence: it is when this process started.
func (s *Server) recoveryTimeStamp() *ie.IE { return ie.NewRecoveryTimeStamp(s.started) }

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
	stats := s.stats
	stats.Associations, stats.Sessions = len(s.associations), len(s.sessions)
	return stats
}

// newTEID returns a TEID that no session has. 0 is never one (TS 29.281 clause 5.1).
func (s *Server) newTEID() uint32 {
	for {
		s.nextTEID++
		if s.nextTEID != 0 && s.plane.TEIDs.Get(s.nextTEID) == nil {
			return s.nextTEID
		}
	}
}

// newSEID returns a SEID that no session has; 0 means "unknown" in a header (clause 7.2.2.4.2).
func (s *Server) newSEID() uint64 {
	for {
		s.nextSEID++
		if _, isTaken := s.sessions[s.nextSEID]; s.nextSEID != 0 && !isTaken {
			return s.nextSEID
		}
	}
}
