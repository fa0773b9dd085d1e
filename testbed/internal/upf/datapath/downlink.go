package datapath

import (
	"os"
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
	tun       int
	burn      time.Duration // if any, every packet is sent at once
	burner    *Burner
	waker     *netio.Waker
	stopping  *atomic.Bool
	counters  Counters
	tx        *netio.Transmitter
	slots     [][]byte // one per datagram of a batch: room for a header, then the packet
}

// headroom is kept before every packet for the longest header that is written.
const headroom = gtpu.GPDULen

func newDownlink(p *Plane) (*downlink, error) {
	waker, err := netio.NewWaker()
	if err != nil {
		return nil, err
	}
	batch := p.config.batch()
	d := &downlink{
		addresses: p.Addresses, tun: p.config.TUN, waker: waker, stopping: &p.stopping,
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
	far := &rule.FAR
	switch {
	case !far.Forward:
		d.counters.drop(ByRule)
		return
	case !far.Tunnelled:
		d.counters.drop(NoTunnel)
		return
	case rule.Closed:
		d.counters.drop(Gate)
		return
	}
	d.burner.Burn()
	size := len(slot) - headroom
	start := headroom - headerLen(rule.QFI)
	appendHeader(slot[start:start], far, rule.QFI, size)
	d.tx.Stage(slot[start:], &far.To)
	d.counters.pass(size)
}

func headerLen(qfi int) int {
	if qfi < 0 {
		return gtpu.PlainGPDULen
	}
	return gtpu.GPDULen
}

// send sends what is staged.
func (d *downlink) send() {
	for range d.tx.Flush() {
		d.counters.drop(WriteFailed)
	}
}
