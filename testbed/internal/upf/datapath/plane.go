// Package datapath moves user packets between N3 (GTP-U) and a TUN device: one loop of system calls for each
// direction, so that packets of a direction are never reordered. The loops take no locks and allocate nothing per
// packet; everything that can grow is bounded.
package datapath

import (
	"fmt"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"slicepilot/userplane/internal/gtpu"
	"slicepilot/userplane/internal/upf/netio"
	"slicepilot/userplane/internal/upf/own"
	"slicepilot/userplane/internal/upf/session"
)

const (
	// maxBatch is how many packets one system call may move.
	maxBatch = 64
	// batchWork bounds the work that is taken out of a socket's queue at once: beyond it the queue belongs in the
	// socket, where its size is set and its overflow is counted.
	batchWork = 100 * time.Microsecond
	// slack is what a datagram may be longer than the TUN device's MTU: a GTP-U header with extension headers.
	slack = 256
)

// Config is what the data path works on. The descriptors stay the caller's to close, after Stop.
type Config struct {
	N3     *netio.Socket
	TUN    int // descriptor, non-blocking
	TUNMTU int
	Burn   time.Duration // of CPU work per packet
}

// Plane is a running data path.
type Plane struct {
	TEIDs     *session.Table[uint32]
	Addresses *session.Table[session.Address]

	config   Config
	uplink   *uplink
	downlink *downlink
	path     *path
	own      *own.Addresses
	stopping atomic.Bool
	loops    sync.WaitGroup
	failed   chan error
}

// Start starts the loops; after an error the program is to end.
func Start(config Config) (*Plane, error) {
	p := &Plane{
		TEIDs: session.NewTEIDTable(), Addresses: session.NewAddressTable(), config: config, failed: make(chan error, 3),
		path: &path{socket: config.N3},
	}
	var err error
	if p.own, err = own.Watch(); err != nil {
		return nil, err
	}
	if p.uplink, err = newUplink(p); err != nil {
		return nil, fmt.Errorf("uplink: %w", err)
	}
	if p.downlink, err = newDownlink(p); err != nil {
		return nil, fmt.Errorf("downlink: %w", err)
	}
	p.loops.Add(3)
	go p.loop("uplink", p.uplink.run)
	go p.loop("downlink", p.downlink.run)
	go p.loop("own addresses", p.own.Follow)
	return p, nil
}

func (p *Plane) loop(name string, run func() error) {
	defer p.loops.Done()
	if err := run(); err != nil {
		p.failed <- fmt.Errorf("%s: %w", name, err)
	}
}

// Failed delivers the error of a loop that could not go on, such as that of a TUN device that has been removed.
func (p *Plane) Failed() <-chan error { return p.failed }

// Stop stops the loops and waits for them.
func (p *Plane) Stop() {
	p.stopping.Store(true)
	p.uplink.waker.Wake()
	p.downlink.waker.Wake()
	p.own.Close()
	p.loops.Wait()
	p.uplink.waker.Close()
	p.downlink.waker.Close()
}

// batch is how many packets to take at once.
func (c *Config) batch() int {
	if c.Burn <= 0 {
		return maxBatch
	}
	return int(min(max(batchWork/c.Burn, 1), maxBatch))
}

// Stats is a reading of all counters.
type Stats struct {
	Uplink      Direction `json:"uplink"`
	Downlink    Direction `json:"downlink"`
	SocketDrops uint64    `json:"n3_socket_drops"`
	Path        PathStats `json:"gtpu"`
}

// Stats reads the counters.
func (p *Plane) Stats() Stats {
	return Stats{
		Uplink: p.uplink.counters.Read(), Downlink: p.downlink.counters.Read(),
		SocketDrops: p.config.N3.Drops(), Path: p.path.stats(),
	}
}

// Reason is why a packet was dropped.
type Reason int

// Reasons, in the order of reasonNames.
const (
	NoSession   Reason = iota // no session owns the TEID or the address
	NoRule                    // no PDR of the session detects the packet
	ByRule                    // the FAR says DROP or BUFF, or there is none
	Gate                      // a QER's gate is closed
	NoTunnel                  // the FAR forwards to the access side, whose tunnel is not known (yet)
	Malformed                 // not GTP-U, not IP, or shorter than it says
	Extension                 // an extension header that has to be understood and is not
	WriteFailed               // the kernel refused the packet on its way out
	OwnAddress                // from a terminal to an address of this machine, which is no data network
	numReasons
)

var reasonNames = [numReasons]string{
	"no_session", "no_rule", "far_drop", "gate", "no_tunnel", "malformed", "extension_header", "write_failed",
	"own_address",
}

// Counters count one direction. They are written by its loop and read by anyone.
type Counters struct {
	packets, bytes atomic.Uint64
	dropped        [numReasons]atomic.Uint64
}

func (c *Counters) pass(size int) {
	c.packets.Add(1)
	c.bytes.Add(uint64(size))
}

func (c *Counters) drop(why Reason) { c.dropped[why].Add(1) }

// Direction is a reading of Counters. Packets and bytes are those of the terminals' own packets that were forwarded.
type Direction struct {
	Packets uint64            `json:"packets"`
	Bytes   uint64            `json:"bytes"`
	Dropped map[string]uint64 `json:"dropped"`
}

// Read returns the counts; every reason appears, also with 0.
func (c *Counters) Read() Direction {
	d := Direction{
		Packets: c.packets.Load(), Bytes: c.bytes.Load(), Dropped: make(map[string]uint64, numReasons),
	}
	for why, name := range reasonNames {
		d.Dropped[name] = c.dropped[why].Load()
	}
	return d
}

// errorInterval is the shortest time between two answers to tunnels or headers that are not known here, so that a stray
// sender does not make this UPF a source of traffic of its own.
const errorInterval = 10 * time.Millisecond

// path is GTP-U path management (TS 29.281 clause 7): the messages that are not packets, as the uplink's loop finds them.
type path struct {
	socket    *netio.Socket
	nextError time.Time

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

func (p *path) stats() PathStats {
	return PathStats{
		EchoRequests: p.echoes.Load(), ErrorsSent: p.errorsSent.Load(), ErrorsReceived: p.errorsReceived.Load(),
		EndMarkers: p.endMarkers.Load(), Extensions: p.extensionErrors.Load(), Ignored: p.ignored.Load(),
	}
}

// message takes a message that is not a G-PDU.
func (p *path) message(b []byte, from *netio.Sockaddr) {
	switch b[1] {
	case gtpu.TypeEchoRequest:
		answer, _ := gtpu.EchoAnswer(b)
		p.send(answer, from, &p.echoes)
	case gtpu.TypeEndMarker:
		p.endMarkers.Add(1)
	case gtpu.TypeErrorIndication:
		p.errorsReceived.Add(1)
	default:
		p.ignored.Add(1)
	}
}

// unknownTunnel takes the news of a G-PDU for a TEID that is not ours.
func (p *path) unknownTunnel(teid uint32, from *netio.Sockaddr) {
	if p.mayComplain() {
		p.send(gtpu.ErrorIndication(teid, p.socket.Local.Addr()), signallingPeer(from), &p.errorsSent)
	}
}

// unsupportedExtension takes the news of an extension header that is not understood.
func (p *path) unsupportedExtension(header *gtpu.Header, from *netio.Sockaddr) {
	if p.mayComplain() {
		p.send(gtpu.SupportedExtensionHeaders(header.Seq), signallingPeer(from), &p.extensionErrors)
	}
}

func (p *path) mayComplain() bool {
	now := time.Now()
	if now.Before(p.nextError) {
		return false
	}
	p.nextError = now.Add(errorInterval)
	return true
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
