package traffic

// FlowReport is what a flow has sent in all.
type FlowReport struct {
	Flow        uint32  `json:"flow"`
	Name        string  `json:"name,omitempty"`
	Kind        Kind    `json:"kind"`
	TEID        uint32  `json:"teid"`
	Packets     uint64  `json:"packets"`
	Bytes       uint64  `json:"bytes"`
	ActiveS     float64 `json:"active_s"`
	OfferedMbps float64 `json:"offered_mbps"`
	SendErrors  uint64  `json:"send_errors"`
	FirstError  string  `json:"first_error,omitempty"`
	Late        uint64  `json:"late_packets"`
	Skipped     uint64  `json:"skipped_packets"`
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
	r := FlowReport{
		Flow: *f.spec.ID, Name: f.spec.Name, Kind: f.spec.Kind, TEID: f.spec.TEID,
		Packets: f.counters.Packets, Bytes: f.counters.Bytes, ActiveS: active,
		SendErrors: f.counters.SendErrors, Late: f.counters.Late, Skipped: f.counters.Skipped,
		LatenessP50: f.lateness.Quantile(0.5) / 1e3,
		LatenessP99: f.lateness.Quantile(0.99) / 1e3,
		LatenessMax: float64(f.lateness.Max()) / 1e3,
	}
	if active > 0 {
		r.OfferedMbps = 8e-6 * float64(f.counters.Bytes) / active
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
