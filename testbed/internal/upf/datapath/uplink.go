package datapath

import (
	"os"
	"sync/atomic"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"slicepilot/userplane/internal/gtpu"
	"slicepilot/userplane/internal/upf/netio"
	"slicepilot/userplane/internal/upf/own"
	"slicepilot/userplane/internal/upf/session"
)

// uplink takes datagrams from N3 and puts the packets in them where their rules say.
type uplink struct {
	teids    *session.Table[uint32]
	path     *path
	own      *own.Addresses
	socket   *netio.Socket
	receiver *netio.Receiver
	batch    int
	tun      int
	burn     time.Duration
	burner   *Burner
	waker    *netio.Waker
	stopping *atomic.Bool
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
		teids: p.TEIDs, path: p.path, own: p.own, socket: p.config.N3, tun: p.config.TUN, waker: waker, burn: p.config.Burn,
		receiver: netio.NewReceiver(p.config.N3, batch, size), batch: batch, stopping: &p.stopping,
		scratch: make([]byte, 0, gtpu.GPDULen+size),
	}, nil
}

func (u *uplink) run() error {
	u.burner = NewBurner(u.burn)
	var yielder netio.Yielder
	for !u.stopping.Load() {
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
		if err := u.waker.Wait(u.socket.FD); err != nil {
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
		u.path.unsupportedExtension(&header, from)
	case err != nil:
		u.counters.drop(Malformed)
	case header.Type == gtpu.TypeGPDU:
		u.packet(&header, header.Payload(b), from)
	default:
		u.path.message(b, from)
	}
}

// packet handles the content of one G-PDU.
func (u *uplink) packet(header *gtpu.Header, payload []byte, from *netio.Sockaddr) {
	s := u.teids.Get(header.TEID)
	if s == nil {
		u.counters.drop(NoSession)
		u.path.unknownTunnel(header.TEID, from)
		return
	}
	packet, ok := session.ParsePacket(payload)
	if !ok {
		u.counters.drop(Malformed)
		return
	}
	if u.own.Has(packet.Dst) { // whatever the rules say: N3 and N4 are not for terminals
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
		err = writePacket(u.tun, payload)
	} else {
		qfi := rule.QFI
		if qfi < 0 {
			qfi = header.QFI
		}
		u.scratch = append(appendHeader(u.scratch[:0], far, qfi, len(payload)), payload...)
		err = u.socket.SendTo(u.scratch, &far.To)
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
