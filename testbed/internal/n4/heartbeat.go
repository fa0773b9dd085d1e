package n4

import (
	"context"
	"errors"
	"time"

	"github.com/wmnsk/go-pfcp/ie"
	"github.com/wmnsk/go-pfcp/message"
)

// startHeartbeats begins to check on the UPF (clause 6.2.2), unless that is going on or not wanted.
func (p *Peer) startHeartbeats() {
	if p.endpoint.config.Heartbeat <= 0 {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.heart != nil {
		return
	}
	ctx, cancel := context.WithCancel(context.Background())
	p.heart = cancel
	p.endpoint.spawn(func() { p.beat(ctx) })
}

func (p *Peer) beat(ctx context.Context) {
	e := p.endpoint
	ticker := time.NewTicker(e.config.Heartbeat)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-e.closed:
			return
		case <-ticker.C:
		}
		request := message.NewHeartbeatRequest(0, ie.NewRecoveryTimeStamp(e.recovery), nil)
		done, err := e.exchange(ctx, p.address, request, e.retries)
		switch {
		case ctx.Err() != nil || errors.Is(err, ErrClosed):
			return
		case err != nil:
			p.noteLost(err)
			// A UPF that has restarted does not know us and need not answer our heartbeats (Open5GS does not).
			p.recoverSoon()
		default:
			if answer, ok := done.Answer.(*message.HeartbeatResponse); ok {
				p.heard(answer.RecoveryTimeStamp)
			}
		}
	}
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
