package n4

import (
	"fmt"
	"math"
	"net/netip"
	"strings"
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

// kbps is a rate as PFCP carries it: whole kbit/s, rounded up so that no limit is lower than asked for.
func kbps(mbps float64) uint64 { return uint64(math.Ceil(mbps * 1e3)) }
