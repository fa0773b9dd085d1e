package pfcp

import (
	"net/netip"
	"strings"

	"github.com/wmnsk/go-pfcp/ie"
)

// CreatePDR reads a Create PDR element (TS 29.244 table 7.5.2.2-1).
func CreatePDR(group *ie.IE) (PDR, *Reject) {
	id, reject := PDRID(group)
	if reject != nil {
		return PDR{}, reject
	}
	if find(group, ie.Precedence) == nil {
		return PDR{}, Missing(ie.Precedence, "Precedence")
	}
	if find(group, ie.PDI) == nil {
		return PDR{}, Missing(ie.PDI, "PDI")
	}
	return PDR{ID: id}.Update(group)
}

// Update returns the rule with what a Create PDR or Update PDR element says (table 7.5.4.2-1): elements that are
// absent leave their part as it is; lists of rules and the PDI are replaced as a whole.
func (p PDR) Update(group *ie.IE) (PDR, *Reject) {
	var qers []uint32
	for _, e := range group.ChildIEs {
		var reject *Reject
		var value uint64
		switch e.Type {
		case ie.Precedence:
			value, reject = uintOf(e, 4)
			p.Precedence = uint32(value)
		case ie.PDI:
			p.PDI, reject = parsePDI(e, p.PDI.Tunnel)
		case ie.FARID:
			value, reject = uintOf(e, 4)
			p.FAR = uint32(value)
		case ie.QERID:
			value, reject = uintOf(e, 4)
			qers = append(qers, uint32(value))
		case ie.OuterHeaderRemoval:
			reject = p.checkRemoval(e)
		case ie.ActivatePredefinedRules:
			reject = RuleFailure(ie.RuleIDTypePDR, uint32(p.ID), e.Type, "no predefined rules here")
		}
		if reject != nil {
			if reject.Rule == nil && reject.Cause == ie.CauseRuleCreationModificationFailure {
				reject.Rule = &RuleID{ie.RuleIDTypePDR, uint32(p.ID)}
			}
			return PDR{}, reject
		}
	}
	if qers != nil {
		p.QERs = qers
	}
	return p, nil
}

// checkRemoval accepts the removal of GTP-U/UDP/IP (clause 8.2.64): 0 IPv4, 1 IPv6, 6 either. What arrives in a tunnel
// leaves without its outer header in any case, so nothing needs to be kept.
func (p PDR) checkRemoval(e *ie.IE) *Reject {
	description, reject := uintOf(e, 1)
	if reject != nil {
		return reject
	}
	if description != 0 && description != 1 && description != 6 {
		return RuleFailure(ie.RuleIDTypePDR, uint32(p.ID), e.Type, "only GTP-U/UDP/IP headers can be removed")
	}
	return nil
}

// parsePDI reads a PDI (table 7.5.2.2-2). A tunnel that was chosen here before stays when the update asks to choose.
func parsePDI(group *ie.IE, before *LocalTunnel) (PDI, *Reject) {
	if find(group, ie.SourceInterface) == nil {
		return PDI{}, Missing(ie.SourceInterface, "Source Interface")
	}
	var pdi PDI
	filtered, anyFlow := false, false
	for _, e := range group.ChildIEs {
		var reject *Reject
		switch e.Type {
		case ie.SourceInterface:
			pdi.Source, reject = parseInterface(e)
		case ie.FTEID:
			pdi.Tunnel, reject = parseLocalTunnel(e)
			if reject == nil && pdi.Tunnel.Choose && before != nil && !before.Choose {
				pdi.Tunnel = before
			}
		case ie.UEIPAddress:
			pdi.UE4, pdi.UE6, reject = parseUEAddress(e)
		case ie.QFI:
			var qfi uint64
			qfi, reject = uintOf(e, 1)
			pdi.QFIs |= 1 << (qfi & 0x3f)
		case ie.SDFFilter:
			var any bool
			any, reject = isAnyFlow(e)
			filtered, anyFlow = true, anyFlow || any
		case ie.ApplicationID, ie.TrafficEndpointID, ie.EthernetPacketFilter, ie.EthernetPDUSessionInformation,
			ie.FramedRoute, ie.FramedIPv6Route:
			reject = &Reject{Cause: ie.CauseRuleCreationModificationFailure, Offending: e.Type, Reason: "not supported in a PDI"}
		}
		if reject != nil {
			return PDI{}, reject
		}
	}
	pdi.SomeFlows = filtered && !anyFlow
	return pdi, nil
}

func parseInterface(e *ie.IE) (Interface, *Reject) {
	value, reject := uintOf(e, 1)
	if reject != nil {
		return 0, reject
	}
	side := Interface(value & 0x0f)
	if side > CPFunction {
		return 0, Incorrect(e.Type, "expected access, core, SGi-LAN/N6-LAN, CP function")
	}
	return side, nil
}

// parseLocalTunnel reads an F-TEID (clause 8.2.3).
func parseLocalTunnel(e *ie.IE) (*LocalTunnel, *Reject) {
	f, err := e.FTEID()
	if err != nil {
		return nil, &Reject{Cause: ie.CauseInvalidLength, Offending: e.Type, Reason: err.Error()}
	}
	tunnel := &LocalTunnel{
		TEID: f.TEID, Choose: f.HasCh(), ChooseID: -1, WantsIPv4: f.HasIPv4(), WantsIPv6: f.HasIPv6(),
	}
	if !tunnel.WantsIPv4 && !tunnel.WantsIPv6 {
		return nil, Incorrect(e.Type, "F-TEID for neither IPv4 nor IPv6")
	}
	if tunnel.Choose {
		if f.HasChID() {
			tunnel.ChooseID = int(f.ChooseID)
		}
		return tunnel, nil
	}
	tunnel.IPv4, _ = netip.AddrFromSlice(f.IPv4Address)
	tunnel.IPv6, _ = netip.AddrFromSlice(f.IPv6Address)
	return tunnel, nil
}

// defaultPrefixBits is the length of a terminal's IPv6 prefix where none is given (clause 8.2.62).
const defaultPrefixBits = 64

// parseUEAddress reads a UE IP Address (clause 8.2.62).
func parseUEAddress(e *ie.IE) (v4, v6 netip.Prefix, reject *Reject) {
	f, err := e.UEIPAddress()
	switch {
	case err != nil:
		return v4, v6, &Reject{Cause: ie.CauseInvalidLength, Offending: e.Type, Reason: err.Error()}
	case e.HasCHV4() || e.HasCHV6():
		return v4, v6, &Reject{Cause: ie.CauseServiceNotSupported, Offending: e.Type, Reason: "UE addresses are not allocated here"}
	case e.HasIPv6D():
		return v4, v6, &Reject{Cause: ie.CauseServiceNotSupported, Offending: e.Type, Reason: "no IPv6 prefix delegation here"}
	}
	if address, given := netip.AddrFromSlice(f.IPv4Address); given {
		v4 = netip.PrefixFrom(address, 32)
	}
	if address, given := netip.AddrFromSlice(f.IPv6Address); given {
		bits := defaultPrefixBits
		if e.HasIP6PL() {
			bits = int(f.IPv6PrefixLength)
		}
		if bits != defaultPrefixBits && bits != 128 {
			return v4, v6, Incorrect(e.Type, "IPv6 prefix length: expected 64, 128")
		}
		v6 = netip.PrefixFrom(address, bits).Masked()
	}
	return v4, v6, nil
}

// isAnyFlow says whether an SDF Filter (clause 8.2.5) lets all packets pass, in whatever direction.
func isAnyFlow(e *ie.IE) (bool, *Reject) {
	f, err := e.SDFFilter()
	if err != nil {
		return false, &Reject{Cause: ie.CauseInvalidLength, Offending: e.Type, Reason: err.Error()}
	}
	described := strings.Join(strings.Fields(f.FlowDescription), " ")
	any := described == "permit out ip from any to assigned" || described == "permit out ip from any to any"
	return any && !f.HasTTC() && !f.HasSPI() && !f.HasFL(), nil
}
