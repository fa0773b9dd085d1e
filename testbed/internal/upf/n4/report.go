package n4

import (
	"github.com/wmnsk/go-pfcp/ie"
	"github.com/wmnsk/go-pfcp/message"

	"slicepilot/userplane/internal/upf/session"
)

// consumeEvents turns what the data path has met into session reports.
func (s *Server) consumeEvents() {
	defer s.loops.Done()
	for {
		select {
		case <-s.stop:
			return
		case event := <-s.plane.Events:
			s.mu.Lock()
			s.event(event)
			s.mu.Unlock()
		}
	}
}

func (s *Server) event(event session.Event) {
	if event.Kind == session.EventErrorIndication {
		s.errorIndication(event.Peer)
		return
	}
	r := s.sessions[event.Session.SEID]
	if r == nil { // deleted meanwhile
		return
	}
	switch event.Kind {
	case session.EventData:
		s.report(r, ie.NewReportType(0, 0, 0, 1), ie.NewDownlinkDataReport(ie.NewPDRID(event.PDR)))
	case session.EventVolume:
		s.usageEvent(r, event.Usage, triggerThreshold)
	case session.EventVolumeQuota:
		s.usageEvent(r, event.Usage, triggerQuota)
	}
}

func (s *Server) usageEvent(r *record, counter *session.Usage, why trigger) {
	if u := r.usage[counter.ID]; u != nil && u.counter == counter {
		s.reportUsage(r, u, why)
	}
}

func (s *Server) reportUsage(r *record, u *usage, why trigger) {
	s.report(r, ie.NewReportType(0, 0, 1, 0), u.report(ie.UsageReportWithinSessionReportRequest, why))
}

// errorIndication stops the tunnels that a peer does not know (TS 23.527 clause 5.3.3.1) and reports them.
func (s *Server) errorIndication(peer session.Peer) {
	for _, r := range s.sessions {
		for _, far := range r.objects.FARs {
			if far.Peer == peer && far.Tear() {
				s.config.Log.Printf("N4: session %#x: peer %s does not know TEID %#x", r.session.SEID, peer.Address, peer.TEID)
				s.report(r, ie.NewReportType(0, 1, 0, 0), ie.NewErrorIndicationReport(fteid(peer.TEID, peer.Address)))
			}
		}
	}
}

// report sends a Session Report Request. A CP function that answers that it does not know the session has lost it,
// and so it is removed here.
func (s *Server) report(r *record, ies ...*ie.IE) {
	build := func(seq uint32) message.Message {
		return message.NewSessionReportRequest(0, 0, r.cpSEID, seq, 0, ies...)
	}
	s.request(build, r.cp, func(answer message.Message) {
		response, ok := answer.(*message.SessionReportResponse)
		if !ok || response.Cause == nil || s.sessions[r.session.SEID] != r {
			return
		}
		if cause, err := response.Cause.Cause(); err == nil && cause == ie.CauseSessionContextNotFound {
			s.config.Log.Printf("N4: session %#x is not known to its CP function", r.session.SEID)
			s.remove(r)
		}
	})
}
