package pfcp

import "github.com/wmnsk/go-pfcp/ie"

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

// Update returns the rule with what a Create QER or Update QER element says (table 7.5.4.5-1). Maximum and guaranteed
// bit rates are accepted and not enforced.
func (q QER) Update(group *ie.IE) (QER, *Reject) {
	for _, e := range children(group) {
		var value uint64
		var reject *Reject
		switch e.Type {
		case ie.GateStatus:
			value, reject = uintOf(e, 1)
			q.UplinkClosed, q.DownlinkClosed = value>>2&3 != 0, value&3 != 0
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
