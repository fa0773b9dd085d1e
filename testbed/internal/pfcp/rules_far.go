package pfcp

import (
	"net/netip"

	"github.com/wmnsk/go-pfcp/ie"
)

// CreateFAR reads a Create FAR element (table 7.5.2.3-1).
func CreateFAR(group *ie.IE) (FAR, *Reject) {
	id, reject := FARID(group)
	if reject != nil {
		return FAR{}, reject
	}
	if find(group, ie.ApplyAction) == nil {
		return FAR{}, Missing(ie.ApplyAction, "Apply Action")
	}
	return FAR{ID: id}.Update(group)
}

// Update returns the rule with what a Create FAR or Update FAR element says (table 7.5.4.3-1).
func (f FAR) Update(group *ie.IE) (FAR, *Reject) {
	for _, e := range children(group) {
		var reject *Reject
		switch e.Type {
		case ie.ApplyAction:
			f.Action, reject = parseAction(e)
		case ie.ForwardingParameters, ie.UpdateForwardingParameters:
			f, reject = f.forwarding(e)
		case ie.DuplicatingParameters, ie.UpdateDuplicatingParameters:
			reject = f.fail(e.Type, "packets are not duplicated here")
		}
		if reject != nil {
			return FAR{}, reject
		}
	}
	if f.Action&ActionForward != 0 && !f.HasParameters {
		return FAR{}, &Reject{
			Cause: ie.CauseConditionalIEMissing, Offending: ie.ForwardingParameters,
			Rule: &RuleID{ie.RuleIDTypeFAR, f.ID}, Reason: "FORW without Forwarding Parameters",
		}
	}
	return f, nil
}

func (f FAR) fail(offending uint16, reason string) *Reject {
	return RuleFailure(RuleID{ie.RuleIDTypeFAR, f.ID}, offending, reason)
}

// parseAction reads an Apply Action: two octets since Release 16, one before; both are understood.
//
// Exactly one of the actions has to be asked for (clause 8.2.26). Duplication and IP multicast are not offered.
func parseAction(e *ie.IE) (Action, *Reject) {
	if len(e.Payload) < 1 {
		return 0, &Reject{Cause: ie.CauseInvalidLength, Offending: e.Type, Reason: "too short"}
	}
	action := Action(e.Payload[0])
	if len(e.Payload) > 1 {
		action |= Action(e.Payload[1]) << 8
	}
	switch action & actionKind {
	case ActionDrop, ActionForward, ActionBuffer:
	default:
		return 0, Incorrect(e.Type, "exactly one of DROP, FORW and BUFF is accepted")
	}
	return action, nil
}

// forwarding applies (Update) Forwarding Parameters.
func (f FAR) forwarding(group *ie.IE) (FAR, *Reject) {
	if group.Type == ie.ForwardingParameters {
		if find(group, ie.DestinationInterface) == nil {
			return FAR{}, Missing(ie.DestinationInterface, "Destination Interface")
		}
		f.Peer = Tunnel{}
	}
	f.HasParameters = true
	for _, e := range children(group) {
		var reject *Reject
		switch e.Type {
		case ie.DestinationInterface:
			f.Destination, reject = parseInterface(e)
		case ie.OuterHeaderCreation:
			f.Peer, reject = f.parsePeer(e)
		case ie.ForwardingPolicy:
			reject = &Reject{
				Cause: ie.CauseInvalidForwardingPolicy, Offending: e.Type,
				Rule: &RuleID{ie.RuleIDTypeFAR, f.ID}, Reason: "no forwarding policies are configured",
			}
		case ie.RedirectInformation, ie.HeaderEnrichment, ie.Proxying:
			reject = f.fail(e.Type, "not supported in Forwarding Parameters")
		}
		if reject != nil {
			return FAR{}, reject
		}
	}
	return f, nil
}

// Flags of the Outer Header Creation Description, first octet (clause 8.2.56).
const (
	createGTPv4 = 0x0100
	createGTPv6 = 0x0200
)

// parsePeer reads an Outer Header Creation: GTP-U over IPv4, IPv6, or both, of which IPv4 is then taken.
func (f FAR) parsePeer(e *ie.IE) (Tunnel, *Reject) {
	c, err := e.OuterHeaderCreation()
	if err != nil {
		return Tunnel{}, &Reject{Cause: ie.CauseInvalidLength, Offending: e.Type, Reason: err.Error()}
	}
	var address netip.Addr
	switch {
	case c.OuterHeaderCreationDescription&createGTPv4 != 0:
		address, _ = netip.AddrFromSlice(c.IPv4Address)
	case c.OuterHeaderCreationDescription&createGTPv6 != 0:
		address, _ = netip.AddrFromSlice(c.IPv6Address)
	default:
		return Tunnel{}, f.fail(e.Type, "only GTP-U/UDP/IP headers can be created")
	}
	return Tunnel{TEID: c.TEID, Address: address}, nil
}
