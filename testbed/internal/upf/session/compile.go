package session

import (
	"maps"
	"net/netip"
	"sort"

	"github.com/wmnsk/go-pfcp/ie"

	"slicepilot/userplane/internal/gtpu"
	"slicepilot/userplane/internal/pfcp"
	"slicepilot/userplane/internal/upf/netio"
)

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
	sort.Slice(list, func(i, j int) bool {
		if list[i].Precedence != list[j].Precedence {
			return list[i].Precedence < list[j].Precedence
		}
		return list[i].ID < list[j].ID
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
		return FAR{}, pfcp.RuleFailure(pfcp.RuleID{Kind: ie.RuleIDTypeFAR, ID: far.ID}, ie.OuterHeaderCreation,
			"peer's address family is not that of the local N3 address")
	}
	compiled.Tunnelled, compiled.Peer = true, far.Peer
	compiled.To = netio.SockaddrOf(netip.AddrPortFrom(far.Peer.Address, gtpu.Port))
	return compiled, nil
}

func (s *Spec) pdr(pdr pfcp.PDR, local netip.Addr) (PDR, *pfcp.Reject) {
	fail := func(offending uint16, reason string) (PDR, *pfcp.Reject) {
		return PDR{}, pfcp.RuleFailure(pfcp.RuleID{Kind: ie.RuleIDTypePDR, ID: uint32(pdr.ID)}, offending, reason)
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
