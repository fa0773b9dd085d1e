package n4

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"sync"
	"time"

	"github.com/wmnsk/go-pfcp/ie"
	"github.com/wmnsk/go-pfcp/message"
)

// Peer is one UPF: its association and its sessions.
type Peer struct {
	endpoint *Endpoint
	address  netip.AddrPort
	local    netip.Addr // this SMF's address as the UPF sees it

	// procedure is held during association and session procedures, so that they do not overtake each other.
	procedure sync.Mutex

	mu         sync.Mutex
	wanted     bool // the association is to exist: asked for and not released
	associated bool
	recovering bool
	lost       bool      // does not answer heartbeats
	recovery   time.Time // the UPF's Recovery Time Stamp; zero before it is known
	allocates  bool      // feature FTUP: the UPF can choose F-TEIDs
	sessions   map[string]*Session
	heart      context.CancelFunc // stops the heartbeats; nil: there are none
}

// Outcome is what became of a request that was answered.
type Outcome struct {
	Cause    uint8
	RTT      time.Duration
	Attempts int
	TEID     uint32     // of the uplink tunnel: given, or chosen by the UPF
	N3       netip.Addr // the UPF's address of the uplink tunnel
}

// askFor sends a request and returns its answer with the outcome so far. exchange has seen to the answer's type
// already; a message of that type that go-pfcp decodes into something else cannot be used.
func askFor[A message.Message](ctx context.Context, p *Peer, request message.Message, retries retries) (A, Outcome, error) {
	done, err := p.endpoint.exchange(ctx, p.address, request, retries)
	outcome := Outcome{RTT: done.RTT, Attempts: done.Attempts}
	answer, ok := done.Answer.(A)
	if err == nil && !ok {
		err = fmt.Errorf("%s: unexpected answer %s", request.MessageTypeName(), done.Answer.MessageTypeName())
	}
	return answer, outcome, err
}

// Address is where the UPF is.
func (p *Peer) Address() netip.AddrPort { return p.address }

// Associated reports whether there is an association.
func (p *Peer) Associated() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.associated
}

// Associate sets up the association (clause 6.2.6.2) and starts heartbeats. A UPF drops the sessions of an association
// that is set up anew, so those that exist are established again.
func (p *Peer) Associate(ctx context.Context) (Outcome, error) {
	p.procedure.Lock()
	defer p.procedure.Unlock()
	outcome, err := p.setUp(ctx, p.endpoint.retries)
	if err != nil {
		return outcome, err
	}
	p.mu.Lock()
	p.wanted = true
	p.mu.Unlock()
	p.startHeartbeats()
	if _, failed := p.reestablish(ctx); failed != nil {
		return outcome, fmt.Errorf("associated, but a session could not be established again: %w", failed)
	}
	return outcome, nil
}

func (p *Peer) setUp(ctx context.Context, retries retries) (Outcome, error) {
	e := p.endpoint
	request := message.NewAssociationSetupRequest(0, e.nodeID(p), ie.NewRecoveryTimeStamp(e.recovery))
	answer, outcome, err := askFor[*message.AssociationSetupResponse](ctx, p, request, retries)
	if err != nil {
		return outcome, err
	}
	if outcome.Cause, err = verdict(request.MessageTypeName(), answer.Cause, nil, nil); err != nil {
		return outcome, err
	}
	p.noteSetUp(answer)
	return outcome, nil
}

func (p *Peer) noteSetUp(answer *message.AssociationSetupResponse) {
	p.noteRecovery(answer.RecoveryTimeStamp)
	allocates := hasFTUP(answer.UPFunctionFeatures)
	p.mu.Lock()
	defer p.mu.Unlock()
	p.associated, p.lost, p.allocates = true, false, allocates
}

// hasFTUP reads whether a UPF can choose F-TEIDs from its UP Function Features (clause 8.2.25), which it may leave out.
func hasFTUP(features *ie.IE) bool {
	return features != nil && len(features.Payload) > 0 && features.HasFTUP()
}

// Release ends the association and with it, at the UPF, all its sessions (clause 6.2.8). Not every UPF
// implements that: one transmission, and at the first silence it is over.
func (p *Peer) Release(ctx context.Context) (Outcome, error) {
	p.procedure.Lock()
	defer p.procedure.Unlock()
	outcome, err := p.release(ctx, retries{t1: p.endpoint.config.T1})
	if errors.Is(err, ErrNoAnswer) {
		p.forget()
		return outcome, fmt.Errorf("%w: it may not implement Association Release; here it counts as released, with its sessions", err)
	}
	return outcome, err
}

func (p *Peer) release(ctx context.Context, retries retries) (Outcome, error) {
	request := message.NewAssociationReleaseRequest(0, p.endpoint.nodeID(p))
	answer, outcome, err := askFor[*message.AssociationReleaseResponse](ctx, p, request, retries)
	if err != nil {
		return outcome, err
	}
	if outcome.Cause, err = verdict(request.MessageTypeName(), answer.Cause, nil, nil); err != nil {
		return outcome, err
	}
	p.forget()
	return outcome, nil
}

// forget drops all that is known of the association and the sessions.
func (p *Peer) forget() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.heart != nil {
		p.heart()
		p.heart = nil
	}
	p.wanted, p.associated, p.lost = false, false, false
	p.recovery = time.Time{}
	clear(p.sessions)
}

// Shutdown takes leave: it deletes the sessions and releases the association with one transmission each, and gives a
// UPF up at its first silence. Nobody should wait long for a program that ends.
func (p *Peer) Shutdown(ctx context.Context) error {
	p.procedure.Lock()
	defer p.procedure.Unlock()
	if !p.Associated() {
		return nil
	}
	once := retries{t1: min(p.endpoint.config.T1, 250*time.Millisecond)}
	for _, session := range p.sessionsInOrder() {
		if _, err := p.delete(ctx, session, once); err != nil {
			return err
		}
	}
	_, err := p.release(ctx, once)
	return err
}
