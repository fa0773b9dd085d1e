package session

import (
	"sync/atomic"
	"time"
)

// Meter enforces a maximum bit rate: a token bucket, kept as the one instant until which the packets let through so
// far have used the rate up (the generic cell rate algorithm, ITU-T I.371 annex A). One word of state makes it exact
// with several threads and without a lock, and it survives a change of rules.
type Meter struct{ usedUntil atomic.Int64 } // in ticks since the first packet's clock

const (
	// ticksPerNs refines the instant, so that a small packet at a high rate is not rounded to nothing.
	ticksPerNs = 64
	// burstTime is the bucket's depth in time: what a flow may send at once after a pause. Long enough for a video
	// frame at 60 frames/s, sent at line rate.
	burstTime = 50 * time.Millisecond
	// minBurstBytes lets a few full-size packets through at the lowest rates.
	minBurstBytes = 8 * 1500
)

// Rate is a maximum bit rate prepared for Meter.Allow; the zero value sets no limit.
type Rate struct {
	ticksPerByte float64
	burst        int64 // ticks
}

// RateOf prepares a rate in bit/s; 0 is no limit.
func RateOf(bps uint64) Rate {
	if bps == 0 {
		return Rate{}
	}
	r := Rate{ticksPerByte: 8e9 * ticksPerNs / float64(bps)}
	r.burst = max(int64(burstTime)*ticksPerNs, int64(minBurstBytes*r.ticksPerByte))
	return r
}

// Limited says whether there is a limit.
func (r Rate) Limited() bool { return r.ticksPerByte != 0 }

// Allow says whether a packet of size bytes may pass at nowNs (a monotonic clock), and counts it if so.
func (m *Meter) Allow(r Rate, size int, nowNs int64) bool {
	now := nowNs * ticksPerNs
	cost := int64(float64(size) * r.ticksPerByte)
	for {
		used := m.usedUntil.Load()
		next := max(used, now) + cost
		if next-now > r.burst {
			return false
		}
		if m.usedUntil.CompareAndSwap(used, next) {
			return true
		}
	}
}
