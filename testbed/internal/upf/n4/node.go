package n4

import (
	"net/netip"
	"time"

	"github.com/wmnsk/go-pfcp/ie"
	"github.com/wmnsk/go-pfcp/message"

	"slicepilot/userplane/internal/pfcp"
	"slicepilot/userplane/internal/upf/netio"
)

const maxSeq = 1<<24 - 1

// association is a PFCP association with a CP function.
type association struct {
	nodeID     string
	peer       netip.AddrPort // where its last node-related request came from
	started    time.Time      // its Recovery Time Stamp
	unanswered int            // heartbeats to it since it has answered one
	sequence   uint32         // of the last of them
}

// featureFTUP says in octet 5 of the UP function features (clause 8.2.25) that F-TEIDs are allocated here.
const featureFTUP = 0x10

func (s *Server) heartbeat(m *message.HeartbeatRequest, from netip.AddrPort) message.Message {
	for _, a := range s.associations {
		if a.peer == from {
			s.checkRestart(a, m.RecoveryTimeStamp)
		}
	}
	return message.NewHeartbeatResponse(m.Sequence(), s.recoveryTimeStamp())
}

// checkRestart drops what a CP function has forgotten: one whose Recovery Time Stamp is later than the one it had
// when the association was set up has restarted (TS 23.527 clause 4.2).
func (s *Server) checkRestart(a *association, stamp *ie.IE) {
	if stamp == nil {
		return
	}
	if started, err := stamp.RecoveryTimeStamp(); err == nil && started.After(a.started) {
		s.dropAssociation(a, "peer has restarted")
	}
}

func (s *Server) associate(m *message.AssociationSetupRequest, from netip.AddrPort) message.Message {
	answer := func(cause *ie.IE, more ...*ie.IE) message.Message {
		ies := append([]*ie.IE{s.nodeID(), cause}, more...)
		return message.NewAssociationSetupResponse(m.Sequence(), ies...)
	}
	nodeID, reject := nodeIDOf(m.NodeID)
	if reject == nil && m.RecoveryTimeStamp == nil {
		reject = pfcp.Missing(ie.RecoveryTimeStamp, "Recovery Time Stamp")
	}
	var started time.Time
	if reject == nil {
		var err error
		if started, err = m.RecoveryTimeStamp.RecoveryTimeStamp(); err != nil {
			reject = &pfcp.Reject{Cause: ie.CauseInvalidLength, Offending: ie.RecoveryTimeStamp, Reason: err.Error()}
		}
	}
	if reject != nil {
		s.config.Log.Printf("N4: association from %s refused: %v", from, reject)
		ies := reject.IEs()
		return answer(ies[0], append(ies[1:], s.recoveryTimeStamp())...)
	}
	// An association that exists is replaced, with its sessions (clause 6.2.6.2.2), and the memory of answers to it.
	if old := s.associations[nodeID]; old != nil {
		s.dropAssociation(old, "set up anew")
	}
	s.replies.Forget(from.Addr())
	s.associations[nodeID] = &association{nodeID: nodeID, peer: from, started: started}
	s.config.Log.Printf("N4: association with %s (%s)", nodeID, from)
	return answer(ie.NewCause(ie.CauseRequestAccepted), s.recoveryTimeStamp(),
		ie.NewUPFunctionFeatures(featureFTUP, 0))
}

func (s *Server) updateAssociation(m *message.AssociationUpdateRequest, from netip.AddrPort) message.Message {
	cause := s.causeOfNode(m.NodeID, func(a *association) { a.peer = from })
	return message.NewAssociationUpdateResponse(m.Sequence(), s.nodeID(), cause)
}

func (s *Server) release(m *message.AssociationReleaseRequest) message.Message {
	cause := s.causeOfNode(m.NodeID, func(a *association) { s.dropAssociation(a, "released") })
	return message.NewAssociationReleaseResponse(m.Sequence(), s.nodeID(), cause)
}

// causeOfNode does something to the association of a Node ID and returns the cause to answer with.
func (s *Server) causeOfNode(nodeIE *ie.IE, do func(*association)) *ie.IE {
	nodeID, reject := nodeIDOf(nodeIE)
	if reject != nil {
		return ie.NewCause(reject.Cause)
	}
	a := s.associations[nodeID]
	if a == nil {
		return ie.NewCause(ie.CauseNoEstablishedPFCPAssociation)
	}
	do(a)
	return ie.NewCause(ie.CauseRequestAccepted)
}

func nodeIDOf(e *ie.IE) (string, *pfcp.Reject) {
	if e == nil {
		return "", pfcp.Missing(ie.NodeID, "Node ID")
	}
	nodeID, err := e.NodeID()
	if err != nil {
		return "", pfcp.Incorrect(ie.NodeID, err.Error())
	}
	return nodeID, nil
}

// dropAssociation ends an association and the sessions that belong to it.
func (s *Server) dropAssociation(a *association, why string) {
	delete(s.associations, a.nodeID)
	sessions := 0
	for _, r := range s.sessions {
		if r.owner == a {
			s.remove(r)
			sessions++
		}
	}
	s.config.Log.Printf("N4: association with %s ended: %s; %d sessions removed", a.nodeID, why, sessions)
}

// keepBeating sends heartbeats until Stop.
func (s *Server) keepBeating() {
	defer s.loops.Done()
	ticker := time.NewTicker(s.config.Heartbeat)
	defer ticker.Stop()
	for {
		select {
		case <-s.stopped:
			return
		case <-ticker.C:
			s.beat()
		}
	}
}

// beat sends a heartbeat to each CP function, and ends the association of one that leaves too many unanswered.
func (s *Server) beat() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, a := range s.associations {
		if a.unanswered == maxUnanswered {
			s.stats.Unanswered++
			s.dropAssociation(a, "heartbeats are not answered")
			continue
		}
		s.nextSeq = (s.nextSeq + 1) & maxSeq
		octets, err := pfcp.Encode(message.NewHeartbeatRequest(s.nextSeq, s.recoveryTimeStamp(), nil))
		if err != nil {
			s.config.Log.Printf("N4: %v", err)
			return
		}
		a.unanswered++
		a.sequence = s.nextSeq
		// Requests go to the registered port (clause 4.2.2), whatever port a peer sends its own from, unless configured
		// otherwise.
		port := s.config.PeerPort
		if port == 0 {
			port = a.peer.Port()
		}
		to := netio.SockaddrOf(netip.AddrPortFrom(a.peer.Addr(), port))
		s.send(octets, &to)
	}
}

// answered takes the answer to the last heartbeat of an association, which its sequence number tells from those of other
// CP functions with the same address; any other answer is ignored.
func (s *Server) answered(m message.Message, from netip.AddrPort) {
	response, ok := m.(*message.HeartbeatResponse)
	for _, a := range s.associations {
		if ok && a.unanswered > 0 && a.peer.Addr() == from.Addr() && response.Sequence() == a.sequence {
			a.unanswered = 0
			s.checkRestart(a, response.RecoveryTimeStamp)
		}
	}
}
