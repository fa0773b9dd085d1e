// Package netio is the thin layer between the data path and the kernel: datagrams in batches (recvmmsg, sendmmsg),
// socket addresses in the kernel's own form, and waiting that can be interrupted. Nothing here allocates after it is
// set up.
package netio

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"os"
	"runtime"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Sockaddr is a socket address as the kernel reads it, ready to be pointed at by a message header.
type Sockaddr struct {
	raw [unix.SizeofSockaddrInet6]byte
	len uint32
}

// SockaddrOf converts a valid address and port.
func SockaddrOf(a netip.AddrPort) Sockaddr {
	var s Sockaddr
	binary.BigEndian.PutUint16(s.raw[2:], a.Port())
	if a.Addr().Is4() {
		binary.NativeEndian.PutUint16(s.raw[:], unix.AF_INET)
		ip := a.Addr().As4()
		copy(s.raw[4:], ip[:])
		s.len = unix.SizeofSockaddrInet4
		return s
	}
	binary.NativeEndian.PutUint16(s.raw[:], unix.AF_INET6)
	ip := a.Addr().As16()
	copy(s.raw[8:], ip[:])
	s.len = unix.SizeofSockaddrInet6
	return s
}

// AddrPort converts back; an unknown family gives the zero AddrPort.
func (s *Sockaddr) AddrPort() netip.AddrPort {
	port := binary.BigEndian.Uint16(s.raw[2:])
	switch binary.NativeEndian.Uint16(s.raw[:]) {
	case unix.AF_INET:
		return netip.AddrPortFrom(netip.AddrFrom4([4]byte(s.raw[4:8])), port)
	case unix.AF_INET6:
		return netip.AddrPortFrom(netip.AddrFrom16([16]byte(s.raw[8:24])), port)
	}
	return netip.AddrPort{}
}

// Socket is a bound, non-blocking UDP socket.
type Socket struct {
	FD    int
	Local netip.AddrPort
}

// Listen binds a UDP socket. receiveBuffer is what the kernel may hold for it in its own accounting, the unit of
// net.core.rmem_default (about 2.3 kB for a packet of 1400 bytes); 0 leaves the default.
//
// Datagrams may be fragmented on their way out: a tunnel must not lose what fitted into it (TS 29.281 clause 4.4.1).
func Listen(local netip.AddrPort, receiveBuffer int) (*Socket, error) {
	return listen(local, receiveBuffer, 1)
}

// ListenBoth is Listen with the default buffer, for IPv4 too where local is [::].
func ListenBoth(local netip.AddrPort) (*Socket, error) { return listen(local, 0, 0) }

func listen(local netip.AddrPort, receiveBuffer, onlyIPv6 int) (*Socket, error) {
	family := unix.AF_INET
	if local.Addr().Is6() {
		family = unix.AF_INET6
	}
	fd, err := unix.Socket(family, unix.SOCK_DGRAM|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, os.NewSyscallError("socket", err)
	}
	s := &Socket{FD: fd, Local: local}
	if err := s.setUp(family, receiveBuffer, onlyIPv6); err != nil {
		unix.Close(fd)
		return nil, err
	}
	return s, nil
}

func (s *Socket) setUp(family, receiveBuffer, onlyIPv6 int) error {
	if receiveBuffer > 0 {
		if err := s.setReceiveBuffer(receiveBuffer); err != nil {
			return err
		}
	}
	if family == unix.AF_INET6 {
		if err := unix.SetsockoptInt(s.FD, unix.IPPROTO_IPV6, unix.IPV6_V6ONLY, onlyIPv6); err != nil {
			return os.NewSyscallError("setsockopt IPV6_V6ONLY", err)
		}
	}
	level, option := unix.IPPROTO_IP, unix.IP_MTU_DISCOVER
	if family == unix.AF_INET6 {
		level, option = unix.IPPROTO_IPV6, unix.IPV6_MTU_DISCOVER
	}
	if err := unix.SetsockoptInt(s.FD, level, option, unix.IP_PMTUDISC_DONT); err != nil {
		return os.NewSyscallError("setsockopt MTU_DISCOVER", err)
	}
	address := SockaddrOf(s.Local)
	_, _, errno := unix.Syscall(unix.SYS_BIND, uintptr(s.FD), uintptr(unsafe.Pointer(&address.raw)), uintptr(address.len))
	if errno != 0 {
		return fmt.Errorf("bind %s: %w", s.Local, errno)
	}
	return s.readLocal()
}

// setReceiveBuffer asks for half: the kernel doubles what it is asked for (socket(7), SO_RCVBUF). Beyond
// net.core.rmem_max it takes CAP_NET_ADMIN.
func (s *Socket) setReceiveBuffer(size int) error {
	if unix.SetsockoptInt(s.FD, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, size/2) == nil {
		return nil
	}
	return os.NewSyscallError("setsockopt SO_RCVBUF", unix.SetsockoptInt(s.FD, unix.SOL_SOCKET, unix.SO_RCVBUF, size/2))
}

// readLocal learns the port where the kernel chose it.
func (s *Socket) readLocal() error {
	var address Sockaddr
	size := uint32(len(address.raw))
	_, _, errno := unix.Syscall(unix.SYS_GETSOCKNAME, uintptr(s.FD),
		uintptr(unsafe.Pointer(&address.raw)), uintptr(unsafe.Pointer(&size)))
	if errno != 0 {
		return os.NewSyscallError("getsockname", errno)
	}
	s.Local = address.AddrPort()
	return nil
}

// ReceiveBuffer is the size that holds, in the unit of Listen.
func (s *Socket) ReceiveBuffer() int {
	size, err := unix.GetsockoptInt(s.FD, unix.SOL_SOCKET, unix.SO_RCVBUF)
	if err != nil {
		return 0
	}
	return size
}

// Socket memory information (linux/sock_diag.h): an array of counters, of which one is the drops at the receive buffer.
const (
	memInfoOption = 55 // SO_MEMINFO
	memInfoWords  = 9
	memInfoDrops  = 8
)

// Drops is how many datagrams the kernel has dropped because the receive buffer was full.
func (s *Socket) Drops() uint64 {
	var words [memInfoWords]uint32
	size := uint32(unsafe.Sizeof(words))
	_, _, errno := unix.Syscall6(unix.SYS_GETSOCKOPT, uintptr(s.FD), unix.SOL_SOCKET, memInfoOption,
		uintptr(unsafe.Pointer(&words)), uintptr(unsafe.Pointer(&size)), 0)
	if errno != 0 {
		return 0
	}
	return uint64(words[memInfoDrops])
}

// SendTo sends one datagram. It never waits: a full send buffer is an error.
func (s *Socket) SendTo(b []byte, to *Sockaddr) error {
	for {
		_, _, errno := unix.RawSyscall6(unix.SYS_SENDTO, uintptr(s.FD), uintptr(unsafe.Pointer(unsafe.SliceData(b))),
			uintptr(len(b)), unix.MSG_DONTWAIT, uintptr(unsafe.Pointer(&to.raw)), uintptr(to.len))
		if errno == unix.EINTR {
			continue
		}
		if errno != 0 {
			return errno
		}
		return nil
	}
}

// Close closes the socket.
func (s *Socket) Close() error { return unix.Close(s.FD) }

// Waker wakes the one goroutine that waits with it for a descriptor (eventfd(2)).
type Waker struct {
	fd    int
	fds   [2]unix.PollFd // here and not on Wait's stack, where the system call would move them to the heap
	count [8]byte
}

// NewWaker makes a waker.
func NewWaker() (*Waker, error) {
	fd, err := unix.Eventfd(0, unix.EFD_NONBLOCK|unix.EFD_CLOEXEC)
	if err != nil {
		return nil, os.NewSyscallError("eventfd", err)
	}
	return &Waker{fd: fd}, nil
}

// Wake makes the present or the next Wait return. It may be called from any goroutine.
func (w *Waker) Wake() {
	one := [8]byte{1}
	// The one possible error, a counter at its limit, means that the waker is awake already.
	_, _ = unix.Write(w.fd, one[:])
}

// Close closes the waker's descriptor.
func (w *Waker) Close() error { return unix.Close(w.fd) }

// Wait waits until fd can be read or the waker is woken. The calling goroutine's processor is free meanwhile.
func (w *Waker) Wait(fd int) error {
	w.fds = [2]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}, {Fd: int32(w.fd), Events: unix.POLLIN}}
	for {
		_, err := unix.Poll(w.fds[:], -1)
		if err == unix.EINTR {
			continue
		}
		if err != nil {
			return os.NewSyscallError("poll", err)
		}
		if w.fds[1].Revents != 0 {
			_, _ = unix.Read(w.fd, w.count[:])
		}
		return nil
	}
}

// yieldEvery is how often a loop lets the Go scheduler run.
const yieldEvery = 8 * time.Millisecond

// Yielder keeps a loop of system calls on good terms with the Go scheduler.
//
// A goroutine that has not been rescheduled for 10 ms is taken for a hog: from then on the runtime's monitor takes the
// processor away in every system call that it happens to see, is woken by every one that returns, and so runs as often
// as the loop itself (runtime.retake, measured: as much CPU time as the loop needs at 4000 packets/s). Rescheduling
// before that time costs next to nothing - as long as the goroutine is not locked to its thread, which would turn it
// into two switches between threads.
type Yielder struct{ last time.Time }

// Yield is called once in every round of a loop.
func (y *Yielder) Yield() {
	if now := time.Now(); now.Sub(y.last) >= yieldEvery {
		y.last = now
		runtime.Gosched()
	}
}
