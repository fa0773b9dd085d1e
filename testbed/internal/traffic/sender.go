// Package traffic makes and measures a testbed's user traffic: GTP-U from the radio side of N3 (Sender), and what of it
// arrives in the data network (Sink).
//
// A rate counts the octets of inner IP packets, header included: what a UE sends, and what a slice is sold as. The
// tunnel's 36 or 44 octets (IPv4, UDP, GTP-U without and with PDU Session Container) come on top.
//
// Every inner packet is UDP and starts its payload with a Marker, by which the sink tells flows apart, finds what was
// lost or reordered, and how long it took.
package traffic

import (
	"container/heap"
	"math"
	"math/rand/v2"
	"net/netip"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
)

// lateNs is from when on a packet counts as late: what an interactive application would notice is more, what a pacing
// timer needs is a tenth.
const lateNs = int64(time.Millisecond)

// neverNs is a moment that does not come.
const neverNs = math.MaxInt64

// flow is a flow at work.
type flow struct {
	spec     *FlowSpec
	source   source
	template *template
	batch    *batch
	counters FlowReport
	lateness Histogram
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
	maxLag     time.Duration
	flows      []*flow // in the order of the plan
	queue      queue
	batches    []*batch
	responders []*responder
	startNs    int64
	endNs      int64
	durationNs int64
	stopped    atomic.Bool
}

// NewSender opens the sockets of a normalized plan. maxLag bounds how much is sent at once after the thread could not run:
// what is later than that is left out, and counted as skipped.
func NewSender(plan *Plan, maxLag time.Duration) (*Sender, error) {
	s := &Sender{maxLag: maxLag, durationNs: neverNs}
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
			template: newTemplate(path, *spec.ID, run),
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
		b.file.Close()
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
		sleepUntil(min(first.dueNs, s.endNs))
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
	if lag > s.maxLag.Nanoseconds() {
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
func (s *Sender) Stop() { s.stopped.Store(true) }

// FlowReport is what a flow has sent in all.
type FlowReport struct {
	Flow        uint32  `json:"flow"`
	Name        string  `json:"name,omitempty"`
	Kind        Kind    `json:"kind"`
	TEID        uint32  `json:"teid"`
	Packets     uint64  `json:"packets"` // taken by the kernel
	Bytes       uint64  `json:"bytes"`   // of their inner IP packets
	ActiveS     float64 `json:"active_s"`
	OfferedMbps float64 `json:"offered_mbps"`
	SendErrors  uint64  `json:"send_errors"` // refused by the kernel
	FirstError  string  `json:"first_error,omitempty"`
	Late        uint64  `json:"late_packets"`    // of the packets, those sent 1 ms or more after they were due
	Skipped     uint64  `json:"skipped_packets"` // never sent, because too late
	LatenessP50 float64 `json:"lateness_p50_us"`
	LatenessP99 float64 `json:"lateness_p99_us"`
	LatenessMax float64 `json:"lateness_max_us"`
}

// PeerReport is what a UPF has sent back.
type PeerReport struct {
	UPF              string   `json:"upf"`
	DownlinkPackets  uint64   `json:"downlink_packets"`
	DownlinkBytes    uint64   `json:"downlink_bytes"`
	ErrorIndications uint64   `json:"error_indications"`
	UnknownTEIDs     []uint32 `json:"unknown_teids,omitempty"`
}

// Report is what was sent in all, from StartNs (CLOCK_MONOTONIC) for ElapsedS.
type Report struct {
	StartNs  int64        `json:"start_ns"`
	ElapsedS float64      `json:"elapsed_s"`
	Flows    []FlowReport `json:"flows"`
	Peers    []PeerReport `json:"peers"`
}

func (s *Sender) report(nowNs int64) Report {
	elapsed := float64(nowNs-s.startNs) / 1e9
	r := Report{StartNs: s.startNs, ElapsedS: elapsed}
	for _, f := range s.flows {
		r.Flows = append(r.Flows, f.report(elapsed))
	}
	for _, p := range s.responders {
		r.Peers = append(r.Peers, p.report())
	}
	return r
}

func (f *flow) report(elapsedS float64) FlowReport {
	active := max(min(elapsedS, *f.spec.EndS)-f.spec.StartS, 0)
	r := f.counters
	r.Flow, r.Name, r.Kind, r.TEID, r.ActiveS = *f.spec.ID, f.spec.Name, f.spec.Kind, f.spec.TEID, active
	r.LatenessP50, r.LatenessP99 = f.lateness.Quantile(0.5)/1e3, f.lateness.Quantile(0.99)/1e3
	r.LatenessMax = float64(f.lateness.Max()) / 1e3
	if active > 0 {
		r.OfferedMbps = 8e-6 * float64(r.Bytes) / active
	}
	if f.failure != nil {
		r.FirstError = f.failure.Error()
	}
	return r
}

func (r *responder) report() PeerReport {
	r.mu.Lock()
	defer r.mu.Unlock()
	return PeerReport{
		UPF: r.peer.String(), DownlinkPackets: r.downlinkPackets.Load(), DownlinkBytes: r.downlinkBytes.Load(),
		ErrorIndications: r.errors.Load(), UnknownTEIDs: append([]uint32(nil), r.unknownTEIDs...),
	}
}
