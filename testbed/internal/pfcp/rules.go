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
	Source          Interface
	Tunnel          *LocalTunnel // nil: packets come without GTP-U
	NetworkInstance string
	UE4, UE6        netip.Prefix // the terminal's address or IPv6 prefix; invalid: any
	QFIs            uint64       // bit i set: QFI i is accepted; 0: any, also none
	SomeFlows       bool         // SDF filters select some flows, which are not told apart here: no packet is detected
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

// children returns the elements inside a grouped one.
func children(group *ie.IE) []*ie.IE {
	return group.ChildIEs
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
