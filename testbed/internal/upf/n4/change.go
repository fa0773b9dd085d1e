package n4

import (
	"slices"

	"github.com/wmnsk/go-pfcp/ie"
	"github.com/wmnsk/go-pfcp/message"

	"slicepilot/userplane/internal/pfcp"
	"slicepilot/userplane/internal/upf/session"
)

// change is a session's rules on their way to new ones. Nothing of the session is touched before commit, which either
// does everything or nothing. Rules about usage (URR) and buffering (BAR) are accepted and not acted on.
type change struct {
	server  *Server
	record  *record
	spec    *session.Spec
	created []*ie.IE // Created PDRs, for the answer
	chosen  map[int]uint32
	taken   map[uint32]struct{}
}

func (s *Server) newChange(r *record) *change {
	return &change{
		server: s, record: r, spec: r.spec.Clone(), chosen: map[int]uint32{}, taken: map[uint32]struct{}{},
	}
}

// step is what a request asks of one kind of element.
type step struct {
	groups []*ie.IE
	apply  func(*ie.IE) *pfcp.Reject
}

func (c *change) establish(m *message.SessionEstablishmentRequest) *pfcp.Reject {
	return apply(step{m.CreateFAR, c.createFAR}, step{m.CreateQER, c.createQER}, step{m.CreatePDR, c.createPDR})
}

// modify removes first, so that an ID can be used again at once.
func (c *change) modify(m *message.SessionModificationRequest) *pfcp.Reject {
	return apply(
		step{m.RemovePDR, c.removePDR}, step{m.RemoveFAR, c.removeFAR}, step{m.RemoveQER, c.removeQER},
		step{m.CreateFAR, c.createFAR}, step{m.CreateQER, c.createQER}, step{m.CreatePDR, c.createPDR},
		step{m.UpdateFAR, c.updateFAR}, step{m.UpdateQER, c.updateQER}, step{m.UpdatePDR, c.updatePDR},
	)
}

func apply(steps ...step) *pfcp.Reject {
	for _, step := range steps {
		for _, group := range step.groups {
			if reject := step.apply(group); reject != nil {
				return reject
			}
		}
	}
	return nil
}

// commit compiles the new rules and, if nothing speaks against them, makes them the session's.
func (c *change) commit() *pfcp.Reject {
	s, r := c.server, c.record
	rules, reject := c.spec.Compile(s.config.N3)
	if reject != nil {
		return reject
	}
	if reject := c.checkKeys(); reject != nil {
		return reject
	}
	keys := rules.Keys()
	for teid := range keys.TEIDs {
		s.plane.TEIDs.Put(teid, r.session)
	}
	for address := range keys.Addresses {
		s.plane.Addresses.Put(address, r.session)
	}
	r.session.Install(rules)
	for teid := range r.keys.TEIDs {
		if _, kept := keys.TEIDs[teid]; !kept {
			s.plane.TEIDs.Delete(teid)
		}
	}
	for address := range r.keys.Addresses {
		if _, kept := keys.Addresses[address]; !kept {
			s.plane.Addresses.Delete(address)
		}
	}
	r.spec, r.keys = c.spec, keys
	return nil
}

// kind is one kind of rule: how a request names it, and how an answer does.
type kind[K uint16 | uint32, V any] struct {
	ruleType uint8  // in a Failed Rule ID
	idType   uint16 // IE type of its ID
	id       func(group *ie.IE) (K, *pfcp.Reject)
}

var (
	pdrs = kind[uint16, pfcp.PDR]{ie.RuleIDTypePDR, ie.PDRID, pfcp.PDRID}
	fars = kind[uint32, pfcp.FAR]{ie.RuleIDTypeFAR, ie.FARID, pfcp.FARID}
	qers = kind[uint32, pfcp.QER]{ie.RuleIDTypeQER, ie.QERID, pfcp.QERID}
)

func (k kind[K, V]) fail(id K, offending uint16, reason string) *pfcp.Reject {
	return pfcp.RuleFailure(pfcp.RuleID{Kind: k.ruleType, ID: uint32(id)}, offending, reason)
}

// create adds a rule whose ID must be free.
func (k kind[K, V]) create(rules map[K]V, id K, rule V) *pfcp.Reject {
	if _, exists := rules[id]; exists {
		return k.fail(id, k.idType, "rule exists already")
	}
	rules[id] = rule
	return nil
}

// find returns the rule that a request names, which must exist.
func (k kind[K, V]) find(rules map[K]V, group *ie.IE) (K, V, *pfcp.Reject) {
	id, reject := k.id(group)
	rule, exists := rules[id]
	if reject == nil && !exists {
		reject = k.fail(id, k.idType, "no such rule")
	}
	return id, rule, reject
}

// update replaces the rule that a request names by what change makes of it.
func (k kind[K, V]) update(rules map[K]V, group *ie.IE, change func(V) (V, *pfcp.Reject)) *pfcp.Reject {
	id, rule, reject := k.find(rules, group)
	if reject != nil {
		return reject
	}
	if rule, reject = change(rule); reject != nil {
		return reject
	}
	rules[id] = rule
	return nil
}

// remove deletes the rule that a request names.
func (k kind[K, V]) remove(rules map[K]V, group *ie.IE) (K, *pfcp.Reject) {
	id, _, reject := k.find(rules, group)
	if reject == nil {
		delete(rules, id)
	}
	return id, reject
}

func (c *change) createPDR(group *ie.IE) *pfcp.Reject {
	pdr, reject := pfcp.CreatePDR(group)
	if reject != nil {
		return reject
	}
	if reject := c.placeTunnel(&pdr); reject != nil {
		return reject
	}
	return pdrs.create(c.spec.PDRs, pdr.ID, pdr)
}

func (c *change) updatePDR(group *ie.IE) *pfcp.Reject {
	return pdrs.update(c.spec.PDRs, group, func(before pfcp.PDR) (pfcp.PDR, *pfcp.Reject) {
		pdr, reject := before.Update(group)
		if reject == nil {
			reject = c.placeTunnel(&pdr)
		}
		return pdr, reject
	})
}

func (c *change) removePDR(group *ie.IE) *pfcp.Reject {
	_, reject := pdrs.remove(c.spec.PDRs, group)
	return reject
}

func (c *change) createFAR(group *ie.IE) *pfcp.Reject {
	far, reject := pfcp.CreateFAR(group)
	if reject != nil {
		return reject
	}
	return fars.create(c.spec.FARs, far.ID, far)
}

func (c *change) updateFAR(group *ie.IE) *pfcp.Reject {
	return fars.update(c.spec.FARs, group, func(before pfcp.FAR) (pfcp.FAR, *pfcp.Reject) { return before.Update(group) })
}

// removeFAR leaves PDRs that used the rule without an action: they drop.
func (c *change) removeFAR(group *ie.IE) *pfcp.Reject {
	id, reject := fars.remove(c.spec.FARs, group)
	for pdrID, pdr := range c.spec.PDRs {
		if reject == nil && pdr.FAR == id {
			pdr.FAR = 0
			c.spec.PDRs[pdrID] = pdr
		}
	}
	return reject
}

func (c *change) createQER(group *ie.IE) *pfcp.Reject {
	qer, reject := pfcp.CreateQER(group)
	if reject != nil {
		return reject
	}
	return qers.create(c.spec.QERs, qer.ID, qer)
}

func (c *change) updateQER(group *ie.IE) *pfcp.Reject {
	return qers.update(c.spec.QERs, group, func(before pfcp.QER) (pfcp.QER, *pfcp.Reject) { return before.Update(group) })
}

// removeQER takes the rule out of every PDR too: it applies to nothing any more.
func (c *change) removeQER(group *ie.IE) *pfcp.Reject {
	id, reject := qers.remove(c.spec.QERs, group)
	for pdrID, pdr := range c.spec.PDRs {
		if reject == nil && slices.Contains(pdr.QERs, id) {
			pdr.QERs = slices.DeleteFunc(slices.Clone(pdr.QERs), func(other uint32) bool { return other == id })
			c.spec.PDRs[pdrID] = pdr
		}
	}
	return reject
}
