package netio

import (
	"unsafe"

	"golang.org/x/sys/unix"
)

// mmsghdr is struct mmsghdr of recvmmsg(2).
type mmsghdr struct {
	header unix.Msghdr
	length uint32
	_      [4]byte
}

// Receiver takes up to a fixed number of datagrams out of a socket with one system call.
type Receiver struct {
	socket  *Socket
	headers []mmsghdr
	iovecs  []unix.Iovec
	senders []Sockaddr
	buffers [][]byte
}

// NewReceiver makes a receiver of batches of count datagrams of up to size octets.
func NewReceiver(socket *Socket, count, size int) *Receiver {
	r := &Receiver{
		socket: socket, headers: make([]mmsghdr, count), iovecs: make([]unix.Iovec, count),
		senders: make([]Sockaddr, count), buffers: make([][]byte, count),
	}
	memory := make([]byte, count*size)
	for i := range count {
		r.buffers[i] = memory[i*size : (i+1)*size : (i+1)*size]
		r.iovecs[i].Base = &r.buffers[i][0]
		r.iovecs[i].SetLen(size)
		h := &r.headers[i].header
		h.Name = &r.senders[i].raw[0]
		h.Iov = &r.iovecs[i]
		h.SetIovlen(1)
	}
	return r
}

// Receive takes what is there, without waiting; it returns 0 and unix.EAGAIN where there is nothing.
func (r *Receiver) Receive() (int, error) {
	for i := range r.headers {
		r.headers[i].header.Namelen = uint32(len(r.senders[i].raw))
	}
	for {
		n, _, errno := unix.RawSyscall6(unix.SYS_RECVMMSG, uintptr(r.socket.FD),
			uintptr(unsafe.Pointer(&r.headers[0])), uintptr(len(r.headers)), unix.MSG_DONTWAIT, 0, 0)
		if errno == unix.EINTR {
			continue
		}
		if errno != 0 {
			return 0, errno
		}
		return int(n), nil
	}
}

// Datagram returns the i-th datagram of the last batch, valid until the next Receive; ok is false where it was longer
// than the buffer.
func (r *Receiver) Datagram(i int) (b []byte, ok bool) {
	m := &r.headers[i]
	return r.buffers[i][:m.length], m.header.Flags&unix.MSG_TRUNC == 0
}

// Sender returns where the i-th datagram came from.
func (r *Receiver) Sender(i int) *Sockaddr {
	r.senders[i].len = r.headers[i].header.Namelen
	return &r.senders[i]
}

// Transmitter sends up to a fixed number of datagrams with one system call, in order.
type Transmitter struct {
	socket  *Socket
	headers []mmsghdr
	iovecs  []unix.Iovec
	staged  int
}

// NewTransmitter makes a transmitter of batches of count datagrams.
func NewTransmitter(socket *Socket, count int) *Transmitter {
	t := &Transmitter{socket: socket, headers: make([]mmsghdr, count), iovecs: make([]unix.Iovec, count)}
	for i := range count {
		t.headers[i].header.Iov = &t.iovecs[i]
		t.headers[i].header.SetIovlen(1)
	}
	return t
}

// Staged is how many datagrams wait for Flush; the next one staged has this index.
func (t *Transmitter) Staged() int { return t.staged }

// Full says that Flush has to come before the next Stage.
func (t *Transmitter) Full() bool { return t.staged == len(t.headers) }

// Stage adds a datagram. Octets and address stay untouched until Flush.
func (t *Transmitter) Stage(b []byte, to *Sockaddr) {
	i := t.staged
	t.iovecs[i].Base = unsafe.SliceData(b)
	t.iovecs[i].SetLen(len(b))
	h := &t.headers[i].header
	h.Name = &to.raw[0]
	h.Namelen = to.len
	t.staged++
}

// Flush sends what is staged and returns how many datagrams the kernel refused. It never waits: when the send buffer
// is full, the datagram is refused.
func (t *Transmitter) Flush() (refused int) {
	for next := 0; next < t.staged; {
		n, _, errno := unix.RawSyscall6(unix.SYS_SENDMMSG, uintptr(t.socket.FD),
			uintptr(unsafe.Pointer(&t.headers[next])), uintptr(t.staged-next), unix.MSG_DONTWAIT, 0, 0)
		switch errno {
		case 0:
			next += int(n)
		case unix.EINTR:
		default: // the error is about the first one; the others may still go
			refused++
			next++
		}
	}
	t.staged = 0
	return refused
}
