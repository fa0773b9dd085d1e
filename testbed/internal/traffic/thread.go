package traffic

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"strconv"
	"sync/atomic"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Scheduling is how a thread that keeps time is to run.
type Scheduling struct {
	CPU        int // the one it runs on; below 0: any
	RTPriority int // SCHED_FIFO priority 1..99 of the whole process; 0: the ordinary class
}

// BindThread ties the calling goroutine to a thread of its own with this scheduling and with timers that fire when they
// are due instead of up to 50 us later. The thread ends with the goroutine.
func BindThread(s Scheduling) error {
	runtime.LockOSThread()
	if err := unix.Prctl(unix.PR_SET_TIMERSLACK, 1, 0, 0, 0); err != nil {
		return fmt.Errorf("timer slack: %w", err)
	}
	if s.CPU >= 0 {
		var set unix.CPUSet
		set.Set(s.CPU)
		if err := unix.SchedSetaffinity(0, &set); err != nil {
			return fmt.Errorf("CPU %d: %w", s.CPU, err)
		}
	}
	if s.RTPriority > 0 {
		if err := makeRealTime(s.RTPriority); err != nil {
			return fmt.Errorf("SCHED_FIFO priority %d (needs CAP_SYS_NICE, and real-time runtime in its cgroup): %w",
				s.RTPriority, err)
		}
	}
	return nil
}

// makeRealTime puts all threads of the process into SCHED_FIFO, and with them those they will start. The time-keeping
// thread alone would not do: the Go runtime now and then has another thread hand it the right to run on, and that one
// would have to wait for whatever keeps the CPUs busy.
func makeRealTime(priority int) error {
	attr := unix.SchedAttr{Size: unix.SizeofSchedAttr, Policy: unix.SCHED_FIFO, Priority: uint32(priority)}
	done := map[string]bool{}
	for before := -1; before < len(done); {
		before = len(done)
		threads, err := os.ReadDir("/proc/self/task")
		if err != nil {
			return err
		}
		for _, thread := range threads {
			id, err := strconv.Atoi(thread.Name())
			if err != nil || done[thread.Name()] {
				continue
			}
			if err := unix.SchedSetAttr(id, &attr, 0); err != nil && !errors.Is(err, unix.ESRCH) {
				return err
			}
			done[thread.Name()] = true
		}
	}
	return nil
}

// doorbell lets one thread sleep until a moment, and not any more once another has rung: futex(2) with an absolute
// CLOCK_MONOTONIC timeout, which neither drifts nor needs a descriptor.
type doorbell struct{ rings uint32 }

const (
	futexWait    = 9 // FUTEX_WAIT_BITSET: the one whose timeout is absolute
	futexWake    = 1
	futexPrivate = 128
	futexAnyBit  = 0xffffffff
)

// ring wakes the sleeper.
func (d *doorbell) ring() {
	atomic.AddUint32(&d.rings, 1)
	_, _, _ = unix.Syscall6(unix.SYS_FUTEX, uintptr(unsafe.Pointer(&d.rings)), futexWake|futexPrivate, 1, 0, 0, 0)
}

// longWait is from when on a wait is announced to the Go scheduler, which may then use the thread's slot. For shorter
// ones that costs more than the wait: two thirds of a sender's context switches were of that kind.
const longWait = 20 * time.Millisecond

// wait sleeps until the moment, or until the doorbell was rung; it may also wake early.
func (d *doorbell) wait(untilNs int64) {
	until := unix.NsecToTimespec(max(untilNs, 0))
	if untilNs-Monotonic() > longWait.Nanoseconds() {
		_, _, _ = unix.Syscall6(unix.SYS_FUTEX, uintptr(unsafe.Pointer(&d.rings)), futexWait|futexPrivate,
			0, uintptr(unsafe.Pointer(&until)), 0, futexAnyBit)
		return
	}
	_, _, _ = unix.RawSyscall6(unix.SYS_FUTEX, uintptr(unsafe.Pointer(&d.rings)), futexWait|futexPrivate,
		0, uintptr(unsafe.Pointer(&until)), 0, futexAnyBit)
}
