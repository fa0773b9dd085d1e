// Package n4 is the control plane's end of N4: what an SMF does with PFCP (3GPP TS 29.244) towards its UPFs.
//
// One Endpoint (a UDP socket) serves any number of Peers (UPFs). A Peer holds the association and its Sessions, keeps
// heartbeats going, and sets everything up again when the UPF has restarted. Messages are built and read with
// github.com/wmnsk/go-pfcp; transport (retransmission, matching of answers, duplicates) is here, because the time from
// a request's first octet sent to its answer received is a result of this program.
//
// Clauses in comments are those of TS 29.244 Release 17 where no other document is named.
package n4

import (
	"bytes"
	"errors"
	"fmt"
	"net/netip"
	"sync"
	"time"

	"github.com/wmnsk/go-pfcp/ie"
	"github.com/wmnsk/go-pfcp/message"

	"slicepilot/userplane/internal/pfcp"
)

// Config is what an Endpoint needs to know.
type Config struct {
	// Local is where the socket is bound; the address may be unspecified.
	Local netip.AddrPort
	// NodeID names this SMF: an IP address or a domain name. Empty: the address each UPF sees.
	NodeID string
	// T1 is the time between transmissions of a request, N1 how often it is repeated (clause 6.4).
	T1 time.Duration
	N1 int
	// Heartbeat is the time between Heartbeat Requests to each associated UPF; 0: none are sent.
	Heartbeat time.Duration
	// OnEvent receives unsolicited events. It must not block.
	OnEvent func(Event)
}

// Event is something that happened unasked.
type Event struct {
	Event   string `json:"event"`
	UPF     string `json:"upf,omitempty"`
	Session string `json:"session,omitempty"`
	Detail  string `json:"detail,omitempty"`
	Count   int    `json:"sessions,omitempty"`
	Failed  int    `json:"failed,omitempty"`
}

// Endpoint is this SMF's N4 socket.
type Endpoint struct {
	config   Config
	retries  retries
	socket   *socket
	recovery time.Time // this entity's Recovery Time Stamp
	closed   chan struct{}
	running  sync.WaitGroup

	mu       sync.Mutex
	sequence uint32
	pending  map[exchangeKey]*pending
	peers    map[netip.AddrPort]*Peer
	nextSEID uint64
	replies  *pfcp.Replay
}

// Listen opens the socket and starts answering.
func Listen(config Config) (*Endpoint, error) {
	socket, err := listen(config.Local)
	if err != nil {
		return nil, err
	}
	now := time.Now()
	e := &Endpoint{
		config:   config,
		retries:  retries{config.T1, config.N1},
		socket:   socket,
		recovery: now,
		closed:   make(chan struct{}),
		pending:  map[exchangeKey]*pending{},
		peers:    map[netip.AddrPort]*Peer{},
		replies:  pfcp.NewReplay(replyCacheSize, replyTime),
		// Neither must repeat what the same address used before a restart (clauses 6.4 and 8.2.37).
		sequence: uint32(now.UnixMilli()) & maxSequence,
		nextSEID: uint64(now.Unix()) << 24,
	}
	e.running.Add(1)
	go e.readLoop()
	return e, nil
}

// Local is the address the socket is bound to.
func (e *Endpoint) Local() netip.AddrPort { return e.socket.Local }

// Close stops heartbeats and the reader and closes the socket. It sends nothing: see Peer.Shutdown.
func (e *Endpoint) Close() {
	close(e.closed)
	e.socket.wake()
	e.running.Wait()
	e.socket.close()
}

// Peer is the UPF at an address, known from now on.
func (e *Endpoint) Peer(address netip.AddrPort) (*Peer, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if peer := e.peers[address]; peer != nil {
		return peer, nil
	}
	if e.socket.Local.Addr().Is4() && !address.Addr().Is4() {
		return nil, fmt.Errorf("UPF %s is out of reach of a socket bound to %s", address, e.socket.Local)
	}
	local := e.socket.Local.Addr()
	if local.IsUnspecified() {
		var err error
		if local, err = localAddressTowards(address); err != nil {
			return nil, err
		}
	}
	peer := &Peer{endpoint: e, address: address, local: local, sessions: map[string]*Session{}}
	e.peers[address] = peer
	if e.config.Heartbeat > 0 {
		e.spawn(peer.beat)
	}
	return peer, nil
}

// Peers are all UPFs known, in no order.
func (e *Endpoint) Peers() []*Peer {
	e.mu.Lock()
	defer e.mu.Unlock()
	result := make([]*Peer, 0, len(e.peers))
	for _, peer := range e.peers {
		result = append(result, peer)
	}
	return result
}

func (e *Endpoint) peer(address netip.AddrPort) *Peer {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.peers[address]
}

func (e *Endpoint) allocateSEID() uint64 {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.nextSEID++
	return e.nextSEID
}

func (e *Endpoint) emit(event Event) {
	if e.config.OnEvent != nil {
		e.config.OnEvent(event)
	}
}

// spawn runs a task that Close waits for.
func (e *Endpoint) spawn(task func()) {
	e.running.Add(1)
	go func() {
		defer e.running.Done()
		task()
	}()
}

func (e *Endpoint) readLoop() {
	defer e.running.Done()
	for {
		b, from, at, err := e.socket.receive()
		if err != nil {
			select {
			case <-e.closed:
			default:
				e.emit(Event{Event: "socket_error", Detail: err.Error()})
			}
			return
		}
		// The decoded message refers to the octets it was decoded from.
		e.handle(bytes.Clone(b), from, at)
	}
}

func (e *Endpoint) handle(b []byte, from netip.AddrPort, at time.Time) {
	header, err := pfcp.PeekHeader(b)
	switch {
	case errors.Is(err, pfcp.ErrVersion):
		if answer := pfcp.VersionNotSupported(header); answer != nil {
			_ = e.socket.send(answer, from)
		}
		return
	case err != nil:
		return // shorter than its header: dropped (clause 7.6.2)
	}
	m, err := pfcp.Decode(b)
	if err != nil {
		e.emit(Event{Event: "malformed", UPF: from.String(), Detail: err.Error()})
		return
	}
	if pfcp.IsAnswer(m.MessageType()) {
		e.deliver(from, m, at)
		return
	}
	e.answer(m, header, b, from, at)
}

// replyCacheSize is how many of the last answers are kept to answer repeated requests, and replyTime for how long: more
// than UPFs send within T1 times N1.
const (
	replyCacheSize = 256
	replyTime      = 20 * time.Second
)

// answer serves a UPF's request; one that comes again has not seen its answer, and gets the same (clause 6.4). Only the
// reader calls it.
func (e *Endpoint) answer(request message.Message, header pfcp.Header, b []byte, from netip.AddrPort, at time.Time) {
	if reply := e.replies.Answer(from, header, b, at); reply != nil {
		_ = e.socket.send(reply, from)
		return
	}
	reply := e.reply(request, from)
	if reply == nil {
		return
	}
	encoded, err := pfcp.Encode(reply)
	if err != nil {
		e.emit(Event{Event: "error", UPF: from.String(), Detail: err.Error()})
		return
	}
	e.replies.Remember(from, header, b, encoded, at)
	// What cannot be sent now will be asked for again.
	_ = e.socket.send(encoded, from)
}

// reply is the answer to a request; nil: none, because an SMF is not asked such things.
func (e *Endpoint) reply(request message.Message, from netip.AddrPort) message.Message {
	peer := e.peer(from)
	switch m := request.(type) {
	case *message.HeartbeatRequest:
		if peer != nil {
			peer.heard(m.RecoveryTimeStamp)
		}
		return message.NewHeartbeatResponse(m.Sequence(), ie.NewRecoveryTimeStamp(e.recovery))
	case *message.AssociationSetupRequest:
		return e.replyToAssociation(m, peer)
	case *message.SessionReportRequest:
		return e.replyToSessionReport(m, from)
	}
	return nil
}

// replyToAssociation accepts an association that a known UPF asks for (clause 6.2.6.3).
func (e *Endpoint) replyToAssociation(m *message.AssociationSetupRequest, peer *Peer) message.Message {
	cause := ie.CauseRequestRejected
	if peer != nil {
		cause = ie.CauseRequestAccepted
		peer.invited(m.RecoveryTimeStamp, m.UPFunctionFeatures)
	}
	return message.NewAssociationSetupResponse(m.Sequence(),
		e.nodeID(peer), ie.NewCause(cause), ie.NewRecoveryTimeStamp(e.recovery))
}

// replyToSessionReport acknowledges a report on a session (clause 7.5.8), which is of no use here.
func (e *Endpoint) replyToSessionReport(m *message.SessionReportRequest, from netip.AddrPort) message.Message {
	peer, session := e.session(m.SEID())
	if session == nil || peer.address.Addr() != from.Addr() {
		// The header's SEID is then 0: the peer's is not known (clause 7.2.2.4.2).
		return message.NewSessionReportResponse(0, 0, 0, m.Sequence(), 0, ie.NewCause(ie.CauseSessionContextNotFound))
	}
	return message.NewSessionReportResponse(0, 0, session.upSEID.Load(), m.Sequence(), 0,
		ie.NewCause(ie.CauseRequestAccepted))
}

// nodeID is how this SMF names itself to a peer.
func (e *Endpoint) nodeID(peer *Peer) *ie.IE {
	if e.config.NodeID == "" && peer != nil {
		return ie.NewNodeIDHeuristic(peer.local.String())
	}
	if e.config.NodeID == "" {
		return ie.NewNodeIDHeuristic(e.socket.Local.Addr().String())
	}
	return ie.NewNodeIDHeuristic(e.config.NodeID)
}
