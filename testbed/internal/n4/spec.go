package n4

import (
	"fmt"
	"math"
	"net"
	"net/netip"
	"strings"

	"github.com/wmnsk/go-pfcp/ie"
)

// SessionSpec is one PDU session: a UE's default QoS flow in one slice.
type SessionSpec struct {
	Name string
	UE   netip.Addr
	// TEID and N3 are the uplink tunnel at the UPF. TEID 0: the UPF chooses (CHOOSE, clause 8.2.3), and N3 only says
	// by its family which address is wanted.
	TEID uint32
	N3   netip.Addr
	QFI  uint8
	// GNB and GNBTEID are the downlink tunnel.
	GNB     netip.Addr
	GNBTEID uint32
	// SST and SD are the S-NSSAI (TS 23.003 clause 28.4.2); SST nil: none is sent. SD 0xFFFFFF: none.
	SST *uint8
	SD  uint32
	DNN string
	// Maximum bit rates of inner packets; 0: no limit.
	MBRUplinkMbps, MBRDownlinkMbps float64
}

// NoSD is the slice differentiator that stands for none (TS 23.003 clause 28.4.2).
const NoSD = 0xFFFFFF

// maxQFI is the largest QoS flow identifier: six bits (clause 8.2.89).
const maxQFI = 63

// maxMBRMbps keeps a bit rate inside the 40 bits of kbit/s it is sent in (clause 8.2.8).
const maxMBRMbps = (1<<40 - 1) / 1e3

// Validate says which field cannot be, what it is and what is accepted.
func (s *SessionSpec) Validate() error {
	switch {
	case s.Name == "":
		return fmt.Errorf("session: empty; expected a name")
	case !s.UE.IsValid():
		return fmt.Errorf("ue: missing; expected the UE's IPv4 or IPv6 address")
	case s.QFI > maxQFI:
		return fmt.Errorf("qfi: %d; expected 0 to %d", s.QFI, maxQFI)
	case s.TEID != 0 && !s.N3.IsValid():
		return fmt.Errorf("n3: missing with teid %d; expected the UPF's N3 address (or no teid: the UPF chooses)", s.TEID)
	case !s.GNB.IsValid() || s.GNBTEID == 0:
		return fmt.Errorf("gnb, gnb_teid: missing; expected both ends of the downlink tunnel")
	case s.SST == nil && s.SD != NoSD:
		return fmt.Errorf("sd: %06x without sst; expected both, or sst alone", s.SD)
	case s.SD > NoSD:
		return fmt.Errorf("sd: %x; expected six hexadecimal digits", s.SD)
	}
	if err := validateDNN(s.DNN); err != nil {
		return err
	}
	for _, rate := range []float64{s.MBRUplinkMbps, s.MBRDownlinkMbps} {
		if !(rate >= 0 && rate <= maxMBRMbps) {
			return fmt.Errorf("mbr: %g Mbit/s; expected 0 (no limit) to %.0f", rate, maxMBRMbps)
		}
	}
	return nil
}

// validateDNN holds a name to what its encoding as labels can hold (TS 23.003 clause 9.1).
func validateDNN(dnn string) error {
	ok := dnn != "" && len(dnn) <= 99
	for _, label := range strings.Split(dnn, ".") {
		ok = ok && label != "" && len(label) <= 63
	}
	if !ok {
		return fmt.Errorf("dnn: %q; expected labels of 1 to 63 characters with dots between, 99 in all", dnn)
	}
	return nil
}

// Change is what to modify of a session; nil fields stay as they are.
type Change struct {
	MBRUplinkMbps, MBRDownlinkMbps *float64
	CloseUplink, CloseDownlink     *bool
}

// rules is what a session's rules are to be: its specification and what modifications have made of it.
type rules struct {
	SessionSpec
	closeUplink, closeDownlink bool
}

// with is a copy with a change made.
func (r rules) with(change Change) rules {
	if change.MBRUplinkMbps != nil {
		r.MBRUplinkMbps = *change.MBRUplinkMbps
	}
	if change.MBRDownlinkMbps != nil {
		r.MBRDownlinkMbps = *change.MBRDownlinkMbps
	}
	if change.CloseUplink != nil {
		r.closeUplink = *change.CloseUplink
	}
	if change.CloseDownlink != nil {
		r.closeDownlink = *change.CloseDownlink
	}
	return r
}

// Identifiers of a session's rules: a PDR and a FAR for each direction, one QER for both. The UPF needs them to be unique
// within the session only.
const (
	uplinkRule   = 1
	downlinkRule = 2
	sessionQER   = 1
)

// defaultPrecedence is that of the rule for all of a session's traffic: the lowest that a more specific rule can be put
// before (clause 8.2.11: the lower the value, the higher the precedence).
const defaultPrecedence = 255

// unlimitedKbps stands for no limit where the other direction has one: a Maximum Bit Rate always names both. It fits
// into the 32 bits that some UPFs hold it in.
const unlimitedKbps = 4_000_000_000

// create is the rules as a Session Establishment Request creates them (clause 7.5.2).
func (r *rules) create() []*ie.IE {
	parts := []*ie.IE{
		ie.NewCreatePDR(
			ie.NewPDRID(uplinkRule),
			ie.NewPrecedence(defaultPrecedence),
			r.uplinkPDI(),
			outerHeaderRemoval(r.N3),
			ie.NewFARID(uplinkRule),
			ie.NewQERID(sessionQER),
		),
		ie.NewCreatePDR(
			ie.NewPDRID(downlinkRule),
			ie.NewPrecedence(defaultPrecedence),
			ie.NewPDI(
				ie.NewSourceInterface(ie.SrcInterfaceCore),
				ie.NewNetworkInstanceFQDN(r.DNN),
				ueAddress(r.UE, true),
				onN6(),
			),
			ie.NewFARID(downlinkRule),
			ie.NewQERID(sessionQER),
		),
		ie.NewCreateFAR(ie.NewFARID(uplinkRule), forward(),
			ie.NewForwardingParameters(r.uplinkForwarding()...)),
		ie.NewCreateFAR(ie.NewFARID(downlinkRule), forward(),
			ie.NewForwardingParameters(r.downlinkForwarding()...)),
	}
	limited := r.MBRUplinkMbps > 0 || r.MBRDownlinkMbps > 0
	return append(parts, ie.NewCreateQER(append([]*ie.IE{ie.NewQERID(sessionQER)}, r.enforcement(limited)...)...))
}

// change is what a Session Modification Request makes of the rules (clause 7.5.4).
func (r *rules) change(wanted Change) *ie.IE {
	rates := wanted.MBRUplinkMbps != nil || wanted.MBRDownlinkMbps != nil
	// What an Update QER does not have stays as it is (table 7.5.4.5-1): no limit has to be said as well.
	return ie.NewUpdateQER(append([]*ie.IE{ie.NewQERID(sessionQER)}, r.enforcement(rates)...)...)
}

// uplinkPDI detects what comes from the access side through the tunnel and QoS flow of one PFCP session.
func (r *rules) uplinkPDI() *ie.IE {
	parts := []*ie.IE{
		ie.NewSourceInterface(ie.SrcInterfaceAccess),
		r.uplinkTunnel(),
		ie.NewNetworkInstanceFQDN(r.DNN),
		ueAddress(r.UE, false),
		onN3(),
	}
	if r.QFI != 0 {
		parts = append(parts, ie.NewQFI(r.QFI))
	}
	return ie.NewPDI(parts...)
}

// uplinkTunnel is the local F-TEID: given, or left to the UPF to choose (clause 8.2.3).
func (r *rules) uplinkTunnel() *ie.IE {
	const v4, v6, choose = 0x01, 0x02, 0x04
	flag, ipv4, ipv6 := uint8(v4), net.IP(nil), net.IP(nil)
	if r.N3.Is6() {
		flag, ipv6 = v6, r.N3.AsSlice()
	} else if r.N3.IsValid() {
		ipv4 = r.N3.AsSlice()
	}
	if r.TEID == 0 {
		return ie.NewFTEID(flag|choose, 0, nil, nil, 0)
	}
	return ie.NewFTEID(flag, r.TEID, ipv4, ipv6, 0)
}

// Network Instance and DNN are sent as labels (TS 23.003 clause 9.1), which clause 8.2.4 allows: Open5GS reads no other
// form, others do not look inside.

func (r *rules) uplinkForwarding() []*ie.IE {
	return []*ie.IE{ie.NewDestinationInterface(ie.DstInterfaceCore), ie.NewNetworkInstanceFQDN(r.DNN), onN6()}
}

// Which reference point an interface is (clause 8.2.118): optional, but Open5GS from 2.7.7 on accepts a session without
// it and then buffers all its uplink for ever.

func onN3() *ie.IE { return ie.NewTGPPInterfaceType(ie.TGPPInterfaceTypeN33GPPAccess) }

func onN6() *ie.IE { return ie.NewTGPPInterfaceType(ie.TGPPInterfaceTypeN6) }

func (r *rules) downlinkForwarding() []*ie.IE {
	const gtpuIPv4, gtpuIPv6 = 0x0100, 0x0200 // clause 8.2.56
	creation := ie.NewOuterHeaderCreation(gtpuIPv4, r.GNBTEID, r.GNB.String(), "", 0, 0, 0)
	if r.GNB.Is6() {
		creation = ie.NewOuterHeaderCreation(gtpuIPv6, r.GNBTEID, "", r.GNB.String(), 0, 0, 0)
	}
	return []*ie.IE{
		ie.NewDestinationInterface(ie.DstInterfaceAccess), ie.NewNetworkInstanceFQDN(r.DNN), creation, onN3(),
	}
}

// enforcement is the body of a QER: gates, maximum bit rates if they are to be in it, and the QFI to mark downlink with.
func (r *rules) enforcement(rates bool) []*ie.IE {
	parts := []*ie.IE{ie.NewGateStatus(gate(r.closeUplink), gate(r.closeDownlink))}
	if rates {
		parts = append(parts, ie.NewMBR(maximumKbps(r.MBRUplinkMbps), maximumKbps(r.MBRDownlinkMbps)))
	}
	if r.QFI != 0 {
		parts = append(parts, ie.NewQFI(r.QFI))
	}
	return parts
}

// forward is an Apply Action, which has two octets from Release 16 on (clause 8.2.26); Open5GS takes no other length.
func forward() *ie.IE {
	const forw = 0x02
	return ie.NewApplyAction(forw, 0)
}

// outerHeaderRemoval strips GTP-U, UDP and IP, and the PDU Session Container with them (clause 8.2.64).
func outerHeaderRemoval(n3 netip.Addr) *ie.IE {
	const gtpuIPv4, gtpuIPv6, pduSessionContainer = 0, 1, 0x01
	if n3.Is6() {
		return ie.NewOuterHeaderRemoval(gtpuIPv6, pduSessionContainer)
	}
	return ie.NewOuterHeaderRemoval(gtpuIPv4, pduSessionContainer)
}

// ueAddress is a UE IP Address (clause 8.2.62); flag S/D tells whether it is matched as the destination.
func ueAddress(ue netip.Addr, destination bool) *ie.IE {
	const v6, v4, sd = 0x01, 0x02, 0x04
	flags := uint8(0)
	if destination {
		flags = sd
	}
	if ue.Is6() {
		return ie.NewUEIPAddress(flags|v6, "", ue.String(), 0, 0)
	}
	return ie.NewUEIPAddress(flags|v4, ue.String(), "", 0, 0)
}

func pdnType(ue netip.Addr) *ie.IE {
	if ue.Is6() {
		return ie.NewPDNType(ie.PDNTypeIPv6)
	}
	return ie.NewPDNType(ie.PDNTypeIPv4)
}

func gate(closed bool) uint8 {
	if closed {
		return ie.GateStatusClosed
	}
	return ie.GateStatusOpen
}

// maximumKbps is a rate as PFCP carries it: whole kbit/s, rounded up so that no limit is lower than asked for.
func maximumKbps(mbps float64) uint64 {
	if mbps == 0 {
		return unlimitedKbps
	}
	return uint64(math.Ceil(mbps * 1e3))
}
