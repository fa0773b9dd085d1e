package traffic

import (
	"fmt"
	"runtime"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// BindThread ties the calling goroutine to a thread of its own, on one CPU (any below 0), with timers that fire when they
// are due instead of up to 50 us later. The thread ends with the goroutine.
func BindThread(cpu int) error {
	runtime.LockOSThread()
	if err := unix.Prctl(unix.PR_SET_TIMERSLACK, 1, 0, 0, 0); err != nil {
		return fmt.Errorf("timer slack: %w", err)
	}
	if cpu >= 0 {
		var set unix.CPUSet
		set.Set(cpu)
		if err := unix.SchedSetaffinity(0, &set); err != nil {
			return fmt.Errorf("CPU %d: %w", cpu, err)
		}
	}
	return nil
}

// longestSleep is after how long a sleeper looks whether it is to go on.
const longestSleep = 20 * time.Millisecond

// sleepUntil sleeps until the moment, but for longestSleep at most. The timeout is absolute, so that it does not drift;
// the Go scheduler is not told of the system call: two thirds of a sender's context switches came from that.
func sleepUntil(untilNs int64) {
	until := unix.NsecToTimespec(min(untilNs, Monotonic()+longestSleep.Nanoseconds()))
	_, _, _ = unix.RawSyscall6(unix.SYS_CLOCK_NANOSLEEP, unix.CLOCK_MONOTONIC, unix.TIMER_ABSTIME,
		uintptr(unsafe.Pointer(&until)), 0, 0, 0)
}

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
