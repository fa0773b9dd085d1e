package datapath

import (
	"os"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"slicepilot/userplane/internal/gtpu"
	"slicepilot/userplane/internal/upf/netio"
	"slicepilot/userplane/internal/upf/session"
)

// downlink takes packets from the TUN device and sends them into the tunnels that their rules say.
type downlink struct {
	addresses *session.Table[session.Address]
	events    chan<- session.Event
	tun       int
	burn      time.Duration // if any, every packet is sent at once
	burner    *Burner
	waker     *netio.Waker
	stopping  *atomic.Bool
	counters  Counters
	tx        *netio.Transmitter
	slots     [][]byte // one per datagram of a batch: room for a header, then the packet

	held int // octets in all sessions' buffers

	mail struct {
		sync.Mutex
		waiting  atomic.Bool
		commands []command
	}
}

// headroom is kept before every packet for the longest header that is written.
const headroom = gtpu.GPDULen

// maxHeld bounds held: what all sessions may buffer together, whatever each of them may.
const maxHeld = 32 << 20

// command is something the control plane asks of the downlink loop, which owns the buffers and the order of what
// is sent. One field is set.
type command struct {
	flush, discard *session.Session
	endMarker      *session.FAR
}

func newDownlink(p *Plane) (*downlink, error) {
	waker, err := netio.NewWaker()
	if err != nil {
		return nil, err
	}
	batch := p.config.batch()
	d := &downlink{
		addresses: p.Addresses, events: p.Events, tun: p.config.TUN, waker: waker, stopping: &p.stopping,
		tx: netio.NewTransmitter(p.config.N3, batch), slots: make([][]byte, batch),
		burn: p.config.Burn,
	}
	for i := range d.slots {
		d.slots[i] = make([]byte, headroom+p.config.TUNMTU)
	}
	return d, nil
}

func (d *downlink) run() error {
	d.burner = NewBurner(d.burn)
	var yielder netio.Yielder
	for !d.stopping.Load() {
		yielder.Yield()
		if d.mail.waiting.Load() {
			d.obey()
		}
		slot := d.slots[d.tx.Staged()]
		n, errno := readPacket(d.tun, slot[headroom:])
		switch errno {
		case 0:
			d.packet(slot[:headroom+n])
			if d.burn > 0 || d.tx.Full() {
				d.send()
			}
		case unix.EAGAIN:
			d.send()
			if err := d.waker.Wait(d.tun); err != nil {
				return err
			}
		case unix.EINTR:
		default:
			return os.NewSyscallError("read TUN", errno)
		}
	}
	return nil
}

// packet handles one packet, which stands behind its headroom. A packet to be sent is staged with its slot.
func (d *downlink) packet(slot []byte) {
	packet, ok := session.ParsePacket(slot[headroom:])
	if !ok {
		d.counters.drop(Malformed)
		return
	}
	s := d.addresses.Get(packet.Dst)
	if s == nil && !packet.Dst.IsIPv4() {
		s = d.addresses.Get(packet.Dst.Prefix64())
	}
	if s == nil {
		d.counters.drop(NoSession)
		return
	}
	d.route(s, slot, &packet)
}

// route applies a session's rules to a packet.
func (d *downlink) route(s *session.Session, slot []byte, packet *session.Packet) {
	rule := s.Rules().MatchPlain(packet)
	if rule == nil {
		d.counters.drop(NoRule)
		return
	}
	far := rule.FAR
	if far.Buffer {
		d.buffer(s, rule, slot[headroom:])
		return
	}
	if s.Buffer.Len() > 0 {
		d.queueBehindBuffer(s, slot[headroom:])
		return
	}
	if !far.Forward {
		d.counters.drop(ByRule)
		return
	}
	if !far.Tunnelled || far.Torn() {
		d.counters.drop(NoTunnel)
		return
	}
	size := len(slot) - headroom
	if why := admit(rule, size); why != numReasons {
		d.counters.drop(why)
		return
	}
	d.burner.Burn()
	start := headroom - headerLen(rule.QFI)
	appendHeader(slot[start:start], far, rule.QFI, size)
	d.tx.Stage(slot[start:], &far.To)
	rule.Count(size, s, d.events)
	d.counters.pass(size)
}

func headerLen(qfi int) int {
	if qfi < 0 {
		return gtpu.PlainGPDULen
	}
	return gtpu.GPDULen
}

// buffer keeps a packet, and tells the CP function about the first one if it wants to know.
func (d *downlink) buffer(s *session.Session, rule *session.PDR, packet []byte) {
	if d.held+len(packet) > maxHeld || !s.Buffer.Add(packet, rule.FAR.BufferLimit) {
		d.counters.drop(BufferFull)
		return
	}
	d.held += len(packet)
	d.counters.buffered.Add(1)
	if !rule.FAR.Notify() {
		return
	}
	select {
	case d.events <- session.Event{Kind: session.EventData, Session: s, PDR: rule.ID}:
	default:
		rule.FAR.Renotify()
	}
}

// queueBehindBuffer keeps the order of a packet that has seen the new rules before the command to flush (or discard)
// what the old ones have buffered: that is carried out first.
func (d *downlink) queueBehindBuffer(s *session.Session, packet []byte) {
	last := append([]byte(nil), packet...) // its slot is about to be used
	d.obey()
	s.Buffer.Add(last, session.MaxBuffer+1)
	d.held += len(last)
	d.flush(s)
}

// take empties a session's buffer.
func (d *downlink) take(s *session.Session) [][]byte {
	packets := s.Buffer.Take()
	for _, packet := range packets {
		d.held -= len(packet)
	}
	return packets
}

// send sends what is staged.
func (d *downlink) send() {
	for range d.tx.Flush() {
		d.counters.drop(WriteFailed)
	}
}

// post leaves a command for the loop.
func (d *downlink) post(c command) {
	d.mail.Lock()
	d.mail.commands = append(d.mail.commands, c)
	d.mail.waiting.Store(true)
	d.mail.Unlock()
	d.waker.Wake()
}

// obey carries out the commands, in order, after what is staged has been sent.
func (d *downlink) obey() {
	d.send()
	d.mail.Lock()
	commands := d.mail.commands
	d.mail.commands = nil
	d.mail.waiting.Store(false)
	d.mail.Unlock()
	for _, c := range commands {
		switch {
		case c.flush != nil:
			d.flush(c.flush)
		case c.discard != nil:
			d.take(c.discard)
		case c.endMarker != nil:
			d.tx.Stage(gtpu.AppendEndMarker(nil, c.endMarker.Peer.TEID), &c.endMarker.To)
			d.send()
		}
	}
}

// flush sends a session's buffered packets through the rules that hold now.
func (d *downlink) flush(s *session.Session) {
	for _, kept := range d.take(s) {
		slot := d.slots[d.tx.Staged()]
		slot = slot[:headroom+copy(slot[headroom:], kept)]
		if packet, ok := session.ParsePacket(slot[headroom:]); ok {
			d.route(s, slot, &packet)
		}
		if d.burn > 0 || d.tx.Full() {
			d.send()
		}
	}
	d.send()
}
