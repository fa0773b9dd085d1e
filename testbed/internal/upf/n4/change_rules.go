package n4

import (
	"slices"

	"github.com/wmnsk/go-pfcp/ie"

	"slicepilot/userplane/internal/pfcp"
	"slicepilot/userplane/internal/upf/session"
)

// kind is one kind of rule: how a request names it, and how an answer does.
type kind[K uint8 | uint16 | uint32, V any] struct {
	ruleType uint8  // in a Failed Rule ID
	idType   uint16 // IE type of its ID
	id       func(group *ie.IE) (K, *pfcp.Reject)
}

var (
	pdrs = kind[uint16, pfcp.PDR]{ie.RuleIDTypePDR, ie.PDRID, pfcp.PDRID}
	fars = kind[uint32, pfcp.FAR]{ie.RuleIDTypeFAR, ie.FARID, pfcp.FARID}
	qers = kind[uint32, pfcp.QER]{ie.RuleIDTypeQER, ie.QERID, pfcp.QERID}
	urrs = kind[uint32, pfcp.URR]{ie.RuleIDTypeURR, ie.URRID, pfcp.URRID}
	bars = kind[uint8, int]{ie.RuleIDTypeBAR, ie.BARID, pfcp.BARID} // packets to buffer; 0: the default
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
	return fars.update(c.spec.FARs, group, func(before pfcp.FAR) (pfcp.FAR, *pfcp.Reject) {
		far, update, reject := before.Update(group)
		if old := c.record.objects.FARs[far.ID]; reject == nil && update.SendEndMarker && old != nil && old.Tunnelled {
			c.endMarkers = append(c.endMarkers, old)
		}
		return far, reject
	})
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

func (c *change) removeQER(group *ie.IE) *pfcp.Reject {
	id, reject := qers.remove(c.spec.QERs, group)
	if reject == nil {
		c.withoutRule(id, func(pdr *pfcp.PDR) *[]uint32 { return &pdr.QERs })
	}
	return reject
}

// withoutRule takes an ID out of a list of every PDR: a rule that is removed applies to nothing any more.
func (c *change) withoutRule(id uint32, list func(*pfcp.PDR) *[]uint32) {
	for pdrID, pdr := range c.spec.PDRs {
		ids := list(&pdr)
		if !slices.Contains(*ids, id) {
			continue
		}
		*ids = slices.DeleteFunc(slices.Clone(*ids), func(other uint32) bool { return other == id })
		c.spec.PDRs[pdrID] = pdr
	}
}

func (c *change) createBAR(group *ie.IE) *pfcp.Reject {
	id, reject := bars.id(group)
	if reject != nil {
		return reject
	}
	return bars.create(c.spec.BARs, id, bufferCount(group, 0))
}

func (c *change) updateBAR(group *ie.IE) *pfcp.Reject {
	return bars.update(c.spec.BARs, group, func(before int) (int, *pfcp.Reject) { return bufferCount(group, before), nil })
}

func (c *change) removeBAR(group *ie.IE) *pfcp.Reject {
	_, reject := bars.remove(c.spec.BARs, group)
	return reject
}

// bufferCount reads how many packets a BAR asks to buffer (table 7.5.2.6-1).
func bufferCount(group *ie.IE, before int) int {
	for _, e := range group.ChildIEs {
		if e.Type == ie.SuggestedBufferingPacketsCount && len(e.Payload) > 0 {
			return min(int(e.Payload[0]), session.MaxBuffer)
		}
	}
	return before
}
