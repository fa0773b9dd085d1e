package traffic

import (
	"container/heap"
	"fmt"
	"math"
	"math/rand/v2"
	"net/netip"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// lateNs is from when on a packet counts as late: what an interactive application would notice is more, what a pacing
// timer needs is a tenth.
const lateNs = int64(time.Millisecond)

// neverNs is a moment that does not come.
const neverNs = math.MaxInt64

// SenderOptions is how to send.
type SenderOptions struct {
	IPID IPID
	// Spin is how long before a packet is due the thread stops sleeping and watches the clock.
	Spin time.Duration
	// Coalesce is how long to sleep at least: packets that fall due meanwhile leave together, late by as much, and one
	// wake-up is paid for all of them.
	Coalesce time.Duration
	// MaxLag bounds how much is sent at once after the thread could not run: what is later than that is left out, and
	// counted as skipped.
	MaxLag time.Duration
	// Interval is the time between snapshots; 0: none.
	Interval time.Duration
	// Controlled keeps the sender going when all flows have ended: rates may be changed.
	Controlled bool
}

// Counters is what a flow has done since the start.
type Counters struct {
	Packets    uint64 // taken by the kernel
	Bytes      uint64 // of their inner IP packets
	Late       uint64 // of the packets, those sent 1 ms or more after they were due
	Skipped    uint64 // never sent, because too late
	SendErrors uint64 // refused by the kernel
}

// flow is a flow at work.
type flow struct {
	spec     *FlowSpec
	source   source
	template *template
	batch    *batch
	counters Counters
	lateness latenessHistogram
	failure  error // the first one
	dueNs    int64
	size     int
	index    int // in the queue
	change   *pendingChange
}

func (f *flow) sent(size int) {
	f.counters.Packets++
	f.counters.Bytes += uint64(size)
}

func (f *flow) noteError(err error) {
	if f.failure == nil {
		f.failure = err
	}
}

// queue orders flows by when their next packet is due.
type queue []*flow

func (q queue) Len() int           { return len(q) }
func (q queue) Less(i, j int) bool { return q[i].dueNs < q[j].dueNs }
func (q queue) Swap(i, j int) {
	q[i], q[j] = q[j], q[i]
	q[i].index, q[j].index = i, j
}

// Push and Pop are part of heap.Interface; flows neither come nor go.
func (q *queue) Push(any) {}

// Pop removes nothing.
func (q *queue) Pop() any { return nil }

// Sender sends a plan's flows from one thread.
type Sender struct {
	options    SenderOptions
	flows      []*flow // in the order of the plan
	byID       map[uint32]*flow
	queue      queue
	batches    []*batch
	responders []*responder
	snapshots  chan Snapshot
	startNs    int64
	endNs      int64
	durationNs int64
	snapshotNs int64 // when the next one is due

	bell     doorbell
	mu       sync.Mutex
	commands []func(nowNs int64)
	stopped  bool // by the sending thread only
}

// NewSender opens the sockets of a normalized plan.
func NewSender(plan *Plan, options SenderOptions) (*Sender, error) {
	s := &Sender{
		options: options, byID: map[uint32]*flow{}, snapshots: make(chan Snapshot, 4), durationNs: neverNs,
	}
	if plan.DurationS > 0 {
		s.durationNs = int64(plan.DurationS * 1e9)
	}
	type ends struct{ from, to netip.AddrPort }
	batches, datagramLen := map[ends]*batch{}, 0
	for i := range plan.Flows {
		datagramLen = max(datagramLen, plan.Flows[i].PacketBytes+maxPrefixLen)
	}
	run := uint16(rand.Uint32())
	for i := range plan.Flows {
		spec := &plan.Flows[i]
		path, err := spec.path()
		if err != nil {
			return nil, err
		}
		key := ends{path.from, path.to}
		if batches[key] == nil {
			if batches[key], err = openBatch(path.from, path.to, datagramLen); err != nil {
				s.Close()
				return nil, err
			}
			s.batches = append(s.batches, batches[key])
			s.responders = append(s.responders, startResponder(batches[key].fd, path.to))
		}
		f := &flow{
			spec: spec, source: newSource(spec, plan.Apps), batch: batches[key],
			template: newTemplate(path, *spec.ID, run, options.IPID),
		}
		s.flows = append(s.flows, f)
		s.byID[*spec.ID] = f
	}
	return s, nil
}

// Close ends the reading of what UPFs send, and closes the sockets. Not before Run has returned.
func (s *Sender) Close() {
	for i, b := range s.batches {
		_ = unix.Shutdown(b.fd, unix.SHUT_RDWR)
		s.responders[i].wait()
		unix.Close(b.fd)
	}
	s.batches, s.responders = nil, nil
}

// Run sends until the plan is over or Stop. The calling goroutine should be bound to a thread (BindThread).
func (s *Sender) Run() Report {
	s.begin()
	seen := uint32(0) // what was asked for before the start counts too
	for !s.stopped {
		if rings := s.bell.count(); rings != seen {
			seen = rings
			s.obey()
			continue
		}
		now := Monotonic()
		if now >= s.snapshotNs {
			s.takeSnapshot(now)
		}
		first := s.queue[0]
		if first.dueNs <= now && first.dueNs < s.endNs {
			s.emit(first, now)
			continue
		}
		s.flushAll()
		if now >= s.endNs || (first.dueNs == neverNs && !s.options.Controlled) {
			break
		}
		s.waitUntil(min(max(first.dueNs, now+s.options.Coalesce.Nanoseconds()), s.endNs, s.snapshotNs), seen)
	}
	s.flushAll()
	return s.end()
}

func (s *Sender) begin() {
	s.startNs = Monotonic()
	s.endNs, s.snapshotNs = neverNs, neverNs
	if s.durationNs != neverNs {
		s.endNs = s.startNs + s.durationNs
	}
	if s.options.Interval > 0 {
		s.snapshotNs = s.startNs + s.options.Interval.Nanoseconds()
	}
	s.queue = append(queue(nil), s.flows...)
	for i, f := range s.queue {
		f.index = i
		s.schedule(f)
	}
	heap.Init(&s.queue)
}

func (s *Sender) end() Report {
	now := min(Monotonic(), s.endNs)
	for _, f := range s.flows {
		f.settle(changeEnded, 0)
	}
	close(s.snapshots)
	return s.report(now)
}

// schedule takes a flow's next packet from its source.
func (s *Sender) schedule(f *flow) {
	next := f.source.next()
	f.dueNs, f.size = neverNs, next.size
	if due := next.due * 1e9; due < float64(neverNs-s.startNs) {
		f.dueNs = s.startNs + int64(due)
	}
}

// emit sends a packet that is due, or leaves it out if that was too long ago.
func (s *Sender) emit(f *flow, now int64) {
	lag := now - f.dueNs
	if lag > s.options.MaxLag.Nanoseconds() {
		f.counters.Skipped++
	} else {
		f.lateness.Add(lag)
		if lag >= lateNs {
			f.counters.Late++
		}
		full := f.batch.add(f, f.size, now)
		if full || f.change != nil {
			f.batch.flush()
			f.settle("", now)
		}
	}
	s.schedule(f)
	heap.Fix(&s.queue, f.index)
}

func (s *Sender) flushAll() {
	for _, b := range s.batches {
		if b.n > 0 {
			b.flush()
		}
	}
}

// waitUntil sleeps, and watches the clock for the last stretch.
func (s *Sender) waitUntil(untilNs int64, seen uint32) {
	s.bell.wait(seen, untilNs-s.options.Spin.Nanoseconds())
	for s.options.Spin > 0 && Monotonic() < untilNs && s.bell.count() == seen {
	}
}

// Snapshots are taken every interval; the channel is closed at the end. A reader that is slow misses some.
func (s *Sender) Snapshots() <-chan Snapshot { return s.snapshots }

func (s *Sender) takeSnapshot(now int64) {
	snapshot := Snapshot{ElapsedS: float64(now-s.startNs) / 1e9, Flows: make([]Counters, len(s.flows))}
	for i, f := range s.flows {
		snapshot.Flows[i] = f.counters
	}
	select {
	case s.snapshots <- snapshot:
	default:
	}
	for s.snapshotNs <= now {
		s.snapshotNs += s.options.Interval.Nanoseconds()
	}
}

// post has the sending thread do something.
func (s *Sender) post(command func(nowNs int64)) {
	s.mu.Lock()
	s.commands = append(s.commands, command)
	s.mu.Unlock()
	s.bell.ring()
}

func (s *Sender) obey() {
	s.mu.Lock()
	commands := s.commands
	s.commands = nil
	s.mu.Unlock()
	for _, command := range commands {
		command(Monotonic())
	}
}

// Stop ends Run.
func (s *Sender) Stop() { s.post(func(int64) { s.stopped = true }) }

// errUnknownFlow says which flows there are.
func (s *Sender) errUnknownFlow(id uint32) error {
	return fmt.Errorf("flow: %d; expected the id of one of the %d flows", id, len(s.flows))
}
