package datapath

import (
	"os"
	"unsafe"

	"golang.org/x/sys/unix"

	"slicepilot/userplane/internal/gtpu"
	"slicepilot/userplane/internal/upf/netio"
	"slicepilot/userplane/internal/upf/session"
)

// uplink takes datagrams from N3 and puts the packets in them where their rules say.
type uplink struct {
	plane    *Plane
	receiver *netio.Receiver
	batch    int
	burner   *Burner
	waker    *netio.Waker
	counters Counters
	scratch  []byte // a packet that leaves into another tunnel
}

func newUplink(p *Plane) (*uplink, error) {
	waker, err := netio.NewWaker()
	if err != nil {
		return nil, err
	}
	batch, size := p.config.batch(), p.config.TUNMTU+slack
	return &uplink{
		plane: p, waker: waker, receiver: netio.NewReceiver(p.config.N3, batch, size), batch: batch,
		scratch: make([]byte, 0, gtpu.GPDULen+size),
	}, nil
}

func (u *uplink) run() error {
	u.burner = NewBurner(u.plane.config.Burn)
	var yielder netio.Yielder
	for !u.plane.stopping.Load() {
		yielder.Yield()
		n, err := u.receiver.Receive()
		if err != nil && !passing(err) {
			return os.NewSyscallError("recvmmsg", err)
		}
		for i := range n {
			if datagram, whole := u.receiver.Datagram(i); whole {
				u.datagram(datagram, u.receiver.Sender(i))
			} else {
				u.counters.drop(Malformed)
			}
		}
		if n == u.batch {
			continue // more may be there: no need to ask
		}
		if err := u.waker.Wait(u.plane.config.N3.FD); err != nil {
			return err
		}
	}
	return nil
}

// passing says whether an error of receiving goes by itself: nothing there, a shortage of memory, or what an earlier
// datagram has caused (ICMP).
func passing(err error) bool {
	switch err {
	case unix.EAGAIN, unix.ENOBUFS, unix.ENOMEM, unix.ECONNREFUSED, unix.EHOSTUNREACH, unix.ENETUNREACH, unix.ENETDOWN:
		return true
	}
	return false
}

// datagram handles one GTP-U message.
func (u *uplink) datagram(b []byte, from *netio.Sockaddr) {
	header, err := gtpu.Parse(b)
	switch {
	case err == gtpu.ErrExtension:
		u.counters.drop(Extension)
		u.plane.path.unsupportedExtension(&header, from)
	case err != nil:
		u.counters.drop(Malformed)
	case header.Type == gtpu.TypeGPDU:
		u.packet(&header, header.Payload(b), from)
	default:
		u.plane.path.message(b, from)
	}
}

// packet handles the content of one G-PDU.
func (u *uplink) packet(header *gtpu.Header, payload []byte, from *netio.Sockaddr) {
	s := u.plane.TEIDs.Get(header.TEID)
	if s == nil {
		u.counters.drop(NoSession)
		u.plane.path.unknownTunnel(header.TEID, from)
		return
	}
	packet, ok := session.ParsePacket(payload)
	if !ok {
		u.counters.drop(Malformed)
		return
	}
	if u.plane.own.Has(packet.Dst) { // whatever the rules say: N3 and N4 are not for terminals
		u.counters.drop(OwnAddress)
		return
	}
	rule := s.Rules().MatchTunnel(header.TEID, header.QFI, &packet)
	if rule == nil {
		u.counters.drop(NoRule)
		return
	}
	if rule.Closed {
		u.counters.drop(Gate)
		return
	}
	u.forward(rule, header, payload)
}

func (u *uplink) forward(rule *session.PDR, header *gtpu.Header, payload []byte) {
	far := &rule.FAR
	if !far.Forward {
		u.counters.drop(ByRule)
		return
	}
	if !far.ToCore && !far.Tunnelled {
		u.counters.drop(NoTunnel)
		return
	}
	u.burner.Burn()
	var err error
	if far.ToCore {
		err = writePacket(u.plane.config.TUN, payload)
	} else {
		qfi := rule.QFI
		if qfi < 0 {
			qfi = header.QFI
		}
		u.scratch = append(appendHeader(u.scratch[:0], far, qfi, len(payload)), payload...)
		err = u.plane.config.N3.SendTo(u.scratch, &far.To)
	}
	if err != nil {
		u.counters.drop(WriteFailed)
		return
	}
	u.counters.pass(len(payload))
}

// appendHeader appends the GTP-U header that a FAR asks for; the PDU Session Container is there where a QFI is known.
func appendHeader(dst []byte, far *session.FAR, qfi, payloadLen int) []byte {
	if qfi < 0 {
		return gtpu.AppendPlainGPDU(dst, far.Peer.TEID, payloadLen)
	}
	return gtpu.AppendGPDU(dst, far.Peer.TEID, far.PDUType, uint8(qfi), payloadLen)
}

// writePacket writes a packet to a TUN device whose descriptor does not block: the scheduler need not know.
func writePacket(fd int, b []byte) error {
	for {
		_, _, errno := unix.RawSyscall(unix.SYS_WRITE, uintptr(fd), uintptr(unsafe.Pointer(unsafe.SliceData(b))), uintptr(len(b)))
		switch errno {
		case 0:
			return nil
		case unix.EINTR:
		default:
			return errno
		}
	}
}

// readPacket reads a packet in the same way.
func readPacket(fd int, b []byte) (int, unix.Errno) {
	n, _, errno := unix.RawSyscall(unix.SYS_READ, uintptr(fd), uintptr(unsafe.Pointer(unsafe.SliceData(b))), uintptr(len(b)))
	return int(n), errno
}

// downlink takes packets from the TUN device and sends them into the tunnels that their rules say.
type downlink struct {
	plane    *Plane
	burner   *Burner
	waker    *netio.Waker
	counters Counters
	tx       *netio.Transmitter
	slots    [][]byte // one per datagram of a batch: room for a header, then the packet
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
		plane: p, waker: waker, tx: netio.NewTransmitter(p.config.N3, batch), slots: make([][]byte, batch),
	}
	for i := range d.slots {
		d.slots[i] = make([]byte, headroom+p.config.TUNMTU)
	}
	return d, nil
}

func (d *downlink) run() error {
	d.burner = NewBurner(d.plane.config.Burn)
	var yielder netio.Yielder
	for !d.plane.stopping.Load() {
		yielder.Yield()
		slot := d.slots[d.tx.Staged()]
		n, errno := readPacket(d.plane.config.TUN, slot[headroom:])
		switch errno {
		case 0:
			d.packet(slot[:headroom+n])
			if d.plane.config.Burn > 0 || d.tx.Full() { // with work, every packet is sent at once
				d.send()
			}
		case unix.EAGAIN:
			d.send()
			if err := d.waker.Wait(d.plane.config.TUN); err != nil {
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
	s := d.plane.Addresses.Get(packet.Dst)
	if s == nil && !packet.Dst.IsIPv4() {
		s = d.plane.Addresses.Get(packet.Dst.Prefix64())
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
