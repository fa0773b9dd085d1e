package traffic

import (
	"errors"
	"fmt"
	"net/netip"
	"unsafe"

	"golang.org/x/sys/unix"

	"slicepilot/userplane/internal/sockaddr"
)

// batchSize is how many datagrams one sendmmsg(2) takes: enough to make the call's own cost vanish, and few enough that
// the first of them does not wait for the last.
const batchSize = 64

// mmsghdr is struct mmsghdr of sendmmsg(2) and recvmmsg(2).
type mmsghdr struct {
	hdr unix.Msghdr
	len uint32
	_   [4]byte
}

// batch collects the datagrams of one socket, which all flows between the same two tunnel endpoints share.
type batch struct {
	fd       int
	to       netip.AddrPort
	messages [batchSize]mmsghdr
	vectors  [batchSize]unix.Iovec
	buffers  [batchSize][]byte
	flows    [batchSize]*flow
	sizes    [batchSize]int // of the inner packets
	n        int
}

// openBatch opens a socket connected to a tunnel endpoint. Connected, the kernel looks the route up once, not for every
// packet; SO_REUSEADDR lets one gNB address talk to several UPFs so.
func openBatch(from, to netip.AddrPort, datagramLen int) (*batch, error) {
	fd, err := unix.Socket(sockaddr.Family(to.Addr()), unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("socket: %w", err)
	}
	b := &batch{fd: fd, to: to}
	if err := b.connect(from, to); err != nil {
		unix.Close(fd)
		return nil, err
	}
	datagramLen = max(datagramLen, maxPrefixLen)
	for i := range b.messages {
		b.buffers[i] = make([]byte, datagramLen)
		b.vectors[i].Base = &b.buffers[i][0]
		b.messages[i].hdr.Iov = &b.vectors[i]
		b.messages[i].hdr.SetIovlen(1)
	}
	return b, nil
}

func (b *batch) connect(from, to netip.AddrPort) error {
	if err := unix.SetsockoptInt(b.fd, unix.SOL_SOCKET, unix.SO_REUSEADDR, 1); err != nil {
		return fmt.Errorf("SO_REUSEADDR: %w", err)
	}
	// A tunnel packet too large for the path is an error to report, not one to be sent in fragments that probes and
	// UPFs see differently.
	level, option, value := unix.IPPROTO_IP, unix.IP_MTU_DISCOVER, unix.IP_PMTUDISC_DO
	if to.Addr().Is6() {
		level, option, value = unix.IPPROTO_IPV6, unix.IPV6_MTU_DISCOVER, unix.IPV6_PMTUDISC_DO
	}
	if err := unix.SetsockoptInt(b.fd, level, option, value); err != nil {
		return fmt.Errorf("path MTU discovery: %w", err)
	}
	if err := unix.Bind(b.fd, sockaddr.To(from)); err != nil {
		return fmt.Errorf("bind %s (flow field from): %w", from, err)
	}
	if err := unix.Connect(b.fd, sockaddr.To(to)); err != nil {
		return fmt.Errorf("connect %s (flow field to): %w", to, err)
	}
	return nil
}

// add puts a flow's next packet into the batch, and reports whether that is full.
func (b *batch) add(f *flow, size int, nowNs int64) bool {
	i := b.n
	b.vectors[i].SetLen(f.template.build(b.buffers[i], size, nowNs))
	b.flows[i], b.sizes[i] = f, size
	b.n++
	return b.n == batchSize
}

// flush hands the batch to the kernel and counts what it took. The raw call skips the scheduler's bookkeeping: it does
// not block, because of MSG_DONTWAIT.
func (b *batch) flush() {
	refused := 0
	for done := 0; done < b.n; {
		sent, _, errno := unix.RawSyscall6(unix.SYS_SENDMMSG, uintptr(b.fd),
			uintptr(unsafe.Pointer(&b.messages[done])), uintptr(b.n-done), unix.MSG_DONTWAIT, 0, 0)
		if errno == 0 {
			for i := done; i < done+int(sent); i++ {
				b.flows[i].sent(b.sizes[i])
			}
			done += int(sent)
			continue
		}
		switch {
		case errors.Is(errno, unix.EINTR):
		case errors.Is(errno, unix.EAGAIN):
			b.waitWritable()
		case errors.Is(errno, unix.ECONNREFUSED) && refused < batchSize:
			// An ICMP message about an earlier datagram: reported once, then the call is made anew.
			refused++
			b.flows[done].noteError(errno)
		default:
			b.flows[done].counters.SendErrors++
			b.flows[done].noteError(errno)
			done++
		}
	}
	b.n = 0
}

// waitWritable waits until a full socket buffer has drained, for a millisecond at most.
func (b *batch) waitWritable() {
	_, _ = unix.Poll([]unix.PollFd{{Fd: int32(b.fd), Events: unix.POLLOUT}}, 1)
}
