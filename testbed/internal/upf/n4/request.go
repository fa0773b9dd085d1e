package n4

import (
	"net/netip"
	"time"

	"github.com/wmnsk/go-pfcp/message"

	"slicepilot/userplane/internal/pfcp"
	"slicepilot/userplane/internal/upf/netio"
)

const (
	maxSeq = 1<<24 - 1
	// maxPending bounds the requests that wait for an answer: a peer that is gone must not fill the memory.
	maxPending = 1 << 14
)

// request is a message sent that waits for its answer (clause 6.4).
type request struct {
	octets   []byte
	to       netio.Sockaddr
	peer     netip.Addr
	expected uint8
	left     int
	timer    *time.Timer
	done     func(answer message.Message)
}

// request sends what build makes of a sequence number, again if need be, and calls done with the answer, or with nil
// when none came. done runs under the lock.
func (s *Server) request(build func(seq uint32) message.Message, to netip.AddrPort, done func(answer message.Message)) {
	if len(s.pending) >= maxPending {
		s.counters.lost.Add(1)
		done(nil)
		return
	}
	for {
		s.nextSeq = (s.nextSeq + 1) & maxSeq
		if _, isTaken := s.pending[s.nextSeq]; !isTaken {
			break
		}
	}
	seq := s.nextSeq
	m := build(seq)
	octets, err := pfcp.Encode(m)
	if err != nil {
		s.config.Log.Printf("N4: %v", err)
		done(nil)
		return
	}
	q := &request{
		octets: octets, to: netio.SockaddrOf(to), peer: to.Addr(), expected: m.MessageType() + 1, left: attempts, done: done,
	}
	s.pending[seq] = q
	q.timer = time.AfterFunc(s.config.T1, func() { s.expired(seq, q) })
	q.left--
	s.send(q.octets, &q.to)
}

// expired sends a request again, or gives it up.
func (s *Server) expired(seq uint32, q *request) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.pending[seq] != q || s.stopping.Load() {
		return
	}
	if q.left == 0 {
		delete(s.pending, seq)
		s.counters.lost.Add(1)
		q.done(nil)
		return
	}
	q.left--
	s.send(q.octets, &q.to)
	q.timer.Reset(s.config.T1)
}

// answered matches an answer with its request; an unexpected answer is ignored.
func (s *Server) answered(m message.Message, from netip.AddrPort) {
	q := s.pending[m.Sequence()]
	if q == nil || q.expected != m.MessageType() || q.peer != from.Addr() {
		return
	}
	q.timer.Stop()
	delete(s.pending, m.Sequence())
	q.done(m)
}
