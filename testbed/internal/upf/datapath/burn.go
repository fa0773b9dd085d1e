package datapath

import (
	"runtime"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Burner spends CPU time on every packet: a stand-in for what a production UPF does beside forwarding (deep packet
// inspection, charging, ciphering).
//
// The time is CPU time of the calling thread: when that is preempted or throttled, the work is not shortened, it waits
// like any work would. Arithmetic fills the time; the thread's clock is read only to approach its end, because reading
// it is a system call.
type Burner struct {
	perPacketNs int64
	loopsPerNs  float64
	clockNs     int64 // what reading the clock costs
	sink        uint64
}

// NewBurner prepares perPacket of work; it calibrates the arithmetic, which takes about a millisecond.
func NewBurner(perPacket time.Duration) *Burner {
	b := &Burner{perPacketNs: int64(perPacket)}
	if perPacket <= 0 {
		return b
	}
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	const loops, rounds = 50_000, 8
	for range rounds { // the fastest round is the one that was least disturbed
		start := threadCPUNs()
		b.spin(loops)
		if ns := threadCPUNs() - start; ns > 0 {
			b.loopsPerNs = max(b.loopsPerNs, loops/float64(ns))
		}
	}
	const readings = 64
	start := threadCPUNs()
	for range readings {
		threadCPUNs()
	}
	b.clockNs = (threadCPUNs() - start) / readings
	return b
}

// Burn does one packet's work.
func (b *Burner) Burn() {
	if b.perPacketNs <= 0 {
		return
	}
	runtime.LockOSThread() // the clock is the thread's
	defer runtime.UnlockOSThread()
	end := threadCPUNs() + b.perPacketNs
	for {
		left := end - threadCPUNs() - b.clockNs
		if left <= 0 {
			return
		}
		// Half of what is left: beside a busy sibling thread, arithmetic takes up to twice the time that it took in
		// the calibration.
		b.spin(int(float64(left)*b.loopsPerNs*0.5) + 1)
	}
}

// spin is arithmetic with a result that depends on every step, so that it can be neither skipped nor reordered.
func (b *Burner) spin(loops int) {
	x := b.sink
	for range loops {
		x = x*6364136223846793005 + 1442695040888963407 // the LCG of Knuth's MMIX
	}
	b.sink = x
}

// threadCPUNs reads the calling thread's CPU time.
func threadCPUNs() int64 {
	var t unix.Timespec
	_, _, _ = unix.RawSyscall(unix.SYS_CLOCK_GETTIME, unix.CLOCK_THREAD_CPUTIME_ID, uintptr(unsafe.Pointer(&t)), 0)
	return t.Nano()
}
