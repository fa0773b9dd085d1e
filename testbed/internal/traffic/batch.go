package traffic

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"

	"slicepilot/userplane/internal/gtpu"
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
	file     *os.File // the descriptor's owner
	fd       int
	to       netip.AddrPort
	messages [batchSize]mmsghdr
	vectors  [batchSize]unix.Iovec
	buffers  [batchSize][]byte
	flows    [batchSize]*flow
	sizes    [batchSize]int // of the inner packets
	n        int
}

// openBatch opens a socket connected to a tunnel endpoint: the kernel then looks the route up once, not for every packet.
func openBatch(from, to netip.AddrPort, datagramLen int) (*batch, error) {
	dialer := net.Dialer{LocalAddr: net.UDPAddrFromAddrPort(from), Control: prepare}
	connection, err := dialer.Dial("udp", to.String())
	if err != nil {
		return nil, fmt.Errorf("flow fields from and to: %w", err)
	}
	defer connection.Close()
	file, err := connection.(*net.UDPConn).File()
	if err != nil {
		return nil, err
	}
	b := &batch{file: file, fd: int(file.Fd()), to: to}
	datagramLen = max(datagramLen, maxPrefixLen)
	for i := range b.messages {
		b.buffers[i] = make([]byte, datagramLen)
		b.vectors[i].Base = &b.buffers[i][0]
		b.messages[i].hdr.Iov = &b.vectors[i]
		b.messages[i].hdr.SetIovlen(1)
	}
	return b, nil
}

// prepare lets one gNB address talk to several UPFs, and makes a tunnel packet that is too large for the path an error to
// report: not one to be sent in fragments that probes and UPFs see differently.
func prepare(network, _ string, raw syscall.RawConn) error {
	level, option, value := unix.IPPROTO_IP, unix.IP_MTU_DISCOVER, unix.IP_PMTUDISC_DO
	if network == "udp6" {
		level, option, value = unix.IPPROTO_IPV6, unix.IPV6_MTU_DISCOVER, unix.IPV6_PMTUDISC_DO
	}
	var failure error
	err := raw.Control(func(fd uintptr) {
		failure = errors.Join(
			unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_REUSEADDR, 1),
			unix.SetsockoptInt(int(fd), level, option, value),
		)
	})
	return errors.Join(err, failure)
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

// maxUnknownTEIDs bounds how many refused tunnels are remembered.
const maxUnknownTEIDs = 16

// responder is the receiving half of a gNB: it answers Echo Requests, without which a UPF takes the path for broken
// (TS 29.281 clause 7.2.2), and counts downlink packets and Error Indications.
type responder struct {
	fd              int
	peer            netip.AddrPort
	downlinkPackets atomic.Uint64
	downlinkBytes   atomic.Uint64
	errors          atomic.Uint64
	done            chan struct{}

	mu           sync.Mutex
	unknownTEIDs []uint32
}

func startResponder(fd int, peer netip.AddrPort) *responder {
	r := &responder{fd: fd, peer: peer, done: make(chan struct{})}
	go r.loop()
	return r
}

func (r *responder) loop() {
	defer close(r.done)
	buffer := make([]byte, 65535)
	for {
		n, err := unix.Read(r.fd, buffer)
		switch {
		case errors.Is(err, unix.EINTR), errors.Is(err, unix.ECONNREFUSED):
			continue
		case err != nil, n == 0:
			return // shut down
		}
		r.handle(buffer[:n])
	}
}

func (r *responder) handle(b []byte) {
	header, err := gtpu.Parse(b)
	if err != nil {
		return
	}
	switch header.Type {
	case gtpu.TypeGPDU:
		r.downlinkPackets.Add(1)
		r.downlinkBytes.Add(uint64(header.PayloadLength))
	case gtpu.TypeEchoRequest:
		answer, _ := gtpu.EchoAnswer(b)
		_, _ = unix.Write(r.fd, answer)
	case gtpu.TypeErrorIndication:
		r.errors.Add(1)
		r.noteUnknown(header.Payload(b))
	}
}

// noteUnknown remembers the TEID of an Error Indication: Tunnel Endpoint Identifier Data I, its first element (clause
// 7.3.1).
func (r *responder) noteUnknown(elements []byte) {
	const teidDataI = 16
	if len(elements) < 5 || elements[0] != teidDataI {
		return
	}
	teid := binary.BigEndian.Uint32(elements[1:])
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.unknownTEIDs) < maxUnknownTEIDs && !slices.Contains(r.unknownTEIDs, teid) {
		r.unknownTEIDs = append(r.unknownTEIDs, teid)
	}
}
