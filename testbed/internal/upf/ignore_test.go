package upf

import (
	"testing"

	"github.com/wmnsk/go-pfcp/ie"

	"slicepilot/userplane/internal/upf/session"
)

func TestWhatIsIgnoredIsAcceptedAndHasNoEffect(t *testing.T) {
	b := newBench(t, func(c *Config) { c.Ignore = session.Ignore{Gate: true, MBR: true, URR: true} })
	b.associate()
	b.establish(b.toGNB(), ie.NewCreateURR(ie.NewURRID(1), ie.NewMeasurementMethod(0, 1, 0), ie.NewReportingTriggers(0, 0, 0)))
	b.modify(ie.NewUpdateQER(ie.NewQERID(1), ie.NewGateStatus(ie.GateStatusClosed, ie.GateStatusClosed), ie.NewMBR(1, 1)))
	for number := range uint32(30) { // 42 kB, where 12 kB may pass at once
		b.fromGNB(gpdu(teid, uplinkPacket(1400, number)))
		b.expectAtNetwork(uplinkPacket(1400, number))
		b.fromNetwork(downlinkPacket(1400, number))
		b.expectAtGNB(downlinkPacket(1400, number))
	}
	for _, query := range []*ie.IE{ie.NewQueryURR(ie.NewURRID(1)), ie.NewPFCPSMReqFlags(0x04)} { // QAURR: all of them
		if answer := b.modify(query); len(answer.UsageReport) != 0 {
			t.Errorf("%d usage reports", len(answer.UsageReport))
		}
	}
}

func TestOneRuleIsIgnoredAndTheOthersHold(t *testing.T) {
	b := newBench(t, func(c *Config) { c.Ignore = session.Ignore{MBR: true} })
	b.associate()
	b.establish(b.toGNB())
	b.modify(ie.NewUpdateQER(ie.NewQERID(1), ie.NewGateStatus(ie.GateStatusClosed, ie.GateStatusOpen)))
	b.fromGNB(gpdu(teid, uplinkPacket(100, 1)))
	b.expectDropped("uplink", "gate", 1)
}
