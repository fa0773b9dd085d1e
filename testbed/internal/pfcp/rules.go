package pfcp

import (
	"encoding/binary"
	"net/netip"

	"github.com/wmnsk/go-pfcp/ie"
)

// Interface is a Source or Destination Interface (TS 29.244 clauses 8.2.2 and 8.2.24).
type Interface uint8

// Interfaces, with the numbers of the specification.
const (
	Access Interface = iota
	Core
	SGiLAN
	CPFunction
)

// PDR is a Packet Detection Rule with its Packet Detection Information.
type PDR struct {
	ID         uint16
	Precedence uint32 // lower values are looked at first
	PDI        PDI
	FAR        uint32
	QERs       []uint32
}

// PDI says which packets a PDR detects.
type PDI struct {
	Source    Interface
	Tunnel    *LocalTunnel // nil: packets come without GTP-U
	UE4, UE6  netip.Prefix // the terminal's address or IPv6 prefix; invalid: any
	QFIs      uint64       // bit i set: QFI i is accepted; 0: any, also none
	SomeFlows bool         // SDF filters select some flows, which are not told apart here: no packet is detected
}

// LocalTunnel is the F-TEID at our end: given by the peer, or to be chosen here (CHOOSE flag, clause 8.2.3).
type LocalTunnel struct {
	TEID       uint32
	IPv4, IPv6 netip.Addr // the addresses that the peer named; invalid where it did not

	Choose               bool
	ChooseID             int // tunnels of one request with the same ID share one F-TEID; -1 for none
	WantsIPv4, WantsIPv6 bool
}

// Action is an Apply Action (clause 8.2.26), first octet in the low byte, second one above.
type Action uint16

// Flags of an Action. What is to be buffered is dropped: nothing is buffered here.
const (
	ActionDrop    Action = 0x0001
	ActionForward Action = 0x0002
	ActionBuffer  Action = 0x0004

	actionKind = ActionDrop | ActionForward | ActionBuffer
)

// FAR is a Forwarding Action Rule.
type FAR struct {
	ID            uint32
	Action        Action
	HasParameters bool // Forwarding Parameters were given
	Destination   Interface
	Peer          Tunnel // zero: no outer header is created
}

// Tunnel is the far end of a GTP-U tunnel.
type Tunnel struct {
	TEID    uint32
	Address netip.Addr
}

// QER is a QoS Enforcement Rule: its gates, and the QFI that packets are marked with. Bit rates are not enforced here.
type QER struct {
	ID             uint32
	UplinkClosed   bool
	DownlinkClosed bool
	QFI            int // -1 for none
}

// find returns the first element of a type inside a grouped one, nil for none.
func find(group *ie.IE, kind uint16) *ie.IE {
	for _, child := range group.ChildIEs {
		if child.Type == kind {
			return child
		}
	}
	return nil
}

// uintOf reads a whole number of exactly size octets; longer elements are read from their beginning, as clause 7.6.5
// asks of fields that a later release has appended.
func uintOf(e *ie.IE, size int) (uint64, *Reject) {
	if len(e.Payload) < size {
		return 0, &Reject{Cause: ie.CauseInvalidLength, Offending: e.Type, Reason: "too short"}
	}
	var wide [8]byte
	copy(wide[8-size:], e.Payload[:size])
	return binary.BigEndian.Uint64(wide[:]), nil
}

// idOf reads the rule's own ID out of a Create, Update or Remove element.
func idOf(group *ie.IE, kind uint16, size int, name string) (uint32, *Reject) {
	e := find(group, kind)
	if e == nil {
		return 0, Missing(kind, name)
	}
	id, reject := uintOf(e, size)
	return uint32(id), reject
}

// IDs of the rules that Create, Update, Remove and Query elements speak about.
func PDRID(group *ie.IE) (uint16, *Reject) {
	id, reject := idOf(group, ie.PDRID, 2, "PDR ID")
	return uint16(id), reject
}

// FARID reads the FAR ID of a grouped element.
func FARID(group *ie.IE) (uint32, *Reject) { return idOf(group, ie.FARID, 4, "FAR ID") }

// QERID reads the QER ID of a grouped element.
func QERID(group *ie.IE) (uint32, *Reject) { return idOf(group, ie.QERID, 4, "QER ID") }

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
	for _, e := range group.ChildIEs {
		var reject *Reject
		switch e.Type {
		case ie.ApplyAction:
			f.Action, reject = parseAction(e)
		case ie.ForwardingParameters, ie.UpdateForwardingParameters:
			f, reject = f.forwarding(e)
		case ie.DuplicatingParameters, ie.UpdateDuplicatingParameters:
			reject = RuleFailure(ie.RuleIDTypeFAR, f.ID, e.Type, "packets are not duplicated here")
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
	for _, e := range group.ChildIEs {
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
			reject = RuleFailure(ie.RuleIDTypeFAR, f.ID, e.Type, "not supported in Forwarding Parameters")
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
		return Tunnel{}, RuleFailure(ie.RuleIDTypeFAR, f.ID, e.Type, "only GTP-U/UDP/IP headers can be created")
	}
	return Tunnel{TEID: c.TEID, Address: address}, nil
}

// CreateQER reads a Create QER element (TS 29.244 table 7.5.2.5-1).
func CreateQER(group *ie.IE) (QER, *Reject) {
	id, reject := QERID(group)
	if reject != nil {
		return QER{}, reject
	}
	if find(group, ie.GateStatus) == nil {
		return QER{}, Missing(ie.GateStatus, "Gate Status")
	}
	return QER{ID: id, QFI: -1}.Update(group)
}

// Update returns the rule with what a Create QER or Update QER element says (table 7.5.4.5-1). Maximum and guaranteed
// bit rates are accepted and not enforced.
func (q QER) Update(group *ie.IE) (QER, *Reject) {
	for _, e := range group.ChildIEs {
		var value uint64
		var reject *Reject
		switch e.Type {
		case ie.GateStatus:
			value, reject = uintOf(e, 1)
			q.UplinkClosed, q.DownlinkClosed = value>>2&3 != 0, value&3 != 0
		case ie.QFI:
			value, reject = uintOf(e, 1)
			q.QFI = int(value & 0x3f)
		}
		if reject != nil {
			return QER{}, reject
		}
	}
	return q, nil
}
