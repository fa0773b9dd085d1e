package n4

import (
	"errors"
	"fmt"
	"net/netip"

	"github.com/wmnsk/go-pfcp/ie"
)

// tunnel is the uplink's at the UPF, given or chosen by it.
type tunnel struct {
	teid uint32
	n3   netip.Addr
}

// SessionState is a session as it is now: its specification with what has been modified since. TEID and N3 are those of
// the uplink tunnel, also where the UPF has chosen them.
type SessionState struct {
	SessionSpec
	CloseUplink, CloseDownlink bool
}

// State is what a session is like now.
func (p *Peer) State(name string) (SessionState, error) {
	p.procedure.Lock()
	defer p.procedure.Unlock()
	session, err := p.sessionNamed(name)
	if err != nil {
		return SessionState{}, err
	}
	r := &session.rules
	state := SessionState{r.SessionSpec, r.closeUplink, r.closeDownlink}
	state.TEID, state.N3 = session.tunnel.teid, session.tunnel.n3
	return state, nil
}

// upSEID reads the UPF's identifier of the session, which an acceptance has to name.
func upSEID(fseid *ie.IE) (uint64, error) {
	if fseid == nil {
		return 0, errors.New("accepted without UP F-SEID, which is mandatory then")
	}
	fields, err := fseid.FSEID()
	if err != nil {
		return 0, fmt.Errorf("unreadable UP F-SEID: %w", err)
	}
	return fields.SEID, nil
}

// chosenTunnel reads the F-TEID that the UPF chose for the uplink PDR (clause 7.5.3.2).
func chosenTunnel(created []*ie.IE) (tunnel, error) {
	for _, pdr := range created {
		parts, err := pdr.CreatedPDR()
		if err != nil {
			return tunnel{}, fmt.Errorf("unreadable Created PDR: %w", err)
		}
		id, chosen := uint16(0), (*ie.FTEIDFields)(nil)
		for _, part := range parts {
			switch part.Type {
			case ie.PDRID:
				id, _ = part.PDRID()
			case ie.FTEID:
				chosen, _ = part.FTEID()
			}
		}
		if id != uplinkRule || chosen == nil {
			continue
		}
		address, ok := netip.AddrFromSlice(chosen.IPv4Address)
		if !ok {
			address, _ = netip.AddrFromSlice(chosen.IPv6Address)
		}
		return tunnel{chosen.TEID, address.Unmap()}, nil
	}
	return tunnel{}, errors.New("accepted without the F-TEID that the UPF was to choose")
}
