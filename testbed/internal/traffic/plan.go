package traffic

import (
	"fmt"
	"math"
	"net/netip"
	"slices"

	"slicepilot/userplane/internal/gtpu"
	"slicepilot/userplane/internal/inet"
)

// Kind is how a flow's packets are spread over time.
type Kind string

// Kinds of flows.
const (
	Video   Kind = "video"   // isochronous: 60 frames/s, each sent at once as a burst of packets
	CBR     Kind = "cbr"     // one packet every packet_bytes/rate
	Poisson Kind = "poisson" // exponential gaps of that mean
	OnOff   Kind = "onoff"   // cbr for on_s, nothing for off_s
	Trace   Kind = "trace"   // rates or packets of a file
	Apps    Kind = "apps"    // a user of the applications in the plan's table, one after another
)

var kinds = []Kind{Video, CBR, Poisson, OnOff, Apps, Trace}

// Defaults of fields that a flow leaves out.
const (
	DefaultVideoMbps   = 45.0
	DefaultPacketBytes = 1400
	DefaultSourcePort  = 40000
)

// FlowSpec is one flow: who sends what to whom through which tunnel, and how it is spread over time. Times count from
// the start of the sending.
type FlowSpec struct {
	ID   *uint32 `json:"id"`   // in the marker; default: its position in the plan
	Name string  `json:"name"` // for reports only
	Kind Kind    `json:"kind"`

	RateMbps    *float64     `json:"rate_mbps"`    // while it sends; default 45 for video, the table's mean for apps
	PacketBytes int          `json:"packet_bytes"` // inner IP packet; default 1400; for apps the large packets
	OnS         float64      `json:"on_s"`
	OffS        float64      `json:"off_s"`
	StartS      float64      `json:"start_s"`
	EndS        *float64     `json:"end_s"`   // default: never
	PhaseS      *float64     `json:"phase_s"` // start_s plus this is its first moment; default: random within one period
	Profile     [][2]float64 `json:"profile"` // (time_s, factor on the rate), linear between, constant outside
	Seed        uint64       `json:"seed"`

	// Of kind trace.
	File        string   `json:"trace"`         // CSV: time_s,mbps or time_s,bytes
	TraceStartS *float64 `json:"trace_start_s"` // when its time 0 is; default start_s
	TraceS      float64  `json:"trace_s"`       // how long it is; 0: its last time plus the mean distance of its rows
	Scale       float64  `json:"scale"`         // factor on its rates; default 1
	Loop        bool     `json:"loop"`          // begin again at its end
	trace       *trace
	smallest    int // octets that an inner packet has at least

	From       string `json:"from"` // gNB's end of N3, address[:port]; default port 2152
	To         string `json:"to"`   // UPF's end of N3, address[:port]
	TEID       uint32 `json:"teid"`
	QFI        *uint8 `json:"qfi"` // none: no PDU Session Container
	UE         string `json:"ue"`
	Dst        string `json:"dst"`         // address:port behind N6
	SourcePort uint16 `json:"source_port"` // of the inner packets; default 40000
}

// App is one application of the mix that flows of kind apps replay: the figures a study published of it.
type App struct {
	Name            string  `json:"application"`
	DurationS       float64 `json:"duration_s"`
	MeanMbps        float64 `json:"mean_mbps"`
	MeanPacketBytes float64 `json:"mean_packet_bytes"`
}

// Plan is what to send.
type Plan struct {
	Flows     []FlowSpec `json:"flows"`
	Apps      []App      `json:"apps"`
	DurationS float64    `json:"duration_s"` // 0: until the last flow has ended, or for ever
}

// maxPacketBytes is what fits a jumbo frame with the tunnel around it.
const maxPacketBytes = 8900

// Normalize fills in defaults and says what cannot be: flow, field, value and what is accepted.
func (p *Plan) Normalize() error {
	if len(p.Flows) == 0 {
		return fmt.Errorf("flows: none; expected at least one")
	}
	if !finite(p.DurationS, 0, 1e9) {
		return fmt.Errorf("duration_s: %g; expected 0 (no end) to 1e9", p.DurationS)
	}
	for i, app := range p.Apps {
		if !(app.DurationS > 0 && app.MeanMbps > 0 && app.MeanPacketBytes >= smallPacketBytes) {
			return fmt.Errorf("apps[%d]: duration_s %g, mean_mbps %g, mean_packet_bytes %g; expected positive, packets from %d",
				i, app.DurationS, app.MeanMbps, app.MeanPacketBytes, smallPacketBytes)
		}
	}
	seen := map[uint32]int{}
	for i := range p.Flows {
		if err := p.normalizeFlow(i); err != nil {
			return fmt.Errorf("flows[%d]: %w", i, err)
		}
		id := *p.Flows[i].ID
		if other, twice := seen[id]; twice {
			return fmt.Errorf("flows[%d]: id: %d is that of flows[%d] too", i, id, other)
		}
		seen[id] = i
	}
	return nil
}

func (p *Plan) normalizeFlow(index int) error {
	f := &p.Flows[index]
	f.setDefaults(uint32(index), p.Apps)
	switch {
	case !slices.Contains(kinds, f.Kind):
		return fmt.Errorf("kind: %q; expected video, cbr, poisson, onoff, apps, trace", f.Kind)
	case (f.Kind == Trace) != (f.File != ""):
		return fmt.Errorf("trace: %q; expected a file with kind trace, none with others", f.File)
	case f.Kind == Trace && len(f.Profile) > 0:
		return fmt.Errorf("profile: not with kind trace, whose rates are in its file")
	case !finite(f.Scale, 1e-6, 1e6) || !finite(f.traceOrigin(), 0, 1e9) || !finite(f.TraceS, 0, 1e9):
		return fmt.Errorf("scale %g, trace_start_s %g, trace_s %g; expected a scale from 1e-6 to 1e6, times from 0",
			f.Scale, f.traceOrigin(), f.TraceS)
	case f.Kind == Apps && len(p.Apps) == 0:
		return fmt.Errorf("kind: apps without a table; expected with the plan's \"apps\" rows")
	case f.RateMbps == nil:
		return fmt.Errorf("rate_mbps: missing; expected Mbit/s of inner IP packets")
	case !finite(*f.RateMbps, 0, 1e6):
		return fmt.Errorf("rate_mbps: %g; expected 0 to 1000000", *f.RateMbps)
	case !finite(f.StartS, 0, 1e9):
		return fmt.Errorf("start_s: %g; expected from 0", f.StartS)
	case !(*f.EndS > f.StartS):
		return fmt.Errorf("end_s: %g; expected after start_s %g", *f.EndS, f.StartS)
	case f.Kind == OnOff && !(finite(f.OnS, 1e-6, 1e9) && finite(f.OffS, 0, 1e9)):
		return fmt.Errorf("on_s %g, off_s %g; expected on_s above 0, off_s from 0", f.OnS, f.OffS)
	case f.PhaseS != nil && !finite(*f.PhaseS, 0, 1e9):
		return fmt.Errorf("phase_s: %g; expected from 0", *f.PhaseS)
	case f.QFI != nil && *f.QFI > 63:
		return fmt.Errorf("qfi: %d; expected 0 to 63, or none", *f.QFI)
	}
	for _, app := range p.Apps {
		if f.Kind == Apps && app.MeanPacketBytes > float64(f.PacketBytes) {
			return fmt.Errorf("packet_bytes: %d; expected from the largest mean of the apps, %g for %s",
				f.PacketBytes, app.MeanPacketBytes, app.Name)
		}
	}
	last := math.Inf(-1)
	for _, knot := range f.Profile {
		if !(finite(knot[0], 0, 1e9) && finite(knot[1], 0, 1e6) && knot[0] > last) {
			return fmt.Errorf("profile: knot %v; expected [time_s, factor] pairs from 0 with growing times", knot)
		}
		last = knot[0]
	}
	path, err := f.path()
	if err != nil {
		return err
	}
	f.smallest = path.innerHeaderLen() + MarkerLen
	if f.PacketBytes < f.smallest || f.PacketBytes > maxPacketBytes {
		return fmt.Errorf("packet_bytes: %d; expected %d (headers and the %d octets of the marker) to %d",
			f.PacketBytes, f.smallest, MarkerLen, maxPacketBytes)
	}
	if f.Kind == Trace {
		if f.trace, err = readTrace(f.File, f.TraceS); err != nil {
			return fmt.Errorf("trace: %w", err)
		}
	}
	return nil
}

// traceOrigin is when time 0 of the flow's trace is.
func (f *FlowSpec) traceOrigin() float64 {
	if f.TraceStartS != nil {
		return *f.TraceStartS
	}
	return f.StartS
}

func (f *FlowSpec) setDefaults(index uint32, apps []App) {
	if f.ID == nil {
		f.ID = &index
	}
	defaults := map[Kind]float64{Video: DefaultVideoMbps, Apps: meanMbps(apps), Trace: 0} // a trace's are in its file
	if rate, known := defaults[f.Kind]; known && f.RateMbps == nil {
		f.RateMbps = &rate
	}
	if f.PacketBytes == 0 {
		f.PacketBytes = DefaultPacketBytes
	}
	if f.Scale == 0 {
		f.Scale = 1
	}
	if f.EndS == nil {
		never := math.Inf(1)
		f.EndS = &never
	}
	if f.SourcePort == 0 {
		f.SourcePort = DefaultSourcePort
	}
}

// path is a flow's addresses, parsed.
type path struct {
	from, to         netip.AddrPort
	teid             uint32
	qfi              int // -1: none
	ue, dst          netip.Addr
	srcPort, dstPort uint16
}

func (p *path) innerHeaderLen() int {
	if p.ue.Is6() {
		return inet.IPv6HeaderLen + inet.UDPHeaderLen
	}
	return inet.IPv4HeaderLen + inet.UDPHeaderLen
}

func (f *FlowSpec) path() (path, error) {
	p := path{teid: f.TEID, qfi: -1, srcPort: f.SourcePort}
	if f.QFI != nil {
		p.qfi = int(*f.QFI)
	}
	var err error
	if p.to, err = inet.Parse(f.To, gtpu.Port); err != nil {
		return p, fmt.Errorf("to: %w", err)
	}
	if p.from, err = inet.Parse(f.From, gtpu.Port); err != nil {
		return p, fmt.Errorf("from: %w", err)
	}
	if p.from.Addr().Is4() != p.to.Addr().Is4() {
		return p, fmt.Errorf("from %s and to %s; expected both IPv4 or both IPv6", p.from, p.to)
	}
	if p.ue, err = netip.ParseAddr(f.UE); err != nil {
		return p, fmt.Errorf("ue: %q; expected the UE's IPv4 or IPv6 address", f.UE)
	}
	dst, err := netip.ParseAddrPort(f.Dst)
	if err != nil {
		return p, fmt.Errorf("dst: %q; expected ADDRESS:PORT", f.Dst)
	}
	p.ue, p.dst, p.dstPort = p.ue.Unmap(), dst.Addr().Unmap(), dst.Port()
	if p.ue.Is4() != p.dst.Is4() {
		return p, fmt.Errorf("ue %s and dst %s; expected both IPv4 or both IPv6", p.ue, p.dst)
	}
	return p, nil
}

func finite(value, low, high float64) bool { return value >= low && value <= high }

func meanMbps(apps []App) float64 {
	sum := 0.0
	for _, app := range apps {
		sum += app.MeanMbps
	}
	return sum / float64(max(len(apps), 1))
}
