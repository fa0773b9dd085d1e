package n4

import (
	"net/netip"

	"github.com/wmnsk/go-pfcp/ie"
	"github.com/wmnsk/go-pfcp/message"

	"slicepilot/userplane/internal/pfcp"
	"slicepilot/userplane/internal/upf/session"
)

// record is what the control plane knows of a session.
type record struct {
	session *session.Session
	owner   *association
	cpSEID  uint64
	spec    *session.Spec
	keys    session.Keys
}

func (s *Server) establish(m *message.SessionEstablishmentRequest, from netip.AddrPort) message.Message {
	cpSEID, reject := s.parseFSEID(m.CPFSEID)
	answer := func(ies ...*ie.IE) message.Message {
		ies = append([]*ie.IE{s.nodeID()}, ies...)
		return message.NewSessionEstablishmentResponse(0, 0, cpSEID, m.Sequence(), 0, ies...)
	}
	r := &record{session: session.New(s.newSEID()), cpSEID: cpSEID, spec: session.NewSpec()}
	c := s.newChange(r)
	if reject == nil {
		r.owner, reject = s.ownerOf(m)
	}
	if reject == nil {
		reject = c.put(true, m.CreateFAR, m.CreateQER, m.CreatePDR)
	}
	if reject == nil {
		reject = c.commit()
	}
	if reject != nil {
		s.config.Log.Printf("N4: session from %s refused: %v", from, reject)
		return answer(reject.IEs()...)
	}
	s.sessions[r.session.SEID] = r
	accepted := []*ie.IE{ie.NewCause(ie.CauseRequestAccepted), pfcp.FSEID(r.session.SEID, s.config.NodeID)}
	return answer(append(accepted, c.created...)...)
}

// ownerOf is the association that a new session will belong to, where it may be made.
func (s *Server) ownerOf(m *message.SessionEstablishmentRequest) (*association, *pfcp.Reject) {
	nodeID, reject := nodeIDOf(m.NodeID)
	owner := s.associations[nodeID]
	switch {
	case reject != nil:
	case owner == nil:
		reject = &pfcp.Reject{Cause: ie.CauseNoEstablishedPFCPAssociation, Reason: "no association with " + nodeID}
	case len(m.CreatePDR) == 0:
		reject = pfcp.Missing(ie.CreatePDR, "Create PDR")
	case len(m.CreateFAR) == 0:
		reject = pfcp.Missing(ie.CreateFAR, "Create FAR")
	case len(s.sessions) >= s.config.MaxSessions:
		reject = &pfcp.Reject{Cause: ie.CauseNoResourcesAvailable, Reason: "as many sessions as allowed"}
	}
	return owner, reject
}

func (s *Server) modify(m *message.SessionModificationRequest) message.Message {
	r := s.sessions[m.SEID()]
	if r == nil {
		return message.NewSessionModificationResponse(0, 0, 0, m.Sequence(), 0, ie.NewCause(ie.CauseSessionContextNotFound))
	}
	answer := func(ies ...*ie.IE) message.Message {
		return message.NewSessionModificationResponse(0, 0, r.cpSEID, m.Sequence(), 0, ies...)
	}
	cpSEID := r.cpSEID
	if m.CPFSEID != nil {
		var reject *pfcp.Reject
		if cpSEID, reject = s.parseFSEID(m.CPFSEID); reject != nil {
			return answer(reject.IEs()...)
		}
	}
	c := s.newChange(r)
	reject := c.modify(m)
	if reject == nil {
		reject = c.commit()
	}
	if reject != nil {
		s.config.Log.Printf("N4: change of session %#x refused: %v", r.session.SEID, reject)
		return answer(reject.IEs()...)
	}
	r.cpSEID = cpSEID
	return answer(append([]*ie.IE{ie.NewCause(ie.CauseRequestAccepted)}, c.created...)...)
}

func (s *Server) delete(m *message.SessionDeletionRequest) message.Message {
	r := s.sessions[m.SEID()]
	if r == nil {
		return message.NewSessionDeletionResponse(0, 0, 0, m.Sequence(), 0, ie.NewCause(ie.CauseSessionContextNotFound))
	}
	s.remove(r)
	return message.NewSessionDeletionResponse(0, 0, r.cpSEID, m.Sequence(), 0, ie.NewCause(ie.CauseRequestAccepted))
}

// remove takes a session out of the data path.
func (s *Server) remove(r *record) {
	delete(s.sessions, r.session.SEID)
	s.install(r, &session.Rules{})
}

// install gives a session its rules in the data path, and the TEIDs and addresses that lead there.
func (s *Server) install(r *record, rules *session.Rules) {
	keys := rules.Keys()
	session.Move(s.plane.TEIDs, r.keys.TEIDs, keys.TEIDs, r.session)
	session.Move(s.plane.Addresses, r.keys.Addresses, keys.Addresses, r.session)
	r.session.Install(rules)
	r.keys = keys
}

// parseFSEID reads the SEID of a CP F-SEID (clause 8.2.37), which has to name an address that our socket can send to.
func (s *Server) parseFSEID(e *ie.IE) (uint64, *pfcp.Reject) {
	if e == nil {
		return 0, pfcp.Missing(ie.FSEID, "CP F-SEID")
	}
	f, err := e.FSEID()
	if err != nil {
		return 0, &pfcp.Reject{Cause: ie.CauseInvalidLength, Offending: ie.FSEID, Reason: err.Error()}
	}
	octets := f.IPv4Address
	if s.config.Socket.Local.Addr().Is6() {
		octets = f.IPv6Address
	}
	if _, ok := netip.AddrFromSlice(octets); !ok {
		return 0, pfcp.Incorrect(ie.FSEID, "CP F-SEID without an address of N4's family")
	}
	return f.SEID, nil
}
