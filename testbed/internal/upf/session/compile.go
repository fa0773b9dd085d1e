package session

import (
	"net/netip"
	"sort"

	"github.com/wmnsk/go-pfcp/ie"

	"slicepilot/userplane/internal/gtpu"
	"slicepilot/userplane/internal/pfcp"
	"slicepilot/userplane/internal/upf/netio"
)

// DefaultBuffer is how many packets are buffered where a BAR does not say, MaxBuffer what it may ask for at most.
const (
	DefaultBuffer = 64
	MaxBuffer     = 255
)

// Spec is a session's rules as the CP function gave them, by ID. Every local tunnel has its TEID.
type Spec struct {
	PDRs map[uint16]pfcp.PDR
	FARs map[uint32]pfcp.FAR
	QERs map[uint32]pfcp.QER
	URRs map[uint32]pfcp.URR
	BARs map[uint8]int // packets to buffer
}

// NewSpec makes an empty Spec.
func NewSpec() *Spec {
	return &Spec{
		PDRs: map[uint16]pfcp.PDR{}, FARs: map[uint32]pfcp.FAR{}, QERs: map[uint32]pfcp.QER{},
		URRs: map[uint32]pfcp.URR{}, BARs: map[uint8]int{},
	}
}

// Clone copies the maps; the rules in them are values.
func (s *Spec) Clone() *Spec {
	return &Spec{
		PDRs: clone(s.PDRs), FARs: clone(s.FARs), QERs: clone(s.QERs), URRs: clone(s.URRs), BARs: clone(s.BARs),
	}
}

func clone[K comparable, V any](m map[K]V) map[K]V {
	c := make(map[K]V, len(m))
	for k, v := range m {
		c[k] = v
	}
	return c
}

// Objects are the parts of compiled rules that outlive a change of the rules, by rule ID.
type Objects struct {
	FARs   map[uint32]*FAR
	Meters map[uint32]*Meters
	Usages map[uint32]*Usage
}

// Meters are the two directions of one QER.
type Meters struct{ Uplink, Downlink Meter }

// Ignore names rules that are taken from the CP function and not acted on, as some UPFs do.
type Ignore struct{ Gate, MBR, URR bool }

// Compiler knows what rules are compiled against.
type Compiler struct {
	Local  netip.Addr // of the N3 socket: peers have to be of its family
	Ignore Ignore
}

// Compile turns a specification into rules for the data path, with the objects they use: those of before where the
// rule is still the same one. It rejects references to rules that do not exist.
func (c *Compiler) Compile(spec *Spec, before Objects) (*Rules, Objects, *pfcp.Reject) {
	after := Objects{
		FARs: make(map[uint32]*FAR, len(spec.FARs)), Meters: make(map[uint32]*Meters, len(spec.QERs)),
		Usages: make(map[uint32]*Usage, len(spec.URRs)),
	}
	for id, far := range spec.FARs {
		if old := before.FARs[id]; old != nil && old.version == far.Version {
			after.FARs[id] = old
			continue
		}
		compiled, reject := c.far(spec, far)
		if reject != nil {
			return nil, before, reject
		}
		after.FARs[id] = compiled
	}
	for id := range spec.QERs {
		after.Meters[id] = reuse(before.Meters, id, func() *Meters { return &Meters{} })
	}
	for id := range spec.URRs {
		after.Usages[id] = reuse(before.Usages, id, func() *Usage { return NewUsage(id) })
	}
	rules := &Rules{}
	for _, pdr := range sorted(spec.PDRs) {
		compiled, reject := c.pdr(spec, after, pdr)
		if reject != nil {
			return nil, before, reject
		}
		if pdr.PDI.Tunnel != nil {
			rules.Tunnel = append(rules.Tunnel, compiled)
		} else {
			rules.Plain = append(rules.Plain, compiled)
		}
	}
	return rules, after, nil
}

func reuse[V any](before map[uint32]*V, id uint32, make func() *V) *V {
	if old := before[id]; old != nil {
		return old
	}
	return make()
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

func (c *Compiler) far(spec *Spec, far pfcp.FAR) (*FAR, *pfcp.Reject) {
	compiled := &FAR{
		ID: far.ID, version: far.Version,
		Forward:     far.Action&pfcp.ActionForward != 0,
		Buffer:      far.Action&pfcp.ActionBuffer != 0,
		notify:      far.Action&pfcp.ActionNotify != 0,
		BufferLimit: DefaultBuffer,
	}
	if count := spec.BARs[far.BAR]; count > 0 {
		compiled.BufferLimit = min(count, MaxBuffer)
	}
	if far.Destination == pfcp.Core || far.Destination == pfcp.SGiLAN {
		compiled.ToCore = !far.Peer.Address.IsValid()
		compiled.PDUType = gtpu.PDUTypeUplink
	}
	if !far.Peer.Address.IsValid() {
		return compiled, nil
	}
	if far.Peer.Address.Is4() != c.Local.Is4() {
		return nil, pfcp.RuleFailure(pfcp.RuleID{Kind: ie.RuleIDTypeFAR, ID: far.ID}, ie.OuterHeaderCreation,
			"peer's address family is not that of the local N3 address")
	}
	compiled.Tunnelled = true
	compiled.Peer = Peer{Address: far.Peer.Address, TEID: far.Peer.TEID}
	compiled.To = netio.SockaddrOf(netip.AddrPortFrom(far.Peer.Address, gtpu.Port))
	return compiled, nil
}

func (c *Compiler) pdr(spec *Spec, objects Objects, pdr pfcp.PDR) (PDR, *pfcp.Reject) {
	fail := func(offending uint16, reason string) (PDR, *pfcp.Reject) {
		return PDR{}, pfcp.RuleFailure(pfcp.RuleID{Kind: ie.RuleIDTypePDR, ID: uint32(pdr.ID)}, offending, reason)
	}
	compiled := PDR{ID: pdr.ID, Uplink: pdr.PDI.Source == pfcp.Access, qfis: pdr.PDI.QFIs, QFI: gtpu.NoQFI}
	if pdr.PDI.Tunnel != nil {
		compiled.TEID = pdr.PDI.Tunnel.TEID
	}
	compiled.setUE(pdr.PDI)
	if pdr.PDI.Tunnel == nil && !compiled.hasUE {
		return fail(ie.UEIPAddress, "neither a local F-TEID nor a UE IP address to detect packets by")
	}
	if compiled.FAR = objects.FARs[pdr.FAR]; compiled.FAR == nil {
		if pdr.FAR != 0 {
			return fail(ie.FARID, "unknown FAR")
		}
		compiled.FAR = &FAR{} // no action is given: packets are dropped
	}
	flows, ok := spec.flows(pdr.PDI.Filters)
	if !ok {
		return fail(ie.SDFFilter, "unknown SDF filter ID")
	}
	compiled.flows = flows
	for _, id := range pdr.QERs {
		qer, known := spec.QERs[id]
		if !known {
			return fail(ie.QERID, "unknown QER")
		}
		compiled.enforce(qer, objects.Meters[id], c.Ignore)
	}
	for _, id := range pdr.URRs {
		if objects.Usages[id] == nil {
			return fail(ie.URRID, "unknown URR")
		}
		if !c.Ignore.URR {
			compiled.usages = append(compiled.usages, objects.Usages[id])
		}
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

func (p *PDR) enforce(qer pfcp.QER, meters *Meters, ignore Ignore) {
	closed, bps, meter := qer.DownlinkClosed, qer.DownlinkMBRBps, &meters.Downlink
	if p.Uplink {
		closed, bps, meter = qer.UplinkClosed, qer.UplinkMBRBps, &meters.Uplink
	}
	p.closed = p.closed || closed && !ignore.Gate
	if rate := RateOf(bps); rate.Limited() && !ignore.MBR {
		p.meters = append(p.meters, metered{rate, meter})
		p.Metered = true
	}
	if qer.QFI >= 0 {
		p.QFI = qer.QFI
	}
}

// flows resolves SDF filters; a filter that accepts everything makes the others pointless.
func (s *Spec) flows(filters []pfcp.Filter) ([]pfcp.Flow, bool) {
	var flows []pfcp.Flow
	for _, filter := range filters {
		flow := filter.Flow
		if flow == nil {
			if flow = s.flowByID(filter.ID); flow == nil {
				return nil, false
			}
		}
		if flow.Any() {
			return nil, true
		}
		flows = append(flows, *flow)
	}
	return flows, true
}

// flowByID finds the bidirectional filter that another PDR of the session describes (clause 8.2.5, BID).
func (s *Spec) flowByID(id uint32) *pfcp.Flow {
	for _, pdr := range s.PDRs {
		for _, filter := range pdr.PDI.Filters {
			if filter.HasID && filter.ID == id && filter.Flow != nil {
				return filter.Flow
			}
		}
	}
	return nil
}

// Keys are what a session is found by.
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
