package verify

import (
	"context"
	"time"

	"slicepilot/userplane/internal/n4"
)

// tripSize is the length of the packets of a Trip, from their IP header on.
const tripSize = 100

// Trip is what became of packets sent in one direction while nothing was changed.
type Trip struct {
	Direction Direction `json:"direction"`
	Path      string    `json:"path"` // between which addresses, through which tunnel
	Sent      int       `json:"sent"`
	Arrived   int       `json:"arrived"`
	// CountedBytes is what the UPF's URR says has passed in this direction meanwhile; nil: it does not say. A packet has
	// PacketBytes.
	CountedBytes *uint64 `json:"counted_bytes"`
	PacketBytes  int     `json:"packet_bytes"`
	// UnknownTunnel says that the UPF has answered the uplink with an Error Indication (TS 29.281 clause 7.3.1).
	UnknownTunnel bool `json:"unknown_tunnel,omitempty"`
}

// Trips sends n packets in each direction, and waits for them for patience at most. The usage that they make is read
// from the UPF's URR, so that it is not part of a later report.
func Trips(ctx context.Context, peer *n4.Peer, name string, place Place, n int, patience time.Duration) ([]Trip, error) {
	rig, err := openFor(peer, name, place)
	if err != nil {
		return nil, err
	}
	defer rig.Close()
	if _, err := usageOf(ctx, peer, name); err != nil {
		return nil, err
	}
	trips := make([]Trip, 0, 2)
	for _, direction := range []Direction{Uplink, Downlink} {
		volley, err := rig.Send(direction, n, tripSize, 0)
		if err != nil {
			return nil, err
		}
		trips = append(trips, Trip{
			Direction: direction, Path: rig.describe(direction), Sent: n, Arrived: rig.Await(volley, patience),
			PacketBytes: tripSize,
		})
	}
	usage, err := usageOf(ctx, peer, name)
	if err != nil {
		return nil, err
	}
	rig.mu.Lock()
	trips[0].UnknownTunnel = rig.unwelcome
	rig.mu.Unlock()
	if usage != nil {
		trips[0].CountedBytes, trips[1].CountedBytes = &usage.UplinkBytes, &usage.DownlinkBytes
	}
	return trips, nil
}

func openFor(peer *n4.Peer, name string, place Place) (*Rig, error) {
	session, err := peer.State(name)
	if err != nil {
		return nil, err
	}
	return Open(session, place)
}

// usageOf asks for a session's usage since the last report; nil where the UPF refuses or reports none.
func usageOf(ctx context.Context, peer *n4.Peer, name string) (*n4.Usage, error) {
	outcome, err := peer.Modify(ctx, name, n4.Change{QueryURR: true})
	if refusal(err) != nil {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	return ofSession(outcome.Usage), nil
}

// ofSession is the report of the URR that counts a whole session; nil where there is none.
func ofSession(reports []n4.Usage) *n4.Usage {
	for i := range reports {
		if reports[i].URR == n4.SessionURR {
			return &reports[i]
		}
	}
	return nil
}
