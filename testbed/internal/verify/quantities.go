package verify

import (
	"fmt"
	"sync"
	"time"

	"slicepilot/userplane/internal/n4"
)

// What is offered to find a Maximum Bit Rate (clause 8.2.8). The first half of a volley empties whatever bucket the UPF
// has (up to 2.8 Mbit), the second half is judged. tolerance covers a UPF that counts other headers or averages.
const (
	limitMbps = 1.0
	rateSize  = 1000
	rateEvery = time.Millisecond // 8 Mbit/s
	ratePause = 400 * time.Millisecond
	tolerance = 0.25
	// Two packets may pass on the edges of what is judged.
	edgePackets = 2
)

// rates offers eight times the limit in all directions at once.
func (c *checker) rates(usable []Direction) ([]Check, error) {
	if len(usable) == 0 {
		return nil, nil
	}
	set := func(rate float64) error {
		_, err := c.peer.Modify(c.ctx, c.name, n4.Change{MBRUplinkMbps: &rate, MBRDownlinkMbps: &rate})
		return err
	}
	free, err := c.offer(usable, ratePause/2)
	if err != nil {
		return nil, err
	}
	if err := set(limitMbps); err != nil {
		return allRefused("mbr", usable, err)
	}
	limited, err := c.offer(usable, 2*ratePause)
	if err != nil {
		return nil, err
	}
	refused := set(0)
	if refused != nil && refusal(refused) == nil {
		return nil, refused
	}
	lifted, err := c.offer(usable, ratePause/2)
	if err != nil {
		return nil, err
	}
	checks := make([]Check, len(usable))
	for i, direction := range usable {
		checks[i] = Check{Rule: "mbr", Direction: direction}
		checks[i].judgeRate(free[i], limited[i], lifted[i])
	}
	return checks, nil
}

// offered is what became of a volley's second half.
type offered struct {
	sent, arrived int
	took          time.Duration
}

// offer sends a volley in every direction at once.
func (c *checker) offer(usable []Direction, duration time.Duration) ([]offered, error) {
	if err := c.ctx.Err(); err != nil {
		return nil, err
	}
	n := int(duration / rateEvery)
	found, failures := make([]offered, len(usable)), make([]error, len(usable))
	var sending sync.WaitGroup
	for i, direction := range usable {
		sending.Add(1)
		go func() {
			defer sending.Done()
			volley, err := c.rig.Send(direction, n, rateSize, rateEvery)
			c.rig.Await(volley, settle)
			found[i], failures[i] = offered{n - n/2, c.rig.since(volley, n/2), volley.took}, err
		}()
	}
	sending.Wait()
	for _, err := range failures {
		if err != nil {
			return nil, err
		}
	}
	return found, nil
}

func (c *Check) judgeRate(free, limited, lifted offered) {
	// A UPF that delays what is too much goes on sending while the last packets are waited for.
	window := limited.took + settle
	most := (1+tolerance)*limitMbps*1e6/8*window.Seconds()/rateSize + edgePackets
	c.Sent, c.Arrived = limited.sent, limited.arrived
	c.Rate = &Rate{
		mbps(limited.sent, limited.took), limitMbps, mbps(1, limited.took) * most, mbps(limited.arrived, limited.took),
	}
	switch {
	case free.arrived < free.sent/2:
		c.Result = Untested
		c.Detail = fmt.Sprintf("%d of %d packets arrive at this rate without a limit", free.arrived, free.sent)
	case limited.arrived == 0:
		c.Result, c.Detail = Partly, "nothing passes below the limit either"
	case float64(limited.arrived) > most && isAll(limited.arrived, limited.sent):
		c.Result = Ignored
	case float64(limited.arrived) > most:
		c.Result, c.Detail = Partly, "more passes than the limit and its tolerance"
	case lifted.arrived < lifted.sent/2:
		c.Result = Partly
		c.Detail = fmt.Sprintf("the limit stays when it is lifted: %d of %d packets arrive", lifted.arrived, lifted.sent)
	default:
		c.Result = Enforced
	}
}

// mbps is the rate of packets of rateSize.
func mbps(packets int, in time.Duration) float64 {
	return float64(packets) * rateSize * 8 / 1e6 / in.Seconds()
}

// volumes sends a known number of octets and queries the URR (clause 5.2.2.2; Query URR, clause 7.5.4.10). What is
// measured are the octets of user packets, without the tunnel's headers.
func (c *checker) volumes(usable []Direction) ([]Check, error) {
	query := n4.Change{QueryURR: true}
	if _, err := c.peer.Modify(c.ctx, c.name, query); err != nil {
		return allRefused("urr", usable, err)
	}
	checks := make([]Check, len(usable))
	for i, direction := range usable {
		sent, arrived, err := c.few(direction)
		if err != nil {
			return nil, err
		}
		checks[i] = Check{
			Rule: "urr", Direction: direction, Sent: sent, Arrived: arrived,
			Volume: &Volume{Arrived: uint64(arrived * tripSize)},
		}
	}
	outcome, err := c.peer.Modify(c.ctx, c.name, query)
	if err != nil {
		return allRefused("urr", usable, err)
	}
	total := uint64(0)
	for i := range checks {
		total += checks[i].Volume.Arrived
	}
	for i := range checks {
		checks[i].judgeVolume(outcome.Usage, total)
	}
	return checks, nil
}

func (c *Check) judgeVolume(reports []n4.Usage, total uint64) {
	usage := ofSession(reports)
	if usage == nil {
		c.Result, c.Detail = Ignored, "no Usage Report in the answer"
		return
	}
	c.Volume.Reported = usage.UplinkBytes
	if c.Direction == Downlink {
		c.Volume.Reported = usage.DownlinkBytes
	}
	least, most := c.Volume.Arrived, uint64(c.Sent*tripSize) // what is lost behind the UPF has been counted
	if usage.UplinkBytes == 0 && usage.DownlinkBytes == 0 && usage.TotalBytes != 0 {
		// Which volumes a report has is the UPF's choice (clause 8.2.44).
		c.Volume.Reported, least, most = usage.TotalBytes, total, total
		c.Detail = "only the total of both directions is reported"
	}
	switch reported := c.Volume.Reported; {
	case reported == 0:
		c.Result, c.Detail = Ignored, "nothing is counted"
	case reported < least || reported > most:
		c.Result, c.Detail = Partly, fmt.Sprintf("%d octets are reported; right: %d to %d", reported, least, most)
	default:
		c.Result = Enforced
	}
}
