package traffic

import (
	"encoding/binary"
	"errors"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"

	"golang.org/x/sys/unix"

	"slicepilot/userplane/internal/gtpu"
)

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
