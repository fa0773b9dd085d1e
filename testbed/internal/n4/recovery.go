package n4

import (
	"context"
	"errors"
	"fmt"

	"github.com/wmnsk/go-pfcp/ie"
)

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
	p.startHeartbeats()
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
