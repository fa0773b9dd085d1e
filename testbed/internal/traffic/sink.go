package traffic

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"sync"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"slicepilot/userplane/internal/inet"
	"slicepilot/userplane/internal/sockaddr"
)

// SinkOptions is how to receive.
type SinkOptions struct {
	Listen []netip.AddrPort
	// ReceiveBuffer is what the kernel may hold of a socket's packets, in bytes as it counts them.
	ReceiveBuffer int
	// Coalesce is how long to wait before reading again: packets then come in batches, and a wake-up is paid for many.
	// They carry the kernel's time stamps, so their delay does not depend on it.
	Coalesce time.Duration
	// MaxFlows bounds the memory: about 9 kB a flow.
	MaxFlows int
}

const (
	headLen    = MarkerLen // what is read of a packet's payload; the rest only counts
	controlLen = 64        // room for a time stamp and a drop counter
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
	bell     doorbell
	closing  bool // guarded by Sink.mu
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
	family := sockaddr.Family(address.Addr())
	fd, err := unix.Socket(family, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("socket: %w", err)
	}
	if family == unix.AF_INET6 {
		// IPv4 packets would have shorter headers than they are counted with.
		if err := unix.SetsockoptInt(fd, unix.IPPROTO_IPV6, unix.IPV6_V6ONLY, 1); err != nil {
			unix.Close(fd)
			return nil, fmt.Errorf("IPV6_V6ONLY: %w", err)
		}
	}
	// Beyond the limit of net.core.rmem_max only with CAP_NET_ADMIN; without it the limit has to do.
	if unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, receiveBuffer/2) != nil {
		_ = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUF, receiveBuffer/2)
	}
	for _, option := range []int{unix.SO_TIMESTAMPNS, unix.SO_RXQ_OVFL} {
		if err := unix.SetsockoptInt(fd, unix.SOL_SOCKET, option, 1); err != nil {
			unix.Close(fd)
			return nil, fmt.Errorf("setsockopt %d: %w", option, err)
		}
	}
	if err := unix.Bind(fd, sockaddr.To(address)); err != nil {
		unix.Close(fd)
		return nil, fmt.Errorf("bind %s: %w", address, err)
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
		socket.bell.ring()
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
		if n < batchSize && s.options.Coalesce > 0 {
			socket.bell.wait(Monotonic() + s.options.Coalesce.Nanoseconds())
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
