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
	reply, outcome, err := p.endpoint.exchange(ctx, p.address, request, retries)
	answer, ok := reply.(A)
	if err == nil && !ok {
		err = fmt.Errorf("%s: unexpected answer %s", request.MessageTypeName(), reply.MessageTypeName())
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
	p.noteRecovery(answer.RecoveryTimeStamp)
	allocates := hasFTUP(answer.UPFunctionFeatures)
	p.mu.Lock()
	defer p.mu.Unlock()
	p.associated, p.lost, p.allocates = true, false, allocates
	return outcome, nil
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

// beat checks on the UPF (clause 6.2.2) while there is to be an association, until the endpoint is closed.
func (p *Peer) beat() {
	e := p.endpoint
	ticker := time.NewTicker(e.config.Heartbeat)
	defer ticker.Stop()
	for {
		select {
		case <-e.closed:
			return
		case <-ticker.C:
		}
		if !p.isWanted() {
			continue
		}
		request := message.NewHeartbeatRequest(0, ie.NewRecoveryTimeStamp(e.recovery), nil)
		reply, _, err := e.exchange(context.Background(), p.address, request, e.retries)
		switch {
		case errors.Is(err, ErrClosed):
			return
		case !p.isWanted(): // released meanwhile
		case err != nil:
			p.noteLost(err)
			// A UPF that has restarted does not know us and need not answer our heartbeats (Open5GS does not).
			p.recoverSoon()
		default:
			if answer, ok := reply.(*message.HeartbeatResponse); ok {
				p.heard(answer.RecoveryTimeStamp)
			}
		}
	}
}

func (p *Peer) isWanted() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.wanted
}

func (p *Peer) noteLost(err error) {
	p.mu.Lock()
	first := !p.lost
	p.lost = true
	p.mu.Unlock()
	if first {
		p.endpoint.emit(Event{Event: "peer_lost", UPF: p.address.String(), Detail: err.Error()})
	}
}

// heard takes note of a sign of life and of what its Recovery Time Stamp says.
func (p *Peer) heard(stamp *ie.IE) {
	restarted := p.noteRecovery(stamp)
	p.mu.Lock()
	back := p.lost
	p.lost = false
	repair := p.wanted && (restarted || !p.associated)
	p.mu.Unlock()
	switch {
	case restarted:
		p.endpoint.emit(Event{Event: "restart", UPF: p.address.String()})
	case back:
		p.endpoint.emit(Event{Event: "peer_back", UPF: p.address.String()})
	}
	if repair {
		p.recoverSoon()
	}
}

// noteRecovery remembers a Recovery Time Stamp and reports whether it tells of a restart: it is later than the one
// before. An earlier one is a message that was overtaken, and is not heeded (TS 23.007 clause 19A).
func (p *Peer) noteRecovery(stamp *ie.IE) bool {
	if stamp == nil {
		return false
	}
	at, err := stamp.RecoveryTimeStamp()
	if err != nil {
		return false
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	known := !p.recovery.IsZero()
	if known && !at.After(p.recovery) {
		return false
	}
	p.recovery = at
	return known
}

// recoverSoon sets everything up again, in the background, unless that is under way. A UPF that restarted has lost its
// association and its sessions (TS 23.527 clause 4.2): both are set up as they were last.
func (p *Peer) recoverSoon() {
	p.mu.Lock()
	if p.recovering || !p.wanted {
		p.mu.Unlock()
		return
	}
	p.recovering, p.associated = true, false
	p.mu.Unlock()
	p.endpoint.spawn(func() {
		p.recover(context.Background())
		p.mu.Lock()
		p.recovering = false
		p.mu.Unlock()
	})
}

func (p *Peer) recover(ctx context.Context) {
	p.procedure.Lock()
	defer p.procedure.Unlock()
	upf := p.address.String()
	p.mu.Lock()
	lost := p.lost
	p.mu.Unlock()
	patience := p.endpoint.retries
	if lost { // whoever asks something of it meanwhile waits for this
		patience = retries{t1: p.endpoint.config.T1}
	}
	if _, err := p.setUp(ctx, patience); err != nil {
		// The next heartbeat tries again. Of a UPF that is lost it has been said that it does not answer.
		if !lost {
			p.endpoint.emit(Event{Event: "recovery_failed", UPF: upf, Detail: err.Error()})
		}
		return
	}
	if lost {
		p.endpoint.emit(Event{Event: "peer_back", UPF: upf})
	}
	p.finishRecovery(ctx)
}

func (p *Peer) finishRecovery(ctx context.Context) {
	done, err := p.reestablish(ctx)
	event := Event{Event: "recovered", UPF: p.address.String(), Count: done}
	if err != nil {
		event.Detail = err.Error()
		event.Failed = len(p.sessionsInOrder()) - done
	}
	p.endpoint.emit(event)
}

// reestablish establishes all sessions again with the rules they had last, and says how many, and why not all.
func (p *Peer) reestablish(ctx context.Context) (int, error) {
	done, failures := 0, []error(nil)
	for _, session := range p.sessionsInOrder() {
		if _, err := p.establish(ctx, session); err != nil {
			failures = append(failures, fmt.Errorf("session %s: %w", session.Name, err))
			continue
		}
		done++
	}
	return done, errors.Join(failures...)
}

// invited takes note that the UPF itself has asked for the association. It has none of the sessions then.
func (p *Peer) invited(stamp, features *ie.IE) {
	p.noteRecovery(stamp)
	allocates := hasFTUP(features)
	p.mu.Lock()
	p.wanted, p.associated, p.lost = true, true, false
	p.allocates = allocates
	p.mu.Unlock()
	p.endpoint.emit(Event{Event: "associated", UPF: p.address.String(), Detail: "asked for by the UPF"})
	p.endpoint.spawn(func() {
		p.procedure.Lock()
		defer p.procedure.Unlock()
		p.finishRecovery(context.Background())
	})
}

// noteContextLoss starts a recovery where a refusal shows that the UPF has lost its association or the session: it can
// have restarted within the second that Recovery Time Stamps are counted in.
func (p *Peer) noteContextLoss(err error) {
	var rejected *RejectedError
	if !errors.As(err, &rejected) {
		return
	}
	switch rejected.Cause {
	case ie.CauseNoEstablishedPFCPAssociation, ie.CauseSessionContextNotFound:
		p.endpoint.emit(Event{Event: "context_lost", UPF: p.address.String(), Detail: err.Error()})
		p.recoverSoon()
	}
}
