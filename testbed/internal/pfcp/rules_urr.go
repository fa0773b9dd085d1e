package pfcp

import (
	"time"

	"github.com/wmnsk/go-pfcp/ie"
)

// Flags of the Measurement Method (TS 29.244 clause 8.2.40) and of the Reporting Triggers' octets (clause 8.2.19).
const (
	methodDuration = 0x01
	methodVolume   = 0x02

	triggerPeriod = 0x01 // octet 5
	triggerVolume = 0x02
	triggerQuota  = 0x01 // octet 6
)

// CreateURR reads a Create URR element (table 7.5.2.4-1).
func CreateURR(group *ie.IE) (URR, *Reject) {
	id, reject := URRID(group)
	if reject != nil {
		return URR{}, reject
	}
	if find(group, ie.MeasurementMethod) == nil {
		return URR{}, Missing(ie.MeasurementMethod, "Measurement Method")
	}
	if find(group, ie.ReportingTriggers) == nil {
		return URR{}, Missing(ie.ReportingTriggers, "Reporting Triggers")
	}
	return URR{ID: id}.Update(group)
}

// Update returns the rule with what a Create URR or Update URR element says (table 7.5.4.4-1).
//
// Triggers beyond volume, quota and period are accepted and never fire: they need traffic detection or charging
// state that is not here, and a CP function asks for them as a matter of course.
func (u URR) Update(group *ie.IE) (URR, *Reject) {
	for _, e := range children(group) {
		var value uint64
		var reject *Reject
		switch e.Type {
		case ie.MeasurementMethod:
			value, reject = uintOf(e, 1)
			u.Duration, u.Volume = value&methodDuration != 0, value&methodVolume != 0
		case ie.ReportingTriggers:
			reject = u.triggers(e)
		case ie.VolumeThreshold:
			u.Threshold, reject = parseThreshold(e)
		case ie.VolumeQuota:
			u.Quota, reject = parseQuota(e)
		case ie.MeasurementPeriod:
			value, reject = uintOf(e, 4)
			u.Period = time.Duration(value) * time.Second
		}
		if reject != nil {
			return URR{}, reject
		}
	}
	return u, nil
}

func (u *URR) triggers(e *ie.IE) *Reject {
	first, reject := uintOf(e, 1)
	if reject != nil {
		return reject
	}
	u.OnPeriod, u.OnVolume = first&triggerPeriod != 0, first&triggerVolume != 0
	u.OnQuota = len(e.Payload) > 1 && e.Payload[1]&triggerQuota != 0
	return nil
}

func parseThreshold(e *ie.IE) (Volume, *Reject) {
	v, err := e.VolumeThreshold()
	if err != nil {
		return Volume{}, &Reject{Cause: ie.CauseInvalidLength, Offending: e.Type, Reason: err.Error()}
	}
	return Volume{Total: v.TotalVolume, Uplink: v.UplinkVolume, Downlink: v.DownlinkVolume}, nil
}

func parseQuota(e *ie.IE) (Volume, *Reject) {
	v, err := e.VolumeQuota()
	if err != nil {
		return Volume{}, &Reject{Cause: ie.CauseInvalidLength, Offending: e.Type, Reason: err.Error()}
	}
	return Volume{Total: v.TotalVolume, Uplink: v.UplinkVolume, Downlink: v.DownlinkVolume}, nil
}
