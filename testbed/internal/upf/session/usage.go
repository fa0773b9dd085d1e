package session

import (
	"sync/atomic"

	"slicepilot/userplane/internal/pfcp"
)

// Usage counts the volume of one Usage Reporting Rule: octets of the terminal's own packets that were let through
// (TS 29.244 clause 5.2.2.2: measured after QoS enforcement unless asked otherwise). It outlives changes of the rule.
type Usage struct {
	ID uint32

	uplinkBytes, downlinkBytes     atomic.Uint64
	uplinkPackets, downlinkPackets atomic.Uint64

	limits atomic.Pointer[limits]
}

// limits are the cumulative counts at which something happens; replaced as a whole after every report.
type limits struct {
	report   pfcp.Volume // a report is due; 0: never
	quota    pfcp.Volume // nothing passes any more; 0: never
	reported atomic.Bool // the report has been asked for
	spent    atomic.Bool // the quota's end has been told
}

// Counts is a reading of a Usage.
type Counts struct {
	UplinkBytes, DownlinkBytes     uint64
	UplinkPackets, DownlinkPackets uint64
}

// Sub returns what was counted since an earlier reading.
func (c Counts) Sub(earlier Counts) Counts {
	return Counts{
		c.UplinkBytes - earlier.UplinkBytes, c.DownlinkBytes - earlier.DownlinkBytes,
		c.UplinkPackets - earlier.UplinkPackets, c.DownlinkPackets - earlier.DownlinkPackets,
	}
}

// NewUsage makes the counters of a rule, without limits.
func NewUsage(id uint32) *Usage {
	u := &Usage{ID: id}
	u.limits.Store(&limits{})
	return u
}

// Read returns the counts since the rule was created.
func (u *Usage) Read() Counts {
	return Counts{
		u.uplinkBytes.Load(), u.downlinkBytes.Load(), u.uplinkPackets.Load(), u.downlinkPackets.Load(),
	}
}

// Limit sets the thresholds anew, counted from the reading base, and the quota, counted from the reading start.
func (u *Usage) Limit(rule pfcp.URR, base, start Counts) {
	next := &limits{}
	if rule.OnVolume {
		next.report = after(rule.Threshold, base)
	}
	next.quota = after(rule.Quota, start)
	u.limits.Store(next)
}

func after(v pfcp.Volume, base Counts) pfcp.Volume {
	add := func(limit, from uint64) uint64 {
		if limit == 0 {
			return 0
		}
		return from + limit
	}
	return pfcp.Volume{
		Total:    add(v.Total, base.UplinkBytes+base.DownlinkBytes),
		Uplink:   add(v.Uplink, base.UplinkBytes),
		Downlink: add(v.Downlink, base.DownlinkBytes),
	}
}

// UsageEvent is what counting a packet may set off.
type UsageEvent uint8

// Events of a Usage.
const (
	UsageNone   UsageEvent = iota
	UsageReport            // the volume threshold is passed
	UsageQuota             // the quota is used up
)

// Exhausted says whether the quota is used up.
func (u *Usage) Exhausted() bool {
	l := u.limits.Load()
	return l.quota != (pfcp.Volume{}) && u.beyond(l.quota)
}

// Count adds one packet. Each event is returned once until Limit is called.
func (u *Usage) Count(uplink bool, size int) UsageEvent {
	if uplink {
		u.uplinkBytes.Add(uint64(size))
		u.uplinkPackets.Add(1)
	} else {
		u.downlinkBytes.Add(uint64(size))
		u.downlinkPackets.Add(1)
	}
	l := u.limits.Load()
	if l.quota != (pfcp.Volume{}) && u.beyond(l.quota) && l.spent.CompareAndSwap(false, true) {
		return UsageQuota
	}
	if l.report != (pfcp.Volume{}) && u.beyond(l.report) && l.reported.CompareAndSwap(false, true) {
		return UsageReport
	}
	return UsageNone
}

// Rearm takes back an event that could not be passed on: the next packet sets it off again.
func (u *Usage) Rearm(event UsageEvent) {
	l := u.limits.Load()
	if event == UsageQuota {
		l.spent.Store(false)
	} else {
		l.reported.Store(false)
	}
}

func (u *Usage) beyond(v pfcp.Volume) bool {
	uplink, downlink := u.uplinkBytes.Load(), u.downlinkBytes.Load()
	return v.Total != 0 && uplink+downlink >= v.Total || v.Uplink != 0 && uplink >= v.Uplink ||
		v.Downlink != 0 && downlink >= v.Downlink
}
