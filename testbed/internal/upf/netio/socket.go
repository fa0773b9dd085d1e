package netio

import (
	"fmt"
	"net/netip"
	"os"
	"unsafe"

	"golang.org/x/sys/unix"
)

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
	family := unix.AF_INET
	if local.Addr().Is6() {
		family = unix.AF_INET6
	}
	fd, err := unix.Socket(family, unix.SOCK_DGRAM|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, os.NewSyscallError("socket", err)
	}
	s := &Socket{FD: fd, Local: local}
	if err := s.setUp(family, receiveBuffer); err != nil {
		unix.Close(fd)
		return nil, err
	}
	return s, nil
}

func (s *Socket) setUp(family, receiveBuffer int) error {
	if receiveBuffer > 0 {
		if err := s.setReceiveBuffer(receiveBuffer); err != nil {
			return err
		}
	}
	if family == unix.AF_INET6 {
		if err := unix.SetsockoptInt(s.FD, unix.IPPROTO_IPV6, unix.IPV6_V6ONLY, 1); err != nil {
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
	if err := unix.SetsockoptInt(s.FD, unix.SOL_SOCKET, unix.SO_RCVBUF, size/2); err != nil {
		return os.NewSyscallError("setsockopt SO_RCVBUF", err)
	}
	return nil
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

// ReceiveFrom receives one datagram into b without waiting. It returns unix.EAGAIN where there is none.
func (s *Socket) ReceiveFrom(b []byte, from *Sockaddr) (int, error) {
	for {
		from.len = uint32(len(from.raw))
		n, _, errno := unix.RawSyscall6(unix.SYS_RECVFROM, uintptr(s.FD), uintptr(unsafe.Pointer(unsafe.SliceData(b))),
			uintptr(len(b)), unix.MSG_DONTWAIT|unix.MSG_TRUNC, uintptr(unsafe.Pointer(&from.raw)), uintptr(unsafe.Pointer(&from.len)))
		if errno == unix.EINTR {
			continue
		}
		if errno != 0 {
			return 0, errno
		}
		return int(n), nil
	}
}

// Close closes the socket.
func (s *Socket) Close() error { return unix.Close(s.FD) }
