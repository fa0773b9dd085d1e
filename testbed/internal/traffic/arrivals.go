package traffic

import "slicepilot/userplane/internal/histogram"

// windowSize is how many sequence numbers behind the newest one a packet can come and be distinguished from a duplicate: at
// 100,000 packets/s 40 ms. Later ones count as late losses that turned up, without that check.
const windowSize = 4096

// Arrivals is what has come of one flow.
type Arrivals struct {
	Packets    uint64
	Bytes      uint64 // inner IP packets
	Reordered  uint64 // came after one with a higher sequence number
	Duplicates uint64 // came twice or more; not among Packets
	FirstNs    int64  // when the first and the last packet came, in CLOCK_MONOTONIC
	LastNs     int64
	expected   uint64 // sequence numbers from 0 to the highest, of all runs
	run        uint16
	next       uint64 // the sequence number after the highest of this run
	started    bool
	seen       [windowSize / 64]uint64 // one bit for each of the last windowSize numbers
	delay      histogram.Histogram     // ns
}

// Lost is how many packets have not come: those between a run's first and the highest that came, of all runs. What was
// lost at the very end of a run cannot be known here; the sender's count tells. It is negative where packets came so
// late that they could not be distinguished from duplicates, and were.
func (a *Arrivals) Lost() int64 { return int64(a.expected) - int64(a.Packets) }

// add takes note of a packet.
func (a *Arrivals) add(m Marker, innerBytes int, atNs int64) {
	if !a.started || m.Run != a.run {
		// The sender began anew, at 0.
		a.started, a.run, a.next = true, m.Run, 0
		clear(a.seen[:])
	}
	if !a.note(m.Sequence) {
		a.Duplicates++
		return
	}
	if a.Packets == 0 {
		a.FirstNs = atNs
	}
	a.LastNs = atNs
	a.Packets++
	a.Bytes += uint64(innerBytes)
	a.delay.Add(atNs - m.SentNs)
}

// note remembers a sequence number and reports whether it is new.
func (a *Arrivals) note(sequence uint64) bool {
	if sequence >= a.next {
		a.skipTo(sequence)
		a.mark(sequence)
		return true
	}
	a.Reordered++
	if a.next-sequence > windowSize {
		return true
	}
	if a.marked(sequence) {
		a.Reordered--
		return false
	}
	a.mark(sequence)
	return true
}

// skipTo moves the window on so that it ends with sequence, which is not marked yet.
func (a *Arrivals) skipTo(sequence uint64) {
	a.expected += sequence + 1 - a.next
	if sequence-a.next >= windowSize {
		clear(a.seen[:])
	} else {
		for s := a.next; s <= sequence; s++ {
			a.seen[s/64%uint64(len(a.seen))] &^= 1 << (s % 64)
		}
	}
	a.next = sequence + 1
}

func (a *Arrivals) mark(s uint64)        { a.seen[s/64%uint64(len(a.seen))] |= 1 << (s % 64) }
func (a *Arrivals) marked(s uint64) bool { return a.seen[s/64%uint64(len(a.seen))]&(1<<(s%64)) != 0 }
