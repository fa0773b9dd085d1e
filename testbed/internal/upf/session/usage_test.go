package session

import (
	"testing"

	"slicepilot/userplane/internal/pfcp"
)

func TestUsageThreshold(t *testing.T) {
	rule := pfcp.URR{ID: 1, OnVolume: true, Threshold: pfcp.Volume{Total: 1000, Downlink: 600}}
	u := NewUsage(1)
	u.Limit(rule, Counts{}, Counts{})
	for i, step := range []struct {
		uplink bool
		size   int
		want   UsageEvent
	}{
		{true, 500, UsageNone}, {false, 400, UsageNone}, {true, 100, UsageReport}, {true, 100, UsageNone}, {false, 300, UsageNone},
	} {
		if got := u.Count(step.uplink, step.size); got != step.want {
			t.Errorf("packet %d: event %d, want %d", i, got, step.want)
		}
	}
	if want := (Counts{UplinkBytes: 700, DownlinkBytes: 700, UplinkPackets: 3, DownlinkPackets: 2}); u.Read() != want {
		t.Errorf("counted %+v, want %+v", u.Read(), want)
	}
	base := u.Read()
	u.Limit(rule, base, Counts{}) // reported: thresholds count from here
	if u.Count(false, 599) != UsageNone || u.Count(false, 1) != UsageReport {
		t.Error("the downlink threshold is passed with its 600th octet after the report")
	}
	u.Rearm(UsageReport)
	if u.Count(true, 1) != UsageReport {
		t.Error("an event that was taken back comes again")
	}
}

func TestUsageQuota(t *testing.T) {
	u := NewUsage(1)
	u.Limit(pfcp.URR{ID: 1, Quota: pfcp.Volume{Uplink: 100}}, Counts{}, Counts{})
	if u.Count(true, 99) != UsageNone || u.Exhausted() || u.Count(true, 1) != UsageQuota || !u.Exhausted() {
		t.Error("the quota ends with its 100th octet")
	}
	u.Limit(pfcp.URR{ID: 1, Quota: pfcp.Volume{Uplink: 100}}, u.Read(), u.Read())
	if u.Exhausted() {
		t.Error("a quota granted anew counts from then")
	}
}
