package traffic

import (
	"container/heap"
	"math"
	"math/rand/v2"
	"net/netip"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"slicepilot/userplane/internal/histogram"
)

// lateNs is from when on a packet counts as late: what an interactive application would notice is more, what a pacing
// timer needs is a tenth.
const lateNs = int64(time.Millisecond)

// neverNs is a moment that does not come.
const neverNs = math.MaxInt64

// SenderOptions is how to send.
type SenderOptions struct {
	IPID IPID
	// MaxLag bounds how much is sent at once after the thread could not run: what is later than that is left out, and
	// counted as skipped.
	MaxLag time.Duration
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
	lateness histogram.Histogram
	failure  error // the first one
	dueNs    int64
	size     int
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
func (q queue) Swap(i, j int)      { q[i], q[j] = q[j], q[i] }

// Push and Pop are part of heap.Interface; flows neither come nor go.
func (q *queue) Push(any) {}

// Pop removes nothing.
func (q *queue) Pop() any { return nil }

// Sender sends a plan's flows from one thread.
type Sender struct {
	options    SenderOptions
	flows      []*flow // in the order of the plan
	queue      queue
	batches    []*batch
	responders []*responder
	startNs    int64
	endNs      int64
	durationNs int64

	bell    doorbell
	stopped atomic.Bool
}

// NewSender opens the sockets of a normalized plan.
func NewSender(plan *Plan, options SenderOptions) (*Sender, error) {
	s := &Sender{options: options, durationNs: neverNs}
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
	}
	return s, nil
}

// Close ends the reading of what UPFs send, and closes the sockets. Not before Run has returned.
func (s *Sender) Close() {
	for i, b := range s.batches {
		_ = unix.Shutdown(b.fd, unix.SHUT_RDWR)
		<-s.responders[i].done
		unix.Close(b.fd)
	}
	s.batches, s.responders = nil, nil
}

// Run sends until the plan is over or Stop. The calling goroutine should be bound to a thread (BindThread).
func (s *Sender) Run() Report {
	s.begin()
	for !s.stopped.Load() {
		now := Monotonic()
		first := s.queue[0]
		if first.dueNs <= now && first.dueNs < s.endNs {
			s.emit(now)
			continue
		}
		s.flushAll()
		if now >= s.endNs || first.dueNs == neverNs {
			break
		}
		s.bell.wait(min(first.dueNs, s.endNs))
	}
	s.flushAll()
	return s.report(min(Monotonic(), s.endNs))
}

func (s *Sender) begin() {
	s.startNs = Monotonic()
	s.endNs = neverNs
	if s.durationNs != neverNs {
		s.endNs = s.startNs + s.durationNs
	}
	s.queue = append(queue(nil), s.flows...)
	for _, f := range s.queue {
		s.schedule(f)
	}
	heap.Init(&s.queue)
}

// schedule takes a flow's next packet from its source.
func (s *Sender) schedule(f *flow) {
	next := f.source.next()
	f.dueNs, f.size = neverNs, next.size
	if due := next.due * 1e9; due < float64(neverNs-s.startNs) {
		f.dueNs = s.startNs + int64(due)
	}
}

// emit sends the first packet in the queue, which is due, or leaves it out if that was too long ago.
func (s *Sender) emit(now int64) {
	f := s.queue[0]
	lag := now - f.dueNs
	if lag > s.options.MaxLag.Nanoseconds() {
		f.counters.Skipped++
	} else {
		f.lateness.Add(lag)
		if lag >= lateNs {
			f.counters.Late++
		}
		if f.batch.add(f, f.size, now) {
			f.batch.flush()
		}
	}
	s.schedule(f)
	heap.Fix(&s.queue, 0)
}

func (s *Sender) flushAll() {
	for _, b := range s.batches {
		if b.n > 0 {
			b.flush()
		}
	}
}

// Stop ends Run.
func (s *Sender) Stop() {
	s.stopped.Store(true)
	s.bell.ring()
}
