package n4

import (
	"net"
	"net/netip"
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
}

func (s *Server) newChange(r *record) *change {
	return &change{
		server: s, record: r, spec: r.spec.Clone(), chosen: map[int]uint32{},
	}
}

// modify removes first, so that an ID can be used again at once.
func (c *change) modify(m *message.SessionModificationRequest) *pfcp.Reject {
	if reject := c.remove(m); reject != nil {
		return reject
	}
	if reject := c.put(true, m.CreateFAR, m.CreateQER, m.CreatePDR); reject != nil {
		return reject
	}
	return c.put(false, m.UpdateFAR, m.UpdateQER, m.UpdatePDR)
}

// put makes new rules from Create elements, or changes those that Update elements name.
func (c *change) put(isNew bool, farGroups, qerGroups, pdrGroups []*ie.IE) *pfcp.Reject {
	for _, group := range farGroups {
		if reject := fars.put(c.spec.FARs, group, isNew, nil); reject != nil {
			return reject
		}
	}
	for _, group := range qerGroups {
		if reject := qers.put(c.spec.QERs, group, isNew, nil); reject != nil {
			return reject
		}
	}
	for _, group := range pdrGroups {
		if reject := pdrs.put(c.spec.PDRs, group, isNew, c.placeTunnel); reject != nil {
			return reject
		}
	}
	return nil
}

// remove takes rules away. PDRs that used a FAR are left without an action: they drop. A QER applies to none any more.
func (c *change) remove(m *message.SessionModificationRequest) *pfcp.Reject {
	for _, group := range m.RemovePDR {
		if _, reject := pdrs.remove(c.spec.PDRs, group); reject != nil {
			return reject
		}
	}
	for _, group := range m.RemoveFAR {
		id, reject := fars.remove(c.spec.FARs, group)
		if reject != nil {
			return reject
		}
		for pdrID, pdr := range c.spec.PDRs {
			if pdr.FAR == id {
				pdr.FAR = 0
				c.spec.PDRs[pdrID] = pdr
			}
		}
	}
	for _, group := range m.RemoveQER {
		id, reject := qers.remove(c.spec.QERs, group)
		if reject != nil {
			return reject
		}
		for pdrID, pdr := range c.spec.PDRs {
			pdr.QERs = slices.DeleteFunc(slices.Clone(pdr.QERs), func(other uint32) bool { return other == id })
			c.spec.PDRs[pdrID] = pdr
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
	s.install(r, rules)
	r.spec = c.spec
	return nil
}

// kind is one kind of rule: how a request names it, and how an answer does.
type kind[K uint16 | uint32, V interface {
	Update(group *ie.IE) (V, *pfcp.Reject)
}] struct {
	ruleType uint8  // in a Failed Rule ID
	idType   uint16 // IE type of its ID
	id       func(group *ie.IE) (K, *pfcp.Reject)
	create   func(group *ie.IE) (V, *pfcp.Reject)
}

var (
	pdrs = kind[uint16, pfcp.PDR]{ie.RuleIDTypePDR, ie.PDRID, pfcp.PDRID, pfcp.CreatePDR}
	fars = kind[uint32, pfcp.FAR]{ie.RuleIDTypeFAR, ie.FARID, pfcp.FARID, pfcp.CreateFAR}
	qers = kind[uint32, pfcp.QER]{ie.RuleIDTypeQER, ie.QERID, pfcp.QERID, pfcp.CreateQER}
)

func (k kind[K, V]) fail(id K, offending uint16, reason string) *pfcp.Reject {
	return pfcp.RuleFailure(k.ruleType, uint32(id), offending, reason)
}

// put makes a new rule, whose ID must be free, or changes the rule that an element names; finish, if any, completes it.
func (k kind[K, V]) put(rules map[K]V, group *ie.IE, isNew bool, finish func(*V) *pfcp.Reject) *pfcp.Reject {
	id, reject := k.id(group)
	rule, exists := rules[id]
	switch {
	case reject != nil:
		return reject
	case exists && isNew:
		return k.fail(id, k.idType, "rule exists already")
	case !exists && !isNew:
		return k.fail(id, k.idType, "no such rule")
	case isNew:
		rule, reject = k.create(group)
	default:
		rule, reject = rule.Update(group)
	}
	if reject == nil && finish != nil {
		reject = finish(&rule)
	}
	if reject == nil {
		rules[id] = rule
	}
	return reject
}

// remove deletes the rule that an element names.
func (k kind[K, V]) remove(rules map[K]V, group *ie.IE) (K, *pfcp.Reject) {
	id, reject := k.id(group)
	if _, exists := rules[id]; reject == nil && !exists {
		reject = k.fail(id, k.idType, "no such rule")
	}
	delete(rules, id)
	return id, reject
}

// placeTunnel checks an F-TEID that the CP function gave, or chooses one if it asks for that (clause 5.5.3): then the
// answer tells which. PDRs of one request with the same CHOOSE ID share it.
func (c *change) placeTunnel(pdr *pfcp.PDR) *pfcp.Reject {
	t, local := pdr.PDI.Tunnel, c.server.config.N3
	if t == nil {
		return nil
	}
	if !t.Choose {
		if t.IPv4 != local && t.IPv6 != local {
			return pdrs.fail(pdr.ID, ie.FTEID, "F-TEID's address is not the local N3 address "+local.String())
		}
		if t.TEID == 0 {
			return pdrs.fail(pdr.ID, ie.FTEID, "TEID 0 is reserved")
		}
		return nil
	}
	if local.Is4() && !t.WantsIPv4 || local.Is6() && !t.WantsIPv6 {
		return &pfcp.Reject{
			Cause: ie.CauseInvalidFTEIDAllocationOption, Offending: ie.FTEID, Reason: "N3 is of the other address family",
		}
	}
	placed := pfcp.LocalTunnel{TEID: c.chooseTEID(t.ChooseID)}
	if local.Is4() {
		placed.IPv4 = local
	} else {
		placed.IPv6 = local
	}
	pdr.PDI.Tunnel = &placed
	c.created = append(c.created, ie.NewCreatedPDR(ie.NewPDRID(pdr.ID), fteid(placed.TEID, local)))
	return nil
}

func (c *change) chooseTEID(chooseID int) uint32 {
	if teid, ok := c.chosen[chooseID]; ok && chooseID >= 0 {
		return teid
	}
	teid := c.server.newTEID()
	c.chosen[chooseID] = teid
	return teid
}

// fteid is the F-TEID element of one end of a tunnel (clause 8.2.3).
func fteid(teid uint32, address netip.Addr) *ie.IE {
	const hasIPv4, hasIPv6 = 0x01, 0x02
	if address.Is4() {
		return ie.NewFTEID(hasIPv4, teid, net.IP(address.AsSlice()), nil, 0)
	}
	return ie.NewFTEID(hasIPv6, teid, nil, net.IP(address.AsSlice()), 0)
}

// checkKeys refuses TEIDs and addresses that belong to another session.
func (c *change) checkKeys() *pfcp.Reject {
	foreign := func(owner *session.Session) bool { return owner != nil && owner != c.record.session }
	for id, pdr := range c.spec.PDRs {
		if t := pdr.PDI.Tunnel; t != nil {
			if foreign(c.server.plane.TEIDs.Get(t.TEID)) {
				return pdrs.fail(id, ie.FTEID, "TEID belongs to another session")
			}
			continue
		}
		for _, ue := range []netip.Prefix{pdr.PDI.UE4, pdr.PDI.UE6} {
			if ue.IsValid() && foreign(c.server.plane.Addresses.Get(session.AddressOf(ue.Addr()))) {
				return pdrs.fail(id, ie.UEIPAddress, "UE IP address belongs to another session")
			}
		}
	}
	return nil
}
