package traffic

import "sort"

// SinkSnapshot is all that has come until a moment.
type SinkSnapshot struct {
	atNs    int64
	flows   map[uint32]Arrivals
	drops   uint64
	foreign uint64
	refused uint64
}

// FlowArrivals is what has come of a flow. Delays go from the marker's time to the kernel's at the sink: they mean
// something where sender and sink run on one machine.
type FlowArrivals struct {
	Flow       uint32  `json:"flow"`
	Packets    uint64  `json:"packets"`
	Bytes      uint64  `json:"bytes"`
	Mbps       float64 `json:"mbps"`
	Lost       int64   `json:"lost"`
	Reordered  uint64  `json:"reordered"`
	Duplicates uint64  `json:"duplicates"`
	DelayP50us float64 `json:"delay_p50_us"`
	DelayP99us float64 `json:"delay_p99_us"`
	DelayMaxus float64 `json:"delay_max_us"`
}

// SinkReport is what has come of all flows, by their ids.
type SinkReport struct {
	Flows []FlowArrivals `json:"flows"`
	// SinkDrops is how many packets the sink's own sockets had no room for; the flows count them as lost.
	SinkDrops      uint64 `json:"sink_drops"`
	ForeignPackets uint64 `json:"foreign_packets"` // without a marker
	RefusedPackets uint64 `json:"refused_packets"` // of more flows than the sink keeps account of
}

// Snapshot copies all counters.
func (s *Sink) Snapshot() SinkSnapshot {
	s.mu.Lock()
	defer s.mu.Unlock()
	snapshot := SinkSnapshot{
		atNs: Monotonic(), flows: make(map[uint32]Arrivals, len(s.flows)), foreign: s.foreign, refused: s.refused,
	}
	for flow, arrivals := range s.flows {
		snapshot.flows[flow] = *arrivals
	}
	for _, socket := range s.sockets {
		snapshot.drops += uint64(socket.drops)
	}
	return snapshot
}

// Total is all that has come; a flow's rate is that between its first and its last packet.
func (now *SinkSnapshot) Total() SinkReport {
	report := now.Since(&SinkSnapshot{})
	for i := range report.Flows {
		row, arrivals := &report.Flows[i], now.flows[report.Flows[i].Flow]
		row.Mbps = mbps(row.Bytes, arrivals.LastNs-arrivals.FirstNs)
	}
	return report
}

// Since is what has come after an earlier snapshot; rates are over the time between the two.
func (now *SinkSnapshot) Since(before *SinkSnapshot) SinkReport {
	report := SinkReport{
		Flows:     make([]FlowArrivals, 0, len(now.flows)),
		SinkDrops: now.drops - before.drops, ForeignPackets: now.foreign - before.foreign,
		RefusedPackets: now.refused - before.refused,
	}
	for flow, arrivals := range now.flows {
		earlier := before.flows[flow]
		delay := arrivals.delay.Since(&earlier.delay)
		report.Flows = append(report.Flows, FlowArrivals{
			Flow:       flow,
			Packets:    arrivals.Packets - earlier.Packets,
			Bytes:      arrivals.Bytes - earlier.Bytes,
			Mbps:       mbps(arrivals.Bytes-earlier.Bytes, now.atNs-before.atNs),
			Lost:       arrivals.Lost() - earlier.Lost(),
			Reordered:  arrivals.Reordered - earlier.Reordered,
			Duplicates: arrivals.Duplicates - earlier.Duplicates,
			DelayP50us: delay.Quantile(0.5) / 1e3,
			DelayP99us: delay.Quantile(0.99) / 1e3,
			DelayMaxus: float64(delay.Max()) / 1e3,
		})
	}
	sort.Slice(report.Flows, func(i, j int) bool { return report.Flows[i].Flow < report.Flows[j].Flow })
	return report
}

func mbps(bytes uint64, ns int64) float64 {
	if ns <= 0 {
		return 0
	}
	return 8e3 * float64(bytes) / float64(ns)
}
