package datapath

import (
	"net/netip"
	"sync/atomic"
	"time"

	"slicepilot/userplane/internal/gtpu"
	"slicepilot/userplane/internal/upf/netio"
)

const (
	// maxPathMessages is how many path management messages may wait; more are dropped and counted.
	maxPathMessages = 64
	// errorInterval is the shortest time between two answers to tunnels or headers that are not known here, so that
	// a stray sender does not make this UPF a source of traffic of its own.
	errorInterval = 10 * time.Millisecond
)

// path is GTP-U path management (TS 29.281 clause 7): the messages that are not packets. It runs beside the uplink
// thread, which hands it what it finds.
type path struct {
	socket  *netio.Socket
	pending chan func()
	stop    chan struct{}
	// nextError belongs to the uplink loop.
	nextError int64

	echoes, errorsSent, errorsReceived, endMarkers, extensionErrors, ignored atomic.Uint64
}

// PathStats counts path management.
type PathStats struct {
	EchoRequests   uint64 `json:"echo_requests"`
	ErrorsSent     uint64 `json:"error_indications_sent"`
	ErrorsReceived uint64 `json:"error_indications_received"`
	EndMarkers     uint64 `json:"end_markers"`
	Extensions     uint64 `json:"supported_extension_headers_sent"`
	Ignored        uint64 `json:"ignored"`
}

func newPath(socket *netio.Socket) *path {
	return &path{socket: socket, pending: make(chan func(), maxPathMessages), stop: make(chan struct{})}
}

func (p *path) stats() PathStats {
	return PathStats{
		EchoRequests: p.echoes.Load(), ErrorsSent: p.errorsSent.Load(), ErrorsReceived: p.errorsReceived.Load(),
		EndMarkers: p.endMarkers.Load(), Extensions: p.extensionErrors.Load(), Ignored: p.ignored.Load(),
	}
}

// message takes a message that is not a G-PDU, from the uplink loop.
func (p *path) message(b []byte, from *netio.Sockaddr) {
	if len(p.pending) == cap(p.pending) { // a flood is not to be copied first
		p.ignored.Add(1)
		return
	}
	octets, sender := append([]byte(nil), b...), *from
	p.hand(func() { p.received(octets, &sender) })
}

// unknownTunnel takes the news of a G-PDU for a TEID that is not ours, from the uplink loop.
func (p *path) unknownTunnel(teid uint32, from *netio.Sockaddr) {
	if p.mayComplain() {
		peer := signallingPeer(from)
		p.hand(func() { p.send(gtpu.ErrorIndication(teid, p.socket.Local.Addr()), peer, &p.errorsSent) })
	}
}

// unsupportedExtension takes the news of an extension header that is not understood, from the uplink loop.
func (p *path) unsupportedExtension(header *gtpu.Header, from *netio.Sockaddr) {
	if p.mayComplain() {
		seq, peer := header.Seq, signallingPeer(from)
		p.hand(func() { p.send(gtpu.SupportedExtensionHeaders(seq), peer, &p.extensionErrors) })
	}
}

func (p *path) mayComplain() bool {
	now := monotonicNs()
	if now < p.nextError {
		return false
	}
	p.nextError = now + int64(errorInterval)
	return true
}

func (p *path) hand(task func()) {
	select {
	case p.pending <- task:
	default:
		p.ignored.Add(1)
	}
}

func (p *path) run() error {
	for {
		select {
		case <-p.stop:
			return nil
		case task := <-p.pending:
			task()
		}
	}
}

func (p *path) received(b []byte, from *netio.Sockaddr) {
	switch b[1] {
	case gtpu.TypeEchoRequest:
		if answer, ok := gtpu.EchoAnswer(b); ok {
			p.send(answer, from, &p.echoes)
			return
		}
	case gtpu.TypeEndMarker:
		p.endMarkers.Add(1)
		return
	case gtpu.TypeErrorIndication:
		p.errorsReceived.Add(1)
		return
	}
	p.ignored.Add(1)
}

// signallingPeer is where a message that is not an answer goes: the registered port (clause 4.4.2).
func signallingPeer(from *netio.Sockaddr) *netio.Sockaddr {
	to := netio.SockaddrOf(netip.AddrPortFrom(from.AddrPort().Addr(), gtpu.Port))
	return &to
}

func (p *path) send(b []byte, to *netio.Sockaddr, count *atomic.Uint64) {
	if b != nil && p.socket.SendTo(b, to) == nil {
		count.Add(1)
		return
	}
	p.ignored.Add(1)
}
