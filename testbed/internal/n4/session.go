package n4

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"sync/atomic"

	"github.com/wmnsk/go-pfcp/ie"
	"github.com/wmnsk/go-pfcp/message"

	"slicepilot/userplane/internal/pfcp"
)

// Session is an established PFCP session.
type Session struct {
	Name   string
	cpSEID uint64
	upSEID atomic.Uint64
	// Guarded by the peer's procedure mutex.
	rules rules
}

// session finds the session a UPF's message is about.
func (e *Endpoint) session(cpSEID uint64) (*Peer, *Session) {
	for _, peer := range e.Peers() {
		peer.mu.Lock()
		for _, session := range peer.sessions {
			if session.cpSEID == cpSEID {
				peer.mu.Unlock()
				return peer, session
			}
		}
		peer.mu.Unlock()
	}
	return nil, nil
}

// PeerOf is the UPF that has a session of this name.
func (e *Endpoint) PeerOf(name string) (*Peer, error) {
	for _, peer := range e.Peers() {
		if _, err := peer.sessionNamed(name); err == nil {
			return peer, nil
		}
	}
	return nil, fmt.Errorf("session %q: no UPF has one of that name", name)
}

func (p *Peer) sessionsInOrder() []*Session {
	p.mu.Lock()
	defer p.mu.Unlock()
	result := make([]*Session, 0, len(p.sessions))
	for _, session := range p.sessions {
		result = append(result, session)
	}
	slices.SortFunc(result, func(a, b *Session) int { return strings.Compare(a.Name, b.Name) })
	return result
}

func (p *Peer) sessionNamed(name string) (*Session, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	session := p.sessions[name]
	if session == nil {
		return nil, fmt.Errorf("session %q: UPF %s has none of that name", name, p.address)
	}
	return session, nil
}

// Sessions are the names of the UPF's sessions, sorted.
func (p *Peer) Sessions() []string {
	var names []string
	for _, session := range p.sessionsInOrder() {
		names = append(names, session.Name)
	}
	return names
}

// Establish sets up a session (clause 6.3.2) whose specification is valid and whose name no other has.
func (p *Peer) Establish(ctx context.Context, spec SessionSpec) (Outcome, error) {
	p.procedure.Lock()
	defer p.procedure.Unlock()
	p.mu.Lock()
	associated, allocates := p.associated, p.allocates
	p.mu.Unlock()
	switch {
	case !associated:
		return Outcome{}, fmt.Errorf("UPF %s: not associated; associate first", p.address)
	case spec.TEID == 0 && !allocates:
		return Outcome{}, fmt.Errorf("teid: missing, and UPF %s does not choose TEIDs (feature FTUP); expected teid and n3",
			p.address)
	}
	session := &Session{Name: spec.Name, cpSEID: p.endpoint.allocateSEID(), rules: rules{SessionSpec: spec}}
	// Known before it is asked for: a report may overtake the answer.
	p.mu.Lock()
	p.sessions[spec.Name] = session
	p.mu.Unlock()
	outcome, err := p.establish(ctx, session)
	if err != nil {
		p.drop(session)
		p.noteContextLoss(err)
	}
	return outcome, err
}

func (p *Peer) establish(ctx context.Context, session *Session) (Outcome, error) {
	e, spec := p.endpoint, &session.rules.SessionSpec
	parts := []*ie.IE{e.nodeID(p), pfcp.FSEID(session.cpSEID, p.local)}
	parts = append(parts, session.rules.create()...)
	parts = append(parts, pdnType(spec.UE), ie.NewAPNDNN(spec.DNN))
	if spec.SST != nil {
		parts = append(parts, ie.NewSNSSAI(*spec.SST, spec.SD))
	}
	// The UPF's SEID is not known yet: 0 (clause 7.2.2.4.2).
	request := message.NewSessionEstablishmentRequest(0, 0, 0, 0, 0, parts...)
	answer, outcome, err := askFor[*message.SessionEstablishmentResponse](ctx, p, request, e.retries)
	if err != nil {
		return outcome, err
	}
	outcome.Cause, err = verdict(request.MessageTypeName(), answer.Cause, answer.OffendingIE, answer.FailedRuleID)
	if err != nil {
		return outcome, err
	}
	seid, err := upSEID(answer.UPFSEID)
	if err != nil {
		return outcome, err
	}
	session.upSEID.Store(seid)
	outcome.TEID, outcome.N3 = spec.TEID, spec.N3
	if spec.TEID == 0 {
		outcome.TEID, outcome.N3, err = chosenTunnel(answer.CreatedPDR)
	}
	return outcome, err
}

// Modify changes a session's rules (clause 6.3.3).
func (p *Peer) Modify(ctx context.Context, name string, change Change) (Outcome, error) {
	p.procedure.Lock()
	defer p.procedure.Unlock()
	session, err := p.sessionNamed(name)
	if err != nil {
		return Outcome{}, err
	}
	wanted := session.rules.with(change)
	if err := wanted.Validate(); err != nil {
		return Outcome{}, err
	}
	e := p.endpoint
	request := message.NewSessionModificationRequest(0, 0, session.upSEID.Load(), 0, 0, wanted.change(change))
	answer, outcome, err := askFor[*message.SessionModificationResponse](ctx, p, request, e.retries)
	if err != nil {
		return outcome, err
	}
	outcome.Cause, err = verdict(request.MessageTypeName(), answer.Cause, answer.OffendingIE, answer.FailedRuleID)
	if err != nil {
		p.noteContextLoss(err)
		return outcome, err
	}
	session.rules = wanted
	return outcome, nil
}

// Delete ends a session (clause 6.3.4).
func (p *Peer) Delete(ctx context.Context, name string) (Outcome, error) {
	p.procedure.Lock()
	defer p.procedure.Unlock()
	session, err := p.sessionNamed(name)
	if err != nil {
		return Outcome{}, err
	}
	return p.delete(ctx, session, p.endpoint.retries)
}

func (p *Peer) delete(ctx context.Context, session *Session, retries retries) (Outcome, error) {
	request := message.NewSessionDeletionRequest(0, 0, session.upSEID.Load(), 0, 0)
	answer, outcome, err := askFor[*message.SessionDeletionResponse](ctx, p, request, retries)
	if err != nil {
		return outcome, err
	}
	outcome.Cause, err = verdict(request.MessageTypeName(), answer.Cause, answer.OffendingIE, nil)
	var rejected *RejectedError
	if err == nil || (errors.As(err, &rejected) && rejected.Cause == ie.CauseSessionContextNotFound) {
		p.drop(session) // the UPF has none such any more, which is what was wanted
	}
	return outcome, err
}

func (p *Peer) drop(session *Session) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.sessions[session.Name] == session {
		delete(p.sessions, session.Name)
	}
}

// upSEID reads the UPF's identifier of the session, which an acceptance has to name.
func upSEID(fseid *ie.IE) (uint64, error) {
	if fseid == nil {
		return 0, errors.New("accepted without UP F-SEID, which is mandatory then")
	}
	fields, err := fseid.FSEID()
	if err != nil {
		return 0, fmt.Errorf("unreadable UP F-SEID: %w", err)
	}
	return fields.SEID, nil
}

// chosenTunnel reads the F-TEID that the UPF chose for the uplink PDR (clause 7.5.3.2).
func chosenTunnel(created []*ie.IE) (teid uint32, n3 netip.Addr, err error) {
	for _, pdr := range created {
		id, _ := pdr.PDRID()
		chosen, err := pdr.FTEID()
		if id != uplinkRule || err != nil {
			continue
		}
		address, ok := netip.AddrFromSlice(chosen.IPv4Address)
		if !ok {
			address, _ = netip.AddrFromSlice(chosen.IPv6Address)
		}
		return chosen.TEID, address.Unmap(), nil
	}
	return 0, netip.Addr{}, errors.New("accepted without the F-TEID that the UPF was to choose")
}
