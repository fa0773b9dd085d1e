package traffic

import (
	"errors"
	"os"
	"strconv"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

func threads(t *testing.T) []int {
	t.Helper()
	entries, err := os.ReadDir("/proc/self/task")
	if err != nil {
		t.Fatal(err)
	}
	var ids []int
	for _, entry := range entries {
		id, _ := strconv.Atoi(entry.Name())
		ids = append(ids, id)
	}
	return ids
}

func TestAllThreadsBecomeRealTime(t *testing.T) {
	result := make(chan error)
	go func() { result <- BindThread(Scheduling{CPU: -1, RTPriority: 1}) }()
	err := <-result
	if errors.Is(err, unix.EPERM) {
		t.Skip("no right to SCHED_FIFO")
	}
	if err != nil {
		t.Fatal(err)
	}
	for _, id := range threads(t) {
		attr, err := unix.SchedGetAttr(id, 0)
		if err == nil && (attr.Policy != unix.SCHED_FIFO || attr.Priority != 1) {
			t.Errorf("thread %d has policy %d, priority %d", id, attr.Policy, attr.Priority)
		}
	}
	for _, id := range threads(t) {
		_ = unix.SchedSetAttr(id, &unix.SchedAttr{Size: unix.SizeofSchedAttr, Policy: unix.SCHED_NORMAL}, 0)
	}
}

func TestBindThreadRefusesWhatIsNotThere(t *testing.T) {
	result := make(chan error)
	go func() { result <- BindThread(Scheduling{CPU: 1023}) }()
	if err := <-result; err == nil {
		t.Error("bound to CPU 1023")
	}
}

func TestDoorbell(t *testing.T) {
	var bell doorbell
	start := Monotonic()
	bell.wait(start + 30_000_000)
	if slept := Monotonic() - start; slept < 29_000_000 {
		t.Errorf("slept %d ns of 30 ms", slept)
	}
	go func() {
		time.Sleep(20 * time.Millisecond)
		bell.ring()
	}()
	start = Monotonic()
	bell.wait(neverNs)
	if slept := Monotonic() - start; slept > 5_000_000_000 {
		t.Errorf("woke after %d ns", slept)
	}
	bell.wait(neverNs) // rung since: at once
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
