package traffic

import (
	"time"

	"golang.org/x/sys/unix"
)

// The runtime reads CLOCK_MONOTONIC without a system call, but only tells differences; the clock itself is a system
// call away. epoch and epochNs are one moment in both.
var epoch, epochNs = anchor()

// Monotonic is CLOCK_MONOTONIC in ns, which on one machine is the same for all processes and namespaces.
func Monotonic() int64 { return epochNs + time.Since(epoch).Nanoseconds() }

// anchor reads both clocks as close together as it gets in a few attempts.
func anchor() (time.Time, int64) {
	var best time.Time
	var bestNs int64
	shortest := time.Duration(1<<63 - 1)
	for range 16 {
		before := time.Now()
		ns := clock(unix.CLOCK_MONOTONIC)
		if took := time.Since(before); took < shortest {
			shortest, best, bestNs = took, before.Add(took/2), ns
		}
	}
	return best, bestNs
}

func clock(id int32) int64 {
	var t unix.Timespec
	if err := unix.ClockGettime(id, &t); err != nil {
		panic(err) // no Linux is without these clocks
	}
	return t.Nano()
}
