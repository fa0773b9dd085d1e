package verify

import (
	"context"
	"errors"
	"fmt"
	"time"

	"slicepilot/userplane/internal/n4"
)

// Result is what the packets say of a rule that was asked for on N4.
type Result string

// Results.
const (
	Enforced Result = "enforced"
	Partly   Result = "partly"                  // it has an effect, but not the one that was asked for
	Ignored  Result = "accepted_without_effect" // the UPF has accepted it, and the packets do not notice
	Refused  Result = "refused"                 // the UPF has said so, with a cause
	Untested Result = "untested"                // too few packets pass without it
)

// Check is one rule in one direction.
type Check struct {
	Rule      string    `json:"rule"` // gate, mbr or urr
	Direction Direction `json:"direction"`
	Result    Result    `json:"result"`
	Cause     uint8     `json:"cause,omitempty"`
	CauseText string    `json:"cause_text,omitempty"`
	Sent      int       `json:"sent_packets"`
	Arrived   int       `json:"arrived_packets"`
	Rate      *Rate     `json:"rate,omitempty"`   // of mbr, where it was tried
	Volume    *Volume   `json:"volume,omitempty"` // of urr, where it was tried
	Detail    string    `json:"detail,omitempty"`
}

// Rate is of packets from their IP header on, in Mbit/s: what was offered, the limit, the most that counts as enforced,
// and what arrived.
type Rate struct {
	Offered float64 `json:"offered_mbps"`
	Limit   float64 `json:"limit_mbps"`
	Most    float64 `json:"most_mbps"`
	Arrived float64 `json:"arrived_mbps"`
}

// Volume is what arrived and what the UPF reported, in octets from the packets' IP headers on.
type Volume struct {
	Arrived  uint64 `json:"arrived_bytes"`
	Reported uint64 `json:"reported_bytes"`
}

// Rules are what Checks can be about, and the order in which they are made.
var Rules = []string{"gate", "mbr", "urr"}

const (
	// fewPackets is how many are sent where a handful tells, every fewEvery, and settle how long the last is waited for.
	fewPackets = 20
	fewEvery   = time.Millisecond
	settle     = 100 * time.Millisecond
)

var directions = []Direction{Uplink, Downlink}

// checker is one session's verification.
type checker struct {
	ctx  context.Context
	peer *n4.Peer
	name string
	rig  *Rig
}

// Verify closes and opens the session's gates, limits its rate and queries its usage, looks at what becomes of the
// packets each time, and puts everything back. It takes some two seconds. Other traffic of the session makes its figures
// wrong.
func Verify(ctx context.Context, peer *n4.Peer, name string, place Place) (checks []Check, err error) {
	before, err := peer.State(name)
	if err != nil {
		return nil, err
	}
	rig, err := Open(before, place)
	if err != nil {
		return nil, err
	}
	defer rig.Close()
	c := &checker{ctx, peer, name, rig}
	defer func() {
		if failure := c.restore(before); err == nil {
			err = failure
		}
	}()
	open, none := false, 0.0
	_, err = peer.Modify(ctx, name, n4.Change{
		CloseUplink: &open, CloseDownlink: &open, MBRUplinkMbps: &none, MBRDownlinkMbps: &none,
	})
	if err != nil && refusal(err) == nil {
		return nil, err
	}
	var usable []Direction
	for _, direction := range directions {
		sent, arrived, err := c.few(direction)
		if err != nil {
			return nil, err
		}
		if arrived > sent/2 {
			usable = append(usable, direction)
			continue
		}
		for _, rule := range Rules {
			checks = append(checks, Check{Rule: rule, Direction: direction, Result: Untested, Sent: sent, Arrived: arrived,
				Detail: "too few packets arrive while nothing holds them up: " + rig.describe(direction)})
		}
	}
	for _, check := range []func([]Direction) ([]Check, error){c.gates, c.rates, c.volumes} {
		found, err := check(usable)
		if err != nil {
			return nil, err
		}
		checks = append(checks, found...)
	}
	return checks, nil
}

// restore puts gates and rates back, also when the program is told to end meanwhile.
func (c *checker) restore(before n4.SessionState) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(c.ctx), time.Second)
	defer cancel()
	_, err := c.peer.Modify(ctx, c.name, n4.Change{
		CloseUplink: &before.CloseUplink, CloseDownlink: &before.CloseDownlink,
		MBRUplinkMbps: &before.MBRUplinkMbps, MBRDownlinkMbps: &before.MBRDownlinkMbps,
	})
	if refusal(err) != nil {
		return nil // refused before as well, and so nothing was changed
	}
	return err
}

// few sends a handful of packets and says how many arrived.
func (c *checker) few(direction Direction) (sent, arrived int, err error) {
	if err := c.ctx.Err(); err != nil {
		return 0, 0, err
	}
	volley, err := c.rig.Send(direction, fewPackets, tripSize, fewEvery)
	if err != nil {
		return 0, 0, err
	}
	return fewPackets, c.rig.Await(volley, settle), nil
}

// gates closes and opens the gate of a direction (Gate Status, clause 8.2.7).
func (c *checker) gates(usable []Direction) ([]Check, error) {
	var found []Check
	for _, direction := range usable {
		check, err := c.gate(direction)
		if err != nil {
			return nil, err
		}
		found = append(found, check)
	}
	return found, nil
}

func (c *checker) gate(direction Direction) (Check, error) {
	check := Check{Rule: "gate", Direction: direction}
	set := func(closed bool) error {
		change := n4.Change{CloseUplink: &closed}
		if direction == Downlink {
			change = n4.Change{CloseDownlink: &closed}
		}
		_, err := c.peer.Modify(c.ctx, c.name, change)
		return err
	}
	if err := set(true); err != nil {
		return check.refusedBy(err)
	}
	var err error
	if check.Sent, check.Arrived, err = c.few(direction); err != nil {
		return check, err
	}
	if err := set(false); err != nil {
		return check.refusedBy(err)
	}
	sent, opened, err := c.few(direction)
	switch {
	case err != nil:
		return check, err
	case isAll(check.Arrived, check.Sent):
		check.Result = Ignored
	case check.Arrived > 0:
		check.Result, check.Detail = Partly, "packets pass a closed gate"
	case opened == 0:
		check.Result, check.Detail = Partly, fmt.Sprintf("the gate stays closed when it is opened: none of %d arrive", sent)
	default:
		check.Result = Enforced
	}
	return check, nil
}

// isAll says that as good as all packets have arrived: one that is lost for another reason does not make a rule work.
func isAll(arrived, sent int) bool { return 10*arrived >= 9*sent }

// refusedBy makes a refusal the result; any other error ends the verification.
func (c Check) refusedBy(err error) (Check, error) {
	rejected := refusal(err)
	if rejected == nil {
		return c, err
	}
	c.Result, c.Cause, c.CauseText = Refused, rejected.Cause, n4.CauseText(rejected.Cause)
	return c, nil
}

// allRefused is what refusedBy makes of one refusal for all directions.
func allRefused(rule string, of []Direction, cause error) ([]Check, error) {
	checks := make([]Check, 0, len(of))
	for _, direction := range of {
		check, err := Check{Rule: rule, Direction: direction}.refusedBy(cause)
		if err != nil {
			return nil, err
		}
		checks = append(checks, check)
	}
	return checks, nil
}

// refusal is an error's rejection by the UPF; nil: it is another error, or none.
func refusal(err error) *n4.RejectedError {
	var rejected *n4.RejectedError
	errors.As(err, &rejected)
	return rejected
}
