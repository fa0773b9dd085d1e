package n4

import (
	"errors"
	"fmt"
	"net/netip"
	"sync"
	"time"

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
func (e *Endpoint) Local() netip.AddrPort { return e.socket.local }

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
	if e.socket.local.Addr().Is4() && !address.Addr().Is4() {
		return nil, fmt.Errorf("UPF %s is out of reach of a socket bound to %s", address, e.socket.local)
	}
	local := e.socket.local.Addr()
	if local.IsUnspecified() {
		var err error
		if local, err = localAddressTowards(address); err != nil {
			return nil, err
		}
	}
	peer := &Peer{endpoint: e, address: address, local: local, sessions: map[string]*Session{}}
	e.peers[address] = peer
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
	buffer := make([]byte, maxDatagram)
	for {
		n, from, at, err := e.socket.receive(buffer)
		if err != nil {
			select {
			case <-e.closed:
			default:
				e.emit(Event{Event: "socket_error", Detail: err.Error()})
			}
			return
		}
		// The decoded message refers to the octets it was decoded from.
		e.handle(append([]byte(nil), buffer[:n]...), from, at)
	}
}

func (e *Endpoint) handle(b []byte, from netip.AddrPort, at time.Time) {
	header, err := pfcp.PeekHeader(b)
	switch {
	case errors.Is(err, pfcp.ErrVersion):
		e.rejectVersion(header, from)
		return
	case err != nil:
		return // shorter than its header: dropped (clause 7.6.2)
	}
	m, err := pfcp.Decode(b)
	if err != nil {
		e.emit(Event{Event: "malformed", UPF: from.String(), Detail: err.Error()})
		return
	}
	if isAnswer(m.MessageType()) {
		e.deliver(from, m, at)
		return
	}
	e.answer(m, header, b, from, at)
}

// isAnswer tells answers from requests by the message type (clause 7.3): up to Version Not Supported Response (11),
// which has no request of its own, answers are even; after it they are odd.
func isAnswer(messageType uint8) bool {
	if messageType < message.MsgTypeVersionNotSupportedResponse {
		return messageType%2 == 0
	}
	return messageType%2 == 1
}
