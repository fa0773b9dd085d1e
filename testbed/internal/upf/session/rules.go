package session

import (
	"cmp"
	"encoding/binary"
	"maps"
	"net/netip"
	"slices"

	"github.com/wmnsk/go-pfcp/ie"

	"slicepilot/userplane/internal/gtpu"
	"slicepilot/userplane/internal/pfcp"
	"slicepilot/userplane/internal/upf/netio"
)

// Rules are the compiled rules of a session, best precedence first. Immutable.
type Rules struct {
	Tunnel []PDR // for packets that arrive in a GTP-U tunnel
	Plain  []PDR // for packets that arrive at the TUN device
}

// PDR is a compiled Packet Detection Rule with everything that happens to its packets.
type PDR struct {
	ID     uint16
	TEID   uint32
	Uplink bool // from the terminal

	qfis    uint64 // bit i: QFI i is accepted; 0: any
	ue4     Address
	ue6     Address
	hasUE   bool
	ue6Bits int
	// For some flows only, which are not told apart here: packets go by a rule of lower precedence.
	someFlows bool

	FAR    FAR
	QFI    int  // to mark packets with when they enter a tunnel; -1 for none
	Closed bool // a QER's gate for this direction is closed
}

// FAR is a compiled Forwarding Action Rule.
type FAR struct {
	Forward bool // without it packets are dropped
	ToCore  bool // without a tunnel, through the TUN device

	Tunnelled bool // into the tunnel below
	PDUType   uint8
	Peer      pfcp.Tunnel
	To        netio.Sockaddr
}

// MatchTunnel returns the rule for a packet that came through one of our tunnels, nil for none. qfi is -1 where the
// packet carries none.
func (r *Rules) MatchTunnel(teid uint32, qfi int, p *Packet) *PDR {
	for i := range r.Tunnel {
		rule := &r.Tunnel[i]
		if rule.TEID == teid && rule.acceptsQFI(qfi) && rule.acceptsPacket(p) {
			return rule
		}
	}
	return nil
}

// MatchPlain returns the rule for a packet that came from the data network, nil for none.
func (r *Rules) MatchPlain(p *Packet) *PDR {
	for i := range r.Plain {
		if rule := &r.Plain[i]; rule.acceptsPacket(p) {
			return rule
		}
	}
	return nil
}

func (p *PDR) acceptsQFI(qfi int) bool {
	return p.qfis == 0 || qfi >= 0 && p.qfis>>uint(qfi)&1 != 0
}

func (p *PDR) acceptsPacket(packet *Packet) bool {
	terminal := packet.Src
	if !p.Uplink {
		terminal = packet.Dst
	}
	return !p.someFlows && (!p.hasUE || p.isUE(terminal))
}

func (p *PDR) isUE(a Address) bool {
	if a.IsIPv4() {
		return a == p.ue4
	}
	return p.ue6Bits == 128 && a == p.ue6 || p.ue6Bits == 64 && a.Prefix64() == p.ue6
}

// Address is an IPv4 or IPv6 address as two words, IPv4 mapped into ::ffff:0:0/96: quick to compare and to hash.
type Address struct{ High, Low uint64 }

const mappedIPv4 = 0xffff << 32

// AddressOf converts from the standard library's form.
func AddressOf(a netip.Addr) Address {
	b := a.As16()
	return Address{binary.BigEndian.Uint64(b[:8]), binary.BigEndian.Uint64(b[8:])}
}

// Prefix64 is the address's /64 prefix, the key of a terminal that owns a whole one.
func (a Address) Prefix64() Address { return Address{High: a.High} }

// IsIPv4 says whether a is a mapped IPv4 address.
func (a Address) IsIPv4() bool { return a.High == 0 && a.Low>>32 == 0xffff }

// Packet is a user packet, as far as rules look at it.
type Packet struct {
	Src, Dst Address
}

const (
	ipv4MinLen = 20
	ipv6Len    = 40
)

// ParsePacket reads the addresses of an IPv4 or IPv6 packet. ok is false for anything else and for a packet that is
// shorter than it says.
func ParsePacket(b []byte) (p Packet, ok bool) {
	if len(b) < ipv4MinLen {
		return p, false
	}
	switch b[0] >> 4 {
	case 4:
		p.Src.Low = mappedIPv4 | uint64(binary.BigEndian.Uint32(b[12:]))
		p.Dst.Low = mappedIPv4 | uint64(binary.BigEndian.Uint32(b[16:]))
		total := int(binary.BigEndian.Uint16(b[2:]))
		return p, total >= ipv4MinLen && total <= len(b)
	case 6:
		if len(b) < ipv6Len {
			return p, false
		}
		p.Src = Address{binary.BigEndian.Uint64(b[8:]), binary.BigEndian.Uint64(b[16:])}
		p.Dst = Address{binary.BigEndian.Uint64(b[24:]), binary.BigEndian.Uint64(b[32:])}
		return p, ipv6Len+int(binary.BigEndian.Uint16(b[4:])) <= len(b)
	}
	return p, false
}

// Spec is a session's rules as the CP function gave them, by ID. Every local tunnel has its TEID.
type Spec struct {
	PDRs map[uint16]pfcp.PDR
	FARs map[uint32]pfcp.FAR
	QERs map[uint32]pfcp.QER
}

// NewSpec makes an empty Spec.
func NewSpec() *Spec {
	return &Spec{PDRs: map[uint16]pfcp.PDR{}, FARs: map[uint32]pfcp.FAR{}, QERs: map[uint32]pfcp.QER{}}
}

// Clone copies the maps; the rules in them are values.
func (s *Spec) Clone() *Spec {
	return &Spec{PDRs: maps.Clone(s.PDRs), FARs: maps.Clone(s.FARs), QERs: maps.Clone(s.QERs)}
}

// Compile turns a specification into rules for the data path. It rejects references to rules that do not exist, and
// peers whose address family is not that of the local N3 address.
func (s *Spec) Compile(local netip.Addr) (*Rules, *pfcp.Reject) {
	rules := &Rules{}
	for _, pdr := range sorted(s.PDRs) {
		compiled, reject := s.pdr(pdr, local)
		if reject != nil {
			return nil, reject
		}
		if pdr.PDI.Tunnel != nil {
			rules.Tunnel = append(rules.Tunnel, compiled)
		} else {
			rules.Plain = append(rules.Plain, compiled)
		}
	}
	return rules, nil
}

// sorted orders rules by precedence (the lowest value first, TS 29.244 clause 8.2.11), equal ones by ID.
func sorted(pdrs map[uint16]pfcp.PDR) []pfcp.PDR {
	list := make([]pfcp.PDR, 0, len(pdrs))
	for _, pdr := range pdrs {
		list = append(list, pdr)
	}
	slices.SortFunc(list, func(a, b pfcp.PDR) int {
		return cmp.Or(cmp.Compare(a.Precedence, b.Precedence), cmp.Compare(a.ID, b.ID))
	})
	return list
}

func compileFAR(far pfcp.FAR, local netip.Addr) (FAR, *pfcp.Reject) {
	compiled := FAR{Forward: far.Action&pfcp.ActionForward != 0}
	if far.Destination == pfcp.Core || far.Destination == pfcp.SGiLAN {
		compiled.ToCore = !far.Peer.Address.IsValid()
		compiled.PDUType = gtpu.PDUTypeUplink
	}
	if !far.Peer.Address.IsValid() {
		return compiled, nil
	}
	if far.Peer.Address.Is4() != local.Is4() {
		return FAR{}, pfcp.RuleFailure(ie.RuleIDTypeFAR, far.ID, ie.OuterHeaderCreation,
			"peer's address family is not that of the local N3 address")
	}
	compiled.Tunnelled, compiled.Peer = true, far.Peer
	compiled.To = netio.SockaddrOf(netip.AddrPortFrom(far.Peer.Address, gtpu.Port))
	return compiled, nil
}

func (s *Spec) pdr(pdr pfcp.PDR, local netip.Addr) (PDR, *pfcp.Reject) {
	fail := func(offending uint16, reason string) (PDR, *pfcp.Reject) {
		return PDR{}, pfcp.RuleFailure(ie.RuleIDTypePDR, uint32(pdr.ID), offending, reason)
	}
	compiled := PDR{ID: pdr.ID, Uplink: pdr.PDI.Source == pfcp.Access, qfis: pdr.PDI.QFIs, QFI: gtpu.NoQFI,
		someFlows: pdr.PDI.SomeFlows}
	if pdr.PDI.Tunnel != nil {
		compiled.TEID = pdr.PDI.Tunnel.TEID
	}
	compiled.setUE(pdr.PDI)
	if pdr.PDI.Tunnel == nil && !compiled.hasUE {
		return fail(ie.UEIPAddress, "neither a local F-TEID nor a UE IP address to detect packets by")
	}
	far, known := s.FARs[pdr.FAR]
	if !known && pdr.FAR != 0 {
		return fail(ie.FARID, "unknown FAR")
	}
	var reject *pfcp.Reject
	if compiled.FAR, reject = compileFAR(far, local); reject != nil { // without a FAR packets are dropped
		return PDR{}, reject
	}
	for _, id := range pdr.QERs {
		qer, known := s.QERs[id]
		if !known {
			return fail(ie.QERID, "unknown QER")
		}
		compiled.enforce(qer)
	}
	return compiled, nil
}

func (p *PDR) setUE(pdi pfcp.PDI) {
	if pdi.UE4.IsValid() {
		p.ue4, p.hasUE = AddressOf(pdi.UE4.Addr()), true
	}
	if pdi.UE6.IsValid() {
		p.ue6, p.ue6Bits, p.hasUE = AddressOf(pdi.UE6.Addr()), pdi.UE6.Bits(), true
	}
}

func (p *PDR) enforce(qer pfcp.QER) {
	if p.Uplink {
		p.Closed = p.Closed || qer.UplinkClosed
	} else {
		p.Closed = p.Closed || qer.DownlinkClosed
	}
	if qer.QFI >= 0 {
		p.QFI = qer.QFI
	}
}

// Keys identify a session.
type Keys struct {
	TEIDs     map[uint32]struct{}
	Addresses map[Address]struct{}
}

// Keys returns the TEIDs and addresses that lead to a session with these rules.
func (r *Rules) Keys() Keys {
	keys := Keys{TEIDs: map[uint32]struct{}{}, Addresses: map[Address]struct{}{}}
	for i := range r.Tunnel {
		keys.TEIDs[r.Tunnel[i].TEID] = struct{}{}
	}
	for i := range r.Plain {
		rule := &r.Plain[i]
		if rule.ue4 != (Address{}) {
			keys.Addresses[rule.ue4] = struct{}{}
		}
		if rule.ue6Bits != 0 {
			keys.Addresses[rule.ue6] = struct{}{}
		}
	}
	return keys
}
