package n4

import (
	"net/netip"
	"time"

	"github.com/wmnsk/go-pfcp/ie"
	"github.com/wmnsk/go-pfcp/message"

	"slicepilot/userplane/internal/pfcp"
)

// replyCacheSize is how many of the last answers are kept to answer repeated requests, and replyTime for how long: more
// than UPFs send within T1 times N1.
const (
	replyCacheSize = 256
	replyTime      = 20 * time.Second
)

// answer serves a UPF's request; one that comes again has not seen its answer, and gets the same (clause 6.4). Only the
// reader calls it.
func (e *Endpoint) answer(request message.Message, header pfcp.Header, b []byte, from netip.AddrPort, at time.Time) {
	if reply := e.replies.Answer(from, header, b, at); reply != nil {
		_ = e.socket.send(reply, from)
		return
	}
	reply := e.reply(request, from)
	if reply == nil {
		return
	}
	encoded, err := pfcp.Encode(reply)
	if err != nil {
		e.emit(Event{Event: "error", UPF: from.String(), Detail: err.Error()})
		return
	}
	e.replies.Remember(from, header, b, encoded, at)
	// What cannot be sent now will be asked for again.
	_ = e.socket.send(encoded, from)
}

// reply is the answer to a request; nil: none, because an SMF is not asked such things.
func (e *Endpoint) reply(request message.Message, from netip.AddrPort) message.Message {
	peer := e.peer(from)
	switch m := request.(type) {
	case *message.HeartbeatRequest:
		if peer != nil {
			peer.heard(m.RecoveryTimeStamp)
		}
		return message.NewHeartbeatResponse(m.Sequence(), ie.NewRecoveryTimeStamp(e.recovery))
	case *message.AssociationSetupRequest:
		return e.replyToAssociation(m, peer)
	case *message.SessionReportRequest:
		return e.replyToSessionReport(m, from)
	}
	return nil
}

// replyToAssociation accepts an association that a known UPF asks for (clause 6.2.6.3).
func (e *Endpoint) replyToAssociation(m *message.AssociationSetupRequest, peer *Peer) message.Message {
	cause := ie.CauseRequestRejected
	if peer != nil {
		cause = ie.CauseRequestAccepted
		peer.invited(m.RecoveryTimeStamp, m.UPFunctionFeatures)
	}
	return message.NewAssociationSetupResponse(m.Sequence(),
		e.nodeID(peer), ie.NewCause(cause), ie.NewRecoveryTimeStamp(e.recovery))
}

// replyToSessionReport acknowledges a report on a session (clause 7.5.8), which is of no use here.
func (e *Endpoint) replyToSessionReport(m *message.SessionReportRequest, from netip.AddrPort) message.Message {
	peer, session := e.session(m.SEID())
	if session == nil || peer.address.Addr() != from.Addr() {
		// The header's SEID is then 0: the peer's is not known (clause 7.2.2.4.2).
		return message.NewSessionReportResponse(0, 0, 0, m.Sequence(), 0, ie.NewCause(ie.CauseSessionContextNotFound))
	}
	return message.NewSessionReportResponse(0, 0, session.upSEID.Load(), m.Sequence(), 0,
		ie.NewCause(ie.CauseRequestAccepted))
}

// rejectVersion answers a request of another PFCP version (clause 7.6.1). Its sequence number is where version 1 has
// it; an answer, known by its odd or even type, is not answered.
func (e *Endpoint) rejectVersion(header pfcp.Header, from netip.AddrPort) {
	if isAnswer(header.Type) {
		return
	}
	if encoded, err := pfcp.Encode(message.NewVersionNotSupportedResponse(header.Seq)); err == nil {
		_ = e.socket.send(encoded, from)
	}
}

// nodeID is how this SMF names itself to a peer.
func (e *Endpoint) nodeID(peer *Peer) *ie.IE {
	if e.config.NodeID == "" && peer != nil {
		return ie.NewNodeIDHeuristic(peer.local.String())
	}
	if e.config.NodeID == "" {
		return ie.NewNodeIDHeuristic(e.socket.local.Addr().String())
	}
	return ie.NewNodeIDHeuristic(e.config.NodeID)
}
