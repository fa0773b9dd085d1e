package session

import (
	"testing"
	"time"
)

// A meter offered more than its rate lets through the rate, plus one burst at the beginning.
func TestMeterEnforcesTheRate(t *testing.T) {
	for _, test := range []struct {
		name    string
		bps     uint64
		size    int
		offered float64 // times the rate
	}{
		{"45 Mbit/s", 45e6, 1400, 3}, {"small packets at 1 Gbit/s", 1e9, 64, 1.5}, {"full packets at 100 kbit/s", 100e3, 1400, 20},
		{"10 Gbit/s", 10e9, 9000, 2},
	} {
		const seconds = 10
		var meter Meter
		rate := RateOf(test.bps)
		gapNs := float64(test.size) * 8e9 / (float64(test.bps) * test.offered)
		passed := 0
		for at := 0.0; at < seconds*1e9; at += gapNs {
			if meter.Allow(rate, test.size, int64(at)) {
				passed += test.size
			}
		}
		burst := max(float64(test.bps)/8*burstTime.Seconds(), minBurstBytes)
		want := float64(test.bps)/8*seconds + burst
		if got := float64(passed); got < 0.999*want-float64(test.size) || got > 1.001*want+float64(test.size) {
			t.Errorf("%s: %.0f bytes passed, want %.0f", test.name, got, want)
		}
	}
}

func TestMeterLeavesConformingTrafficAlone(t *testing.T) {
	var meter Meter
	rate := RateOf(45e6)
	const frames, perFrame, size = 600, 66, 1400 // 60 frames/s of 45 Mbit/s, each sent at once
	for frame := range frames {
		at := int64(frame) * int64(time.Second) / 60
		for range perFrame {
			if !meter.Allow(rate, size, at) {
				t.Fatalf("a packet of frame %d was refused", frame)
			}
		}
	}
}

func TestNoRateIsNoLimit(t *testing.T) {
	if RateOf(0).Limited() || !RateOf(1).Limited() {
		t.Error("0 means no limit, everything else is one")
	}
}

func TestMeterStartsAgainAfterAPause(t *testing.T) {
	var meter Meter
	rate := RateOf(1e6)
	for meter.Allow(rate, 1400, 0) {
	}
	if meter.Allow(rate, 1400, int64(time.Millisecond)) {
		t.Error("an empty bucket let a packet through")
	}
	if !meter.Allow(rate, 1400, int64(time.Second)) {
		t.Error("after a second the bucket is full again")
	}
}
