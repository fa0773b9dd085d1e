package traffic

import "container/heap"

// Change is what became of a change of rate.
type Change struct {
	// AtNs is when the change was made, FirstPacketNs when the first packet at the new rate was handed to the kernel
	// (0: there was none), both in CLOCK_MONOTONIC.
	AtNs          int64
	FirstPacketNs int64
	// Outcome says why there is no first packet; empty: there is.
	Outcome string
}

// Reasons why no packet follows a change.
const (
	changeSilent     = "no packet to come at this rate"
	changeSuperseded = "superseded by another change"
	changeEnded      = "the sending ended before"
)

type pendingChange struct {
	atNs int64
	done func(Change)
}

// settle reports a pending change of the flow, if there is one.
func (f *flow) settle(outcome string, firstPacketNs int64) {
	if f.change == nil {
		return
	}
	f.change.done(Change{AtNs: f.change.atNs, FirstPacketNs: firstPacketNs, Outcome: outcome})
	f.change = nil
}

// SetRate changes a flow's rate at once: a packet is due as soon as the flow may send. done is called by the sending
// thread when that has left, or when none will; it must not block.
func (s *Sender) SetRate(id uint32, mbps float64, done func(Change)) error {
	f := s.byID[id]
	if f == nil {
		return s.errUnknownFlow(id)
	}
	s.post(func(now int64) {
		f.settle(changeSuperseded, 0)
		f.change = &pendingChange{now, done}
		f.source.setRate(float64(now-s.startNs)/1e9, mbps)
		s.schedule(f)
		if f.dueNs == neverNs {
			f.settle(changeSilent, 0)
		}
		heap.Fix(&s.queue, f.index)
	})
	return nil
}
