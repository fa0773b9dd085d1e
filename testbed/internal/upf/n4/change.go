package n4

import (
	"github.com/wmnsk/go-pfcp/ie"
	"github.com/wmnsk/go-pfcp/message"

	"slicepilot/userplane/internal/pfcp"
	"slicepilot/userplane/internal/upf/session"
)

// change is a session's rules on their way to new ones. Nothing of the session is touched before commit, which either
// does everything or nothing.
type change struct {
	server     *Server
	record     *record
	spec       *session.Spec
	created    []*ie.IE // for the answer: Created PDRs, usage reports
	chosen     map[int]uint32
	taken      map[uint32]struct{}
	endMarkers []*session.FAR
	discard    bool
	removed    map[uint32]*usage
	queries    []uint32
	updated    map[uint32]bool // URRs whose limits are set anew
}

func (s *Server) newChange(r *record) *change {
	return &change{
		server: s, record: r, spec: r.spec.Clone(), chosen: map[int]uint32{}, taken: map[uint32]struct{}{},
		removed: map[uint32]*usage{}, updated: map[uint32]bool{},
	}
}

// elements are the rules in an establishment or modification request.
type elements struct {
	removePDR, removeFAR, removeQER, removeURR, removeBAR []*ie.IE
	createPDR, createFAR, createQER, createURR, createBAR []*ie.IE
	updatePDR, updateFAR, updateQER, updateURR, updateBAR []*ie.IE
	queryURR                                              []*ie.IE
	flags                                                 *ie.IE
}

func one(e *ie.IE) []*ie.IE {
	if e == nil {
		return nil
	}
	return []*ie.IE{e}
}

func establishmentElements(m *message.SessionEstablishmentRequest) elements {
	return elements{
		createPDR: m.CreatePDR, createFAR: m.CreateFAR, createQER: m.CreateQER, createURR: m.CreateURR,
		createBAR: one(m.CreateBAR),
	}
}

func modificationElements(m *message.SessionModificationRequest) elements {
	return elements{
		removePDR: m.RemovePDR, removeFAR: m.RemoveFAR, removeQER: m.RemoveQER, removeURR: m.RemoveURR,
		removeBAR: one(m.RemoveBAR),
		createPDR: m.CreatePDR, createFAR: m.CreateFAR, createQER: m.CreateQER, createURR: m.CreateURR,
		createBAR: one(m.CreateBAR),
		updatePDR: m.UpdatePDR, updateFAR: m.UpdateFAR, updateQER: m.UpdateQER, updateURR: m.UpdateURR,
		updateBAR: one(m.UpdateBAR),
		queryURR:  m.QueryURR, flags: m.PFCPSMReqFlags,
	}
}

// Flags of PFCPSMReq-Flags (clause 8.2.59).
const (
	flagDropBuffered = 0x01
	flagQueryAll     = 0x04
)

// read applies a request to the copy of the rules: removals first, so that an ID can be used again at once.
func (c *change) read(e elements) *pfcp.Reject {
	steps := []struct {
		groups []*ie.IE
		apply  func(*ie.IE) *pfcp.Reject
	}{
		{e.removePDR, c.removePDR}, {e.removeFAR, c.removeFAR}, {e.removeQER, c.removeQER},
		{e.removeURR, c.removeURR}, {e.removeBAR, c.removeBAR},
		{e.createBAR, c.createBAR}, {e.createFAR, c.createFAR}, {e.createQER, c.createQER},
		{e.createURR, c.createURR}, {e.createPDR, c.createPDR},
		{e.updateBAR, c.updateBAR}, {e.updateFAR, c.updateFAR}, {e.updateQER, c.updateQER},
		{e.updateURR, c.updateURR}, {e.updatePDR, c.updatePDR},
		{e.queryURR, c.queryURR},
	}
	for _, step := range steps {
		for _, group := range step.groups {
			if reject := step.apply(group); reject != nil {
				return reject
			}
		}
	}
	if e.flags != nil && len(e.flags.Payload) > 0 {
		c.discard = e.flags.Payload[0]&flagDropBuffered != 0
		if e.flags.Payload[0]&flagQueryAll != 0 {
			c.queryAll()
		}
	}
	return nil
}

// commit compiles the new rules and, if nothing speaks against them, makes them the session's.
func (c *change) commit() *pfcp.Reject {
	s, r := c.server, c.record
	rules, objects, reject := s.compiler.Compile(c.spec, r.objects)
	if reject != nil {
		return reject
	}
	if reject := c.checkKeys(); reject != nil {
		return reject
	}
	keys := rules.Keys()
	buffered := r.buffers()
	for teid := range keys.TEIDs {
		s.plane.TEIDs.Put(teid, r.session)
	}
	for address := range keys.Addresses {
		s.plane.Addresses.Put(address, r.session)
	}
	if c.discard { // ahead of the rules: a packet that sees these must not find what was to be discarded
		s.plane.Discard(r.session)
	}
	r.session.Install(rules)
	c.dropKeys(keys)
	r.spec, r.objects, r.keys = c.spec, objects, keys
	c.settleUsage()
	if buffered {
		s.plane.Flush(r.session)
	}
	for _, far := range c.endMarkers {
		s.plane.SendEndMarker(far)
	}
	return nil
}

// dropKeys removes the keys that the session no longer has.
func (c *change) dropKeys(keys session.Keys) {
	for teid := range c.record.keys.TEIDs {
		if _, kept := keys.TEIDs[teid]; !kept {
			c.server.plane.TEIDs.Delete(teid)
		}
	}
	for address := range c.record.keys.Addresses {
		if _, kept := keys.Addresses[address]; !kept {
			c.server.plane.Addresses.Delete(address)
		}
	}
}
