package traffic

import (
	"testing"

	"golang.org/x/sys/unix"
)

func TestBindThreadRefusesWhatIsNotThere(t *testing.T) {
	result := make(chan error)
	go func() { result <- BindThread(1023) }()
	if err := <-result; err == nil {
		t.Error("bound to CPU 1023")
	}
}

// The runtime's own signals may end a sleep early.
func TestSleepUntil(t *testing.T) {
	wakes := 0
	for due := Monotonic() + 10_000_000; Monotonic() < due; wakes++ {
		sleepUntil(due)
	}
	if wakes > 100 {
		t.Errorf("woke %d times in 10 ms", wakes)
	}
	start := Monotonic()
	sleepUntil(neverNs)
	if slept := Monotonic() - start; slept > 5_000_000_000 {
		t.Errorf("woke after %d ns", slept)
	}
}

func TestMonotonicIsTheKernelsClock(t *testing.T) {
	for range 100 {
		before := clock(unix.CLOCK_MONOTONIC)
		now := Monotonic()
		after := clock(unix.CLOCK_MONOTONIC)
		// The anchor was read within a few hundred ns, on a busy machine within a few us.
		if now < before-20_000 || now > after+20_000 {
			t.Fatalf("%d is not between %d and %d", now, before, after)
		}
	}
}
