package n4

import (
	"net"
	"net/netip"

	"github.com/wmnsk/go-pfcp/ie"

	"slicepilot/userplane/internal/pfcp"
	"slicepilot/userplane/internal/upf/session"
)

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
	teid := c.server.newTEID(c.taken)
	c.taken[teid] = struct{}{}
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
