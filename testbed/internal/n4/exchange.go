package n4

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"sync/atomic"
	"time"

	"github.com/wmnsk/go-pfcp/ie"
	"github.com/wmnsk/go-pfcp/message"
	"golang.org/x/sys/unix"

	"slicepilot/userplane/internal/pfcp"
	"slicepilot/userplane/internal/upf/netio"
)

// maxSequence is the largest sequence number: three octets (clause 7.2.2.1).
const maxSequence = 1<<24 - 1

// ErrNoAnswer says that a UPF has answered none of a request's transmissions.
var ErrNoAnswer = errors.New("no answer")

// ErrClosed says that the endpoint was closed while a request was under way.
var ErrClosed = errors.New("endpoint closed")

type exchangeKey struct {
	peer     netip.AddrPort
	sequence uint32
}

// pending is a request that waits for its answer.
type pending struct {
	answerType uint8
	answer     chan received
}

type received struct {
	message message.Message
	at      time.Time
}

// retries says how a request is repeated: every t1 until it was sent 1 + n1 times in all (clause 6.4).
type retries struct {
	t1 time.Duration
	n1 int
}

// exchange sends a request and waits for the answer with its sequence number, from its address, of the right type. The
// outcome has the round trip, from just before the first transmission to just after the answer was read, and the attempts.
func (e *Endpoint) exchange(
	ctx context.Context, peer netip.AddrPort, request message.Message, retries retries,
) (message.Message, Outcome, error) {
	waiting := &pending{answerType: request.MessageType() + 1, answer: make(chan received, 1)}
	key := e.enlist(peer, request, waiting)
	defer e.delist(key)

	name := request.MessageTypeName()
	encoded, err := pfcp.Encode(request)
	if err != nil {
		return nil, Outcome{}, err
	}
	timer := time.NewTimer(retries.t1)
	defer timer.Stop()
	start := time.Now()
	for attempt := 1; ; attempt++ {
		if err := e.socket.send(encoded, peer); err != nil {
			return nil, Outcome{Attempts: attempt}, fmt.Errorf("%s to %s: %w", name, peer, err)
		}
		select {
		case got := <-waiting.answer:
			outcome := Outcome{RTT: got.at.Sub(start), Attempts: attempt}
			if got.message.MessageType() == message.MsgTypeVersionNotSupportedResponse {
				return nil, outcome, fmt.Errorf("%s to %s: the UPF does not speak PFCP version 1", name, peer)
			}
			return got.message, outcome, nil
		case <-ctx.Done():
			return nil, Outcome{Attempts: attempt}, ctx.Err()
		case <-e.closed:
			return nil, Outcome{Attempts: attempt}, ErrClosed
		case <-timer.C:
			if attempt > retries.n1 {
				return nil, Outcome{Attempts: attempt},
					fmt.Errorf("%s to %s: %w to %d transmissions %v apart", name, peer, ErrNoAnswer, attempt, retries.t1)
			}
			timer.Reset(retries.t1)
		}
	}
}

// enlist gives a request the next sequence number that no other request to the peer is waiting with.
func (e *Endpoint) enlist(peer netip.AddrPort, request message.Message, waiting *pending) exchangeKey {
	e.mu.Lock()
	defer e.mu.Unlock()
	for {
		e.sequence = e.sequence%maxSequence + 1
		key := exchangeKey{peer, e.sequence}
		if _, taken := e.pending[key]; !taken {
			e.pending[key] = waiting
			request.SetSequenceNumber(key.sequence)
			return key
		}
	}
}

func (e *Endpoint) delist(key exchangeKey) {
	e.mu.Lock()
	defer e.mu.Unlock()
	delete(e.pending, key)
}

// deliver hands an answer to the request that waits for it; late, repeated and unasked-for ones are dropped.
func (e *Endpoint) deliver(peer netip.AddrPort, answer message.Message, at time.Time) {
	e.mu.Lock()
	waiting := e.pending[exchangeKey{peer, answer.Sequence()}]
	e.mu.Unlock()
	refused := answer.MessageType() == message.MsgTypeVersionNotSupportedResponse
	if waiting == nil || (waiting.answerType != answer.MessageType() && !refused) {
		return
	}
	select {
	case waiting.answer <- received{answer, at}:
	default:
	}
}

// maxDatagram is more than any PFCP message: its length field has 16 bits, a UDP datagram is shorter still.
const maxDatagram = 65535

// socket is a UDP socket whose reader waits in the system call itself: an answer then wakes its thread directly, and
// the round trips reported hold no scheduling by the Go runtime.
type socket struct {
	*netio.Socket
	receiver *netio.Receiver
	waker    *netio.Waker
	closed   atomic.Bool
}

func listen(address netip.AddrPort) (*socket, error) {
	bound, err := netio.ListenBoth(address)
	if err != nil {
		return nil, err
	}
	waker, err := netio.NewWaker()
	if err != nil {
		bound.Close()
		return nil, err
	}
	return &socket{Socket: bound, receiver: netio.NewReceiver(bound, 1, maxDatagram), waker: waker}, nil
}

// send writes an IPv4 address in its IPv6 form where the socket is an IPv6 one.
func (s *socket) send(b []byte, to netip.AddrPort) error {
	if s.Local.Addr().Is6() {
		to = netip.AddrPortFrom(netip.AddrFrom16(to.Addr().As16()), to.Port())
	}
	raw := netio.SockaddrOf(to)
	return os.NewSyscallError("sendto", s.SendTo(b, &raw))
}

// receive waits for a datagram, which is valid until the next one, and returns when it was read. It ends with an error after
// wake.
func (s *socket) receive() ([]byte, netip.AddrPort, time.Time, error) {
	for !s.closed.Load() {
		_, err := s.receiver.Receive()
		at := time.Now()
		switch {
		case err == nil:
			b, _ := s.receiver.Datagram(0)
			from := s.receiver.Sender(0).AddrPort()
			return b, netip.AddrPortFrom(from.Addr().Unmap(), from.Port()), at, nil
		case errors.Is(err, unix.ECONNREFUSED):
			continue // an ICMP message about an earlier datagram
		case errors.Is(err, unix.EAGAIN):
			err = s.waker.Wait(s.FD)
		}
		if err != nil {
			return nil, netip.AddrPort{}, at, err
		}
	}
	return nil, netip.AddrPort{}, time.Time{}, os.ErrClosed
}

// wake makes receive return.
func (s *socket) wake() {
	s.closed.Store(true)
	s.waker.Wake()
}

func (s *socket) close() {
	s.waker.Close()
	s.Close()
}

// localAddressTowards is the address this host would send from: what a peer has to be told when the socket is bound to
// all addresses. Connecting a UDP socket sends nothing.
func localAddressTowards(to netip.AddrPort) (netip.Addr, error) {
	connection, err := net.DialUDP("udp", nil, net.UDPAddrFromAddrPort(to))
	if err != nil {
		return netip.Addr{}, fmt.Errorf("no route to UPF %s: %w", to, err)
	}
	defer connection.Close()
	return connection.LocalAddr().(*net.UDPAddr).AddrPort().Addr().Unmap(), nil
}

// Texts of the cause values (clause 8.2.1).
var causeTexts = map[uint8]string{
	ie.CauseRequestAccepted:                 "request accepted",
	2:                                       "more usage report to send",
	3:                                       "request partially accepted",
	ie.CauseRequestRejected:                 "request rejected (reason not specified)",
	ie.CauseSessionContextNotFound:          "session context not found",
	ie.CauseMandatoryIEMissing:              "mandatory IE missing",
	ie.CauseConditionalIEMissing:            "conditional IE missing",
	ie.CauseInvalidLength:                   "invalid length",
	ie.CauseMandatoryIEIncorrect:            "mandatory IE incorrect",
	ie.CauseInvalidForwardingPolicy:         "invalid forwarding policy",
	ie.CauseInvalidFTEIDAllocationOption:    "invalid F-TEID allocation option",
	ie.CauseNoEstablishedPFCPAssociation:    "no established PFCP association",
	ie.CauseRuleCreationModificationFailure: "rule creation/modification failure",
	ie.CausePFCPEntityInCongestion:          "PFCP entity in congestion",
	ie.CauseNoResourcesAvailable:            "no resources available",
	ie.CauseServiceNotSupported:             "service not supported",
	ie.CauseSystemFailure:                   "system failure",
	ie.CauseRedirectionRequested:            "redirection requested",
}

// CauseText is a cause value in words.
func CauseText(cause uint8) string {
	if text, known := causeTexts[cause]; known {
		return text
	}
	return fmt.Sprintf("cause %d", cause)
}

// RejectedError is a UPF's refusal: its cause, and what it says about where the fault lies.
type RejectedError struct {
	Message     string
	Cause       uint8
	OffendingIE uint16 // type of the IE; 0: none named
	FailedRule  string // such as "PDR 1"; empty: none named
}

func (e *RejectedError) Error() string {
	text := fmt.Sprintf("%s: %s (cause %d)", e.Message, CauseText(e.Cause), e.Cause)
	if e.OffendingIE != 0 {
		text += fmt.Sprintf(", offending IE type %d", e.OffendingIE)
	}
	if e.FailedRule != "" {
		text += ", failed rule " + e.FailedRule
	}
	return text
}

// verdict reads the cause of an answer; the other two IEs may be nil.
func verdict(name string, cause, offending, failed *ie.IE) (uint8, error) {
	if cause == nil {
		return 0, fmt.Errorf("%s: the answer has no Cause, which is mandatory", name)
	}
	value, err := cause.Cause()
	if err != nil {
		return 0, fmt.Errorf("%s: unreadable Cause: %w", name, err)
	}
	if value >= 1 && value <= 63 { // a cause of acceptance (clause 8.2.1)
		return value, nil
	}
	rejected := &RejectedError{Message: name, Cause: value}
	if offending != nil {
		rejected.OffendingIE, _ = offending.OffendingIE()
	}
	if failed != nil {
		rejected.FailedRule = failedRule(failed)
	}
	return value, rejected
}

// failedRule reads a Failed Rule ID (clause 8.2.80): the rule's kind in the lower bits of the first octet, then its
// identifier, whose length depends on the kind.
func failedRule(failed *ie.IE) string {
	b := failed.Payload
	if len(b) < 2 {
		return "unreadable"
	}
	kinds := []string{"PDR", "FAR", "QER", "URR", "BAR", "MAR", "SRR"}
	kind := int(b[0] & 0x1f)
	if kind >= len(kinds) {
		return fmt.Sprintf("of kind %d", kind)
	}
	id := uint64(0)
	for _, octet := range b[1:min(len(b), 5)] {
		id = id<<8 | uint64(octet)
	}
	return fmt.Sprintf("%s %d", kinds[kind], id)
}
