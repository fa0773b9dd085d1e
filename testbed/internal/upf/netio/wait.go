package netio

import (
	"os"
	"runtime"
	"time"

	"golang.org/x/sys/unix"
)

// Waker wakes the one goroutine that waits with it for a descriptor (eventfd(2)).
type Waker struct {
	fd    int
	fds   [2]unix.PollFd // here and not on Wait's stack, where the system call would move them to the heap
	count [8]byte
}

// NewWaker makes a waker.
func NewWaker() (*Waker, error) {
	fd, err := unix.Eventfd(0, unix.EFD_NONBLOCK|unix.EFD_CLOEXEC)
	if err != nil {
		return nil, os.NewSyscallError("eventfd", err)
	}
	return &Waker{fd: fd}, nil
}

// Wake makes the present or the next Wait return. It may be called from any goroutine.
func (w *Waker) Wake() {
	one := [8]byte{1}
	// The one possible error, a counter at its limit, means that the waker is awake already.
	_, _ = unix.Write(w.fd, one[:])
}

// Close closes the waker's descriptor.
func (w *Waker) Close() error { return unix.Close(w.fd) }

// Wait waits until fd can be read or the waker is woken. The calling goroutine's processor is free meanwhile.
func (w *Waker) Wait(fd int) error {
	w.fds = [2]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}, {Fd: int32(w.fd), Events: unix.POLLIN}}
	for {
		_, err := unix.Poll(w.fds[:], -1)
		if err == unix.EINTR {
			continue
		}
		if err != nil {
			return os.NewSyscallError("poll", err)
		}
		if w.fds[1].Revents != 0 {
			_, _ = unix.Read(w.fd, w.count[:])
		}
		return nil
	}
}

// yieldEvery is how often a loop lets the Go scheduler run.
const yieldEvery = 8 * time.Millisecond

// Yielder keeps a loop of system calls on good terms with the Go scheduler.
//
// A goroutine that has not been rescheduled for 10 ms is taken for a hog: from then on the runtime's monitor takes the
// processor away in every system call that it happens to see, is woken by every one that returns, and so runs as often
// as the loop itself (runtime.retake, measured: as much CPU time as the loop needs at 4000 packets/s). Rescheduling
// before that time costs next to nothing - as long as the goroutine is not locked to its thread, which would turn it
// into two switches between threads.
type Yielder struct{ last time.Time }

// Yield is called once in every round of a loop.
func (y *Yielder) Yield() {
	if now := time.Now(); now.Sub(y.last) >= yieldEvery {
		y.last = now
		runtime.Gosched()
	}
}
