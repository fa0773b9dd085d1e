package n4

import (
	"fmt"
	"math"
	"net/netip"
	"strings"
)

// Action is what a FAR does with its packets.
type Action string

// Actions; Buffer also has the UPF tell of the first packet (flags BUFF and NOCP of clause 8.2.26).
const (
	Forward Action = "forw"
	Drop    Action = "drop"
	Buffer  Action = "buff"
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
	// GNB and GNBTEID are the downlink tunnel. Unset: the gNB is not known yet, and downlink packets are buffered.
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
	case s.GNB.IsValid() != (s.GNBTEID != 0):
		return fmt.Errorf("gnb and gnb_teid: one without the other; expected both, or neither while the gNB is unknown")
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

// Change is what to modify of a session; nil and empty fields stay as they are.
type Change struct {
	MBRUplinkMbps, MBRDownlinkMbps *float64
	CloseUplink, CloseDownlink     *bool
	UplinkAction, DownlinkAction   Action
	// GNB and GNBTEID move the downlink tunnel, as a handover does; EndMarker has the UPF close the old one with an
	// End Marker (flag SNDEM of clause 8.2.31).
	GNB       netip.Addr
	GNBTEID   uint32
	EndMarker bool
}

// rules is what a session's rules are to be: its specification and what modifications have made of it.
type rules struct {
	SessionSpec
	closeUplink, closeDownlink   bool
	uplinkAction, downlinkAction Action
}

func newRules(spec SessionSpec) rules {
	r := rules{SessionSpec: spec, uplinkAction: Forward, downlinkAction: Forward}
	if !spec.GNB.IsValid() {
		r.downlinkAction = Buffer
	}
	return r
}

// with is a copy with a change made; an error says why it cannot be.
func (r rules) with(change Change) (rules, error) {
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
	if change.GNB.IsValid() || change.GNBTEID != 0 {
		r.GNB, r.GNBTEID = change.GNB, change.GNBTEID
		if r.downlinkAction == Buffer && change.DownlinkAction == "" {
			r.downlinkAction = Forward // what was kept waits for nothing but the tunnel
		}
	}
	if change.UplinkAction == Buffer {
		return r, fmt.Errorf("action: buff uplink; expected buff downlink only, uplink waits for nothing")
	}
	if change.UplinkAction != "" {
		r.uplinkAction = change.UplinkAction
	}
	if change.DownlinkAction != "" {
		r.downlinkAction = change.DownlinkAction
	}
	if r.downlinkAction == Forward && !r.GNB.IsValid() {
		return r, fmt.Errorf("action: forw downlink while no gNB is known; expected with gnb and gnb_teid")
	}
	return r, r.Validate()
}

// kbps is a rate as PFCP carries it: whole kbit/s, rounded up so that no limit is lower than asked for.
func kbps(mbps float64) uint64 { return uint64(math.Ceil(mbps * 1e3)) }
