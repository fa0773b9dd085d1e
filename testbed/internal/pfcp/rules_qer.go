package pfcp

import "github.com/wmnsk/go-pfcp/ie"

const bitsPerKilobit = 1000

// CreateQER reads a Create QER element (TS 29.244 table 7.5.2.5-1).
func CreateQER(group *ie.IE) (QER, *Reject) {
	id, reject := QERID(group)
	if reject != nil {
		return QER{}, reject
	}
	if find(group, ie.GateStatus) == nil {
		return QER{}, Missing(ie.GateStatus, "Gate Status")
	}
	return QER{ID: id, QFI: -1}.Update(group)
}

// Update returns the rule with what a Create QER or Update QER element says (table 7.5.4.5-1). A guaranteed bit rate
// is taken note of by the radio, not here; a maximum bit rate of 0 is no limit: to stop a flow is the gate's job.
func (q QER) Update(group *ie.IE) (QER, *Reject) {
	for _, e := range children(group) {
		var value uint64
		var reject *Reject
		switch e.Type {
		case ie.GateStatus:
			value, reject = uintOf(e, 1)
			q.UplinkClosed, q.DownlinkClosed = value>>2&3 != 0, value&3 != 0
		case ie.MBR:
			if len(e.Payload) < 10 {
				reject = &Reject{Cause: ie.CauseInvalidLength, Offending: e.Type, Reason: "too short"}
				break
			}
			uplink, _ := e.MBRUL()
			downlink, _ := e.MBRDL()
			q.UplinkMBRBps, q.DownlinkMBRBps = uplink*bitsPerKilobit, downlink*bitsPerKilobit
		case ie.QFI:
			value, reject = uintOf(e, 1)
			q.QFI = int(value & 0x3f)
		}
		if reject != nil {
			return QER{}, reject
		}
	}
	return q, nil
}
