package n4

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"time"

	"github.com/wmnsk/go-pfcp/message"

	"slicepilot/userplane/internal/pfcp"
)

// maxSequence is the largest sequence number: three octets (clause 7.2.2.1).
const maxSequence = 1<<24 - 1

// ErrNoAnswer says that a UPF has answered none of a request's transmissions.
var ErrNoAnswer = errors.New("no answer")

// ErrClosed says that the endpoint was closed while a request was under way.
var ErrClosed = errors.New("endpoint closed")

// Exchange is a request that was answered.
type Exchange struct {
	Answer message.Message
	// RTT is the time from just before the first transmission to just after the answer was read from the socket.
	RTT time.Duration
	// Attempts counts the transmissions, 1 without loss.
	Attempts int
}

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

// exchange sends a request and waits for the answer with its sequence number, from its address, of the right type.
func (e *Endpoint) exchange(
	ctx context.Context, peer netip.AddrPort, request message.Message, retries retries,
) (Exchange, error) {
	waiting := &pending{answerType: request.MessageType() + 1, answer: make(chan received, 1)}
	key := e.enlist(peer, request, waiting)
	defer e.delist(key)

	name := request.MessageTypeName()
	encoded, err := pfcp.Encode(request)
	if err != nil {
		return Exchange{}, err
	}
	timer := time.NewTimer(retries.t1)
	defer timer.Stop()
	start := time.Now()
	for attempt := 1; ; attempt++ {
		if err := e.socket.send(encoded, peer); err != nil {
			return Exchange{Attempts: attempt}, fmt.Errorf("%s to %s: %w", name, peer, err)
		}
		select {
		case got := <-waiting.answer:
			rtt := got.at.Sub(start)
			if got.message.MessageType() == message.MsgTypeVersionNotSupportedResponse {
				return Exchange{RTT: rtt, Attempts: attempt}, fmt.Errorf("%s to %s: the UPF does not speak PFCP version 1", name, peer)
			}
			return Exchange{got.message, rtt, attempt}, nil
		case <-ctx.Done():
			return Exchange{Attempts: attempt}, ctx.Err()
		case <-e.closed:
			return Exchange{Attempts: attempt}, ErrClosed
		case <-timer.C:
			if attempt > retries.n1 {
				return Exchange{Attempts: attempt},
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
