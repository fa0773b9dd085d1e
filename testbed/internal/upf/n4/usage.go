package n4

import (
	"sort"
	"time"

	"github.com/wmnsk/go-pfcp/ie"

	"slicepilot/userplane/internal/pfcp"
	"slicepilot/userplane/internal/upf/session"
)

// trigger is a Usage Report Trigger (clause 8.2.41): octet 5 in the low byte, octet 6 above.
type trigger uint16

const (
	triggerPeriodic    trigger = 0x0001
	triggerThreshold   trigger = 0x0002
	triggerImmediate   trigger = 0x0080
	triggerQuota       trigger = 0x0100
	triggerTermination trigger = 0x0800
)

// usage is the reporting side of one URR.
type usage struct {
	rule    pfcp.URR
	counter *session.Usage
	base    session.Counts // as last reported
	granted session.Counts // when the quota was last set
	since   time.Time      // the last report
	reports uint32         // UR-SEQN of the next one (clause 8.2.71)
	timer   *time.Timer
}

func (u *usage) stopTimer() {
	if u.timer != nil {
		u.timer.Stop()
		u.timer = nil
	}
}

// report builds a Usage Report of a kind (the IE types differ by message) and starts the next measurement.
func (u *usage) report(kind uint16, why trigger) *ie.IE {
	const octets = 0x07 // total, uplink and downlink; packets are counted on request only (MNOP), which is not offered
	now, counts := time.Now(), u.counter.Read()
	c := counts.Sub(u.base)
	ies := []*ie.IE{
		ie.NewURRID(u.rule.ID), ie.NewURSEQN(u.reports), ie.NewUsageReportTrigger(uint8(why), uint8(why>>8), 0),
		ie.NewStartTime(u.since), ie.NewEndTime(now),
	}
	if u.rule.Volume {
		ies = append(ies, ie.NewVolumeMeasurement(octets, c.UplinkBytes+c.DownlinkBytes, c.UplinkBytes, c.DownlinkBytes, 0, 0, 0))
	}
	if u.rule.Duration {
		ies = append(ies, ie.NewDurationMeasurement(now.Sub(u.since)))
	}
	u.reports++
	u.base, u.since = counts, now
	u.counter.Limit(u.rule, u.base, u.granted)
	return ie.NewUsageReport(kind, ies...)
}

// sortedUsage returns the rules by ID.
func (r *record) sortedUsage() []*usage {
	list := make([]*usage, 0, len(r.usage))
	for _, u := range r.usage {
		list = append(list, u)
	}
	sort.Slice(list, func(i, j int) bool { return list[i].rule.ID < list[j].rule.ID })
	return list
}

func (c *change) createURR(group *ie.IE) *pfcp.Reject {
	urr, reject := pfcp.CreateURR(group)
	if reject != nil {
		return reject
	}
	c.updated[urr.ID] = true
	return urrs.create(c.spec.URRs, urr.ID, urr)
}

func (c *change) updateURR(group *ie.IE) *pfcp.Reject {
	return urrs.update(c.spec.URRs, group, func(before pfcp.URR) (pfcp.URR, *pfcp.Reject) {
		c.updated[before.ID] = true
		return before.Update(group)
	})
}

func (c *change) removeURR(group *ie.IE) *pfcp.Reject {
	id, reject := urrs.remove(c.spec.URRs, group)
	if reject != nil {
		return reject
	}
	if u := c.record.usage[id]; u != nil {
		c.removed[id] = u
	}
	c.withoutRule(id, func(pdr *pfcp.PDR) *[]uint32 { return &pdr.URRs })
	return nil
}

func (c *change) queryURR(group *ie.IE) *pfcp.Reject {
	id, _, reject := urrs.find(c.spec.URRs, group)
	if !c.server.config.Ignore.URR {
		c.queries = append(c.queries, id)
	}
	return reject
}

func (c *change) queryAll() {
	if c.server.config.Ignore.URR {
		return
	}
	c.queries = c.queries[:0]
	for id := range c.spec.URRs {
		c.queries = append(c.queries, id)
	}
	sort.Slice(c.queries, func(i, j int) bool { return c.queries[i] < c.queries[j] })
}

// settleUsage brings the reporting side in line with the rules just installed, and adds the reports that the answer
// owes: of rules removed, and of those asked for.
func (c *change) settleUsage() {
	r := c.record
	for id, u := range c.removed {
		u.stopTimer()
		delete(r.usage, id)
		c.created = append(c.created, u.report(ie.UsageReportWithinSessionModificationResponse, triggerTermination))
	}
	for id := range c.updated {
		c.server.startUsage(r, r.spec.URRs[id], r.objects.Usages[id])
	}
	for _, id := range c.queries {
		c.created = append(c.created, r.usage[id].report(ie.UsageReportWithinSessionModificationResponse, triggerImmediate))
	}
}

// startUsage sets up or changes the reporting of a URR. A quota that is given anew counts from now.
func (s *Server) startUsage(r *record, rule pfcp.URR, counter *session.Usage) {
	u := r.usage[rule.ID]
	if u == nil {
		// The counter may be that of a rule of the same ID which this request has removed.
		u = &usage{counter: counter, base: counter.Read(), since: time.Now()}
		r.usage[rule.ID] = u
	}
	if rule.Quota != u.rule.Quota {
		u.granted = counter.Read()
	}
	u.rule = rule
	counter.Limit(rule, u.base, u.granted)
	u.stopTimer()
	if rule.OnPeriod && rule.Period > 0 {
		s.reportPeriodically(r, u)
	}
}

func (s *Server) reportPeriodically(r *record, u *usage) {
	var timer *time.Timer
	timer = time.AfterFunc(u.rule.Period, func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		if u.timer == timer { // neither stopped nor replaced meanwhile
			s.reportUsage(r, u, triggerPeriodic)
			s.reportPeriodically(r, u)
		}
	})
	u.timer = timer
}
