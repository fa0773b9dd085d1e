package traffic

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"sort"
	"sync"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"slicepilot/userplane/internal/inet"
	"slicepilot/userplane/internal/upf/netio"
)

// SinkOptions is how to receive.
type SinkOptions struct {
	Listen []netip.AddrPort
	// ReceiveBuffer is what the kernel may hold of a socket's packets, in bytes as it counts them.
	ReceiveBuffer int
	// MaxFlows bounds the memory: about 9 kB a flow.
	MaxFlows int
}

const (
	headLen    = MarkerLen // what is read of a packet's payload; the rest only counts
	controlLen = 64        // room for a time stamp and a drop counter
	// coalesceNs is how long to wait before reading again: packets then come in batches, and a wake-up is paid for many.
	// They carry the kernel's time stamps, so their delay does not depend on it.
	coalesceNs = 1_000_000
)

// Sink receives flows and keeps account of what has come.
type Sink struct {
	options SinkOptions
	sockets []*sinkSocket
	running sync.WaitGroup

	mu      sync.Mutex
	flows   map[uint32]*Arrivals
	foreign uint64 // packets without a marker
	refused uint64 // packets of flows beyond MaxFlows
}

// sinkSocket is one listening socket with its buffers.
type sinkSocket struct {
	fd       int
	address  netip.AddrPort
	messages [batchSize]mmsghdr
	vectors  [batchSize]unix.Iovec
	heads    [batchSize][headLen]byte
	controls [batchSize][controlLen]byte
	drops    uint32 // at the socket since it was opened, as the kernel counts them
	closing  bool   // guarded by Sink.mu
}

// NewSink opens the sockets and starts to receive.
func NewSink(options SinkOptions) (*Sink, error) {
	s := &Sink{options: options, flows: map[uint32]*Arrivals{}}
	for _, address := range options.Listen {
		socket, err := openSinkSocket(address, options.ReceiveBuffer)
		if err != nil {
			s.Close()
			return nil, err
		}
		s.sockets = append(s.sockets, socket)
		s.running.Add(1)
		go s.receive(socket)
	}
	return s, nil
}

func openSinkSocket(address netip.AddrPort, receiveBuffer int) (*sinkSocket, error) {
	bound, err := netio.Listen(address, receiveBuffer)
	if err != nil {
		return nil, err
	}
	fd := bound.FD
	if err := errors.Join(
		unix.SetNonblock(fd, false), // the first packet is waited for
		unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_TIMESTAMPNS, 1),
		unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RXQ_OVFL, 1),
	); err != nil {
		unix.Close(fd)
		return nil, fmt.Errorf("socket of %s: %w", address, err)
	}
	socket := &sinkSocket{fd: fd, address: address}
	for i := range socket.messages {
		socket.vectors[i].Base = &socket.heads[i][0]
		socket.vectors[i].SetLen(headLen)
		header := &socket.messages[i].hdr
		header.Iov = &socket.vectors[i]
		header.SetIovlen(1)
		header.Control = &socket.controls[i][0]
	}
	return socket, nil
}

// Close stops receiving; what was counted stays.
func (s *Sink) Close() {
	s.mu.Lock()
	for _, socket := range s.sockets {
		socket.closing = true
	}
	s.mu.Unlock()
	for _, socket := range s.sockets {
		_ = unix.Shutdown(socket.fd, unix.SHUT_RDWR) // wakes a blocked recvmmsg, and says ENOTCONN
	}
	s.running.Wait()
	for _, socket := range s.sockets {
		unix.Close(socket.fd)
	}
}

func (s *Sink) receive(socket *sinkSocket) {
	defer s.running.Done()
	for {
		n, errno := socket.read()
		switch {
		case errors.Is(errno, unix.EINTR):
			continue
		case errno != 0:
			return
		}
		if s.account(socket, n) {
			return
		}
		if n < batchSize {
			sleepUntil(Monotonic() + coalesceNs)
		}
	}
}

// read blocks for the first packet and takes what else is there. With MSG_TRUNC a length is the packet's, not that of
// the head that is copied.
func (k *sinkSocket) read() (int, unix.Errno) {
	for i := range k.messages {
		k.messages[i].hdr.SetControllen(controlLen)
	}
	n, _, errno := unix.Syscall6(unix.SYS_RECVMMSG, uintptr(k.fd), uintptr(unsafe.Pointer(&k.messages[0])), batchSize,
		unix.MSG_WAITFORONE|unix.MSG_TRUNC, 0, 0)
	return int(n), errno
}

// account counts a batch, and reports whether it was the last.
func (s *Sink) account(socket *sinkSocket, n int) bool {
	// Kernel time stamps are in CLOCK_REALTIME, markers in CLOCK_MONOTONIC; between steps of the former, the difference
	// is constant, and it is taken anew for every batch.
	offset := time.Now().UnixNano() - Monotonic()
	s.mu.Lock()
	defer s.mu.Unlock()
	if socket.closing {
		return true
	}
	for i := range n {
		message := &socket.messages[i]
		stampNs, drops := parseControl(socket.controls[i][:message.hdr.Controllen])
		if drops != 0 {
			socket.drops = drops
		}
		marker, ok := ParseMarker(socket.heads[i][:min(message.len, headLen)])
		if !ok {
			s.foreign++
			continue
		}
		arrivals := s.arrivals(marker.Flow)
		if arrivals == nil {
			s.refused++
			continue
		}
		arrivals.add(marker, int(message.len)+socket.headerLen(), stampNs-offset)
	}
	return false
}

// headerLen is the length of the IP and UDP headers in front of the payload, without IP options.
func (k *sinkSocket) headerLen() int {
	if k.address.Addr().Is4() {
		return inet.IPv4HeaderLen + inet.UDPHeaderLen
	}
	return inet.IPv6HeaderLen + inet.UDPHeaderLen
}

func (s *Sink) arrivals(flow uint32) *Arrivals {
	arrivals := s.flows[flow]
	if arrivals == nil && len(s.flows) < s.options.MaxFlows {
		arrivals = &Arrivals{}
		s.flows[flow] = arrivals
	}
	return arrivals
}

// parseControl finds SCM_TIMESTAMPNS and SO_RXQ_OVFL among a packet's control messages (cmsg(3)); absent ones are 0.
func parseControl(b []byte) (stampNs int64, drops uint32) {
	for len(b) >= unix.SizeofCmsghdr {
		header := (*unix.Cmsghdr)(unsafe.Pointer(&b[0]))
		length := int(header.Len)
		if length < unix.SizeofCmsghdr || length > len(b) {
			return stampNs, drops
		}
		data := b[unix.CmsgLen(0):length]
		switch {
		case header.Level != unix.SOL_SOCKET:
		case header.Type == unix.SCM_TIMESTAMPNS && len(data) >= 16:
			seconds := int64(binary.NativeEndian.Uint64(data))
			stampNs = seconds*int64(time.Second) + int64(binary.NativeEndian.Uint64(data[8:]))
		case header.Type == unix.SO_RXQ_OVFL && len(data) >= 4:
			drops = binary.NativeEndian.Uint32(data)
		}
		b = b[min(unix.CmsgSpace(length-unix.CmsgLen(0)), len(b)):]
	}
	return stampNs, drops
}

// SinkSnapshot is all that has come until a moment.
type SinkSnapshot struct {
	atNs    int64
	flows   map[uint32]Arrivals
	drops   uint64
	foreign uint64
	refused uint64
}

// FlowArrivals is what has come of a flow. Delays go from the marker's time to the kernel's at the sink: they mean
// something where sender and sink run on one machine.
type FlowArrivals struct {
	Flow       uint32  `json:"flow"`
	Packets    uint64  `json:"packets"`
	Bytes      uint64  `json:"bytes"`
	Mbps       float64 `json:"mbps"`
	Lost       int64   `json:"lost"`
	Reordered  uint64  `json:"reordered"`
	Duplicates uint64  `json:"duplicates"`
	DelayP50us float64 `json:"delay_p50_us"`
	DelayP99us float64 `json:"delay_p99_us"`
	DelayMaxus float64 `json:"delay_max_us"`
}

// SinkReport is what has come of all flows, by their ids.
type SinkReport struct {
	Flows []FlowArrivals `json:"flows"`
	// SinkDrops is how many packets the sink's own sockets had no room for; the flows count them as lost.
	SinkDrops      uint64 `json:"sink_drops"`
	ForeignPackets uint64 `json:"foreign_packets"` // without a marker
	RefusedPackets uint64 `json:"refused_packets"` // of more flows than the sink keeps account of
}

// Snapshot copies all counters.
func (s *Sink) Snapshot() SinkSnapshot {
	s.mu.Lock()
	defer s.mu.Unlock()
	snapshot := SinkSnapshot{
		atNs: Monotonic(), flows: make(map[uint32]Arrivals, len(s.flows)), foreign: s.foreign, refused: s.refused,
	}
	for flow, arrivals := range s.flows {
		snapshot.flows[flow] = *arrivals
	}
	for _, socket := range s.sockets {
		snapshot.drops += uint64(socket.drops)
	}
	return snapshot
}

// Total is all that has come; a flow's rate is that between its first and its last packet.
func (now *SinkSnapshot) Total() SinkReport {
	report := now.Since(&SinkSnapshot{})
	for i := range report.Flows {
		row, arrivals := &report.Flows[i], now.flows[report.Flows[i].Flow]
		row.Mbps = mbps(row.Bytes, arrivals.LastNs-arrivals.FirstNs)
	}
	return report
}

// Since is what has come after an earlier snapshot; rates are over the time between the two.
func (now *SinkSnapshot) Since(before *SinkSnapshot) SinkReport {
	report := SinkReport{
		Flows:     make([]FlowArrivals, 0, len(now.flows)),
		SinkDrops: now.drops - before.drops, ForeignPackets: now.foreign - before.foreign,
		RefusedPackets: now.refused - before.refused,
	}
	for flow, arrivals := range now.flows {
		earlier := before.flows[flow]
		delay := arrivals.delay.Since(&earlier.delay)
		report.Flows = append(report.Flows, FlowArrivals{
			Flow:       flow,
			Packets:    arrivals.Packets - earlier.Packets,
			Bytes:      arrivals.Bytes - earlier.Bytes,
			Mbps:       mbps(arrivals.Bytes-earlier.Bytes, now.atNs-before.atNs),
			Lost:       arrivals.Lost() - earlier.Lost(),
			Reordered:  arrivals.Reordered - earlier.Reordered,
			Duplicates: arrivals.Duplicates - earlier.Duplicates,
			DelayP50us: delay.Quantile(0.5) / 1e3,
			DelayP99us: delay.Quantile(0.99) / 1e3,
			DelayMaxus: float64(delay.Max()) / 1e3,
		})
	}
	sort.Slice(report.Flows, func(i, j int) bool { return report.Flows[i].Flow < report.Flows[j].Flow })
	return report
}

func mbps(bytes uint64, ns int64) float64 {
	if ns <= 0 {
		return 0
	}
	return 8e3 * float64(bytes) / float64(ns)
}

// windowSize is how many sequence numbers behind the newest one a packet can come and be distinguished from a duplicate: at
// 100,000 packets/s 40 ms. Later ones count as late losses that turned up, without that check.
const windowSize = 4096

// Arrivals is what has come of one flow.
type Arrivals struct {
	Packets    uint64
	Bytes      uint64 // inner IP packets
	Reordered  uint64 // came after one with a higher sequence number
	Duplicates uint64 // came twice or more; not among Packets
	FirstNs    int64  // when the first and the last packet came, in CLOCK_MONOTONIC
	LastNs     int64
	expected   uint64 // sequence numbers from 0 to the highest, of all runs
	run        uint16
	next       uint64 // the sequence number after the highest of this run
	started    bool
	seen       [windowSize / 64]uint64 // one bit for each of the last windowSize numbers
	delay      Histogram               // ns
}

// Lost is how many packets have not come: those between a run's first and the highest that came, of all runs. What was
// lost at the very end of a run cannot be known here; the sender's count tells. It is negative where packets came so
// late that they could not be distinguished from duplicates, and were.
func (a *Arrivals) Lost() int64 { return int64(a.expected) - int64(a.Packets) }

// add takes note of a packet.
func (a *Arrivals) add(m Marker, innerBytes int, atNs int64) {
	if !a.started || m.Run != a.run {
		// The sender began anew, at 0.
		a.started, a.run, a.next = true, m.Run, 0
		clear(a.seen[:])
	}
	if !a.note(m.Sequence) {
		a.Duplicates++
		return
	}
	if a.Packets == 0 {
		a.FirstNs = atNs
	}
	a.LastNs = atNs
	a.Packets++
	a.Bytes += uint64(innerBytes)
	a.delay.Add(atNs - m.SentNs)
}

// note remembers a sequence number and reports whether it is new.
func (a *Arrivals) note(sequence uint64) bool {
	if sequence >= a.next {
		a.skipTo(sequence)
		a.mark(sequence)
		return true
	}
	a.Reordered++
	if a.next-sequence > windowSize {
		return true
	}
	if a.marked(sequence) {
		a.Reordered--
		return false
	}
	a.mark(sequence)
	return true
}

// skipTo moves the window on so that it ends with sequence, which is not marked yet.
func (a *Arrivals) skipTo(sequence uint64) {
	a.expected += sequence + 1 - a.next
	if sequence-a.next >= windowSize {
		clear(a.seen[:])
	} else {
		for s := a.next; s <= sequence; s++ {
			a.seen[s/64%uint64(len(a.seen))] &^= 1 << (s % 64)
		}
	}
	a.next = sequence + 1
}

func (a *Arrivals) mark(s uint64)        { a.seen[s/64%uint64(len(a.seen))] |= 1 << (s % 64) }
func (a *Arrivals) marked(s uint64) bool { return a.seen[s/64%uint64(len(a.seen))]&(1<<(s%64)) != 0 }
