package traffic

import (
	"math"
	"math/rand/v2"
)

// VideoFrameHz is the frame rate of video flows, that of the Andrade and Wickboldt study.
const VideoFrameHz = 60.0

// packet is one packet to come: when, in seconds since the start, and how large, inner IP header included.
type packet struct {
	due  float64
	size int
}

// source makes a flow's packets one after another. One with due never means that none comes any more.
type source interface {
	next() packet
}

// newSource makes the source of a normalized flow.
func newSource(f *FlowSpec, apps []App) source {
	rng := rand.New(rand.NewPCG(f.Seed, uint64(*f.ID)+1))
	m := &intensity{start: f.StartS, end: *f.EndS, profile: f.Profile}
	phase := func(period float64) float64 {
		if f.PhaseS != nil {
			return *f.PhaseS
		}
		return rng.Float64() * period
	}
	bits := 8 * float64(f.PacketBytes)
	switch f.Kind {
	case Video:
		return &video{m: m, bits: bits, size: f.PacketBytes, rate: *f.RateMbps * 1e6, origin: f.StartS + phase(1/VideoFrameHz)}
	case OnOff:
		m.cycle, m.on = f.OnS+f.OffS, f.OnS
		m.phase = math.Mod(phase(m.cycle), m.cycle)
		return &paced{m: m, bits: bits, size: f.PacketBytes, rate: *f.RateMbps * 1e6, at: f.StartS, work: constant}
	case Poisson:
		return &paced{m: m, bits: bits, size: f.PacketBytes, rate: *f.RateMbps * 1e6, at: f.StartS, work: rng.ExpFloat64}
	case Trace:
		if len(f.trace.bytes) > 0 {
			return newCaptured(f)
		}
		return newRates(f, rng.Float64())
	case Apps:
		return newAppUser(f, apps, m, rng)
	}
	gap := min(bits/max(*f.RateMbps*1e6, 1), 1)
	// The first packet comes at the phase: a gap before it there is what comes before it.
	return &paced{
		m: m, bits: bits, size: f.PacketBytes, rate: *f.RateMbps * 1e6, at: f.StartS + phase(gap), work: constant, first: true,
	}
}

func constant() float64 { return 1 }

// paced sends packets with gaps of work packets' worth of time: always 1 for a constant rate, exponential for Poisson.
type paced struct {
	m     *intensity
	bits  float64 // of a packet
	size  int
	rate  float64 // bit/s at a modulation of 1
	at    float64 // of the packet before
	work  func() float64
	first bool // the next packet comes at once
}

func (s *paced) next() packet {
	switch {
	case s.rate <= 0:
		return packet{never, s.size}
	case s.first:
		s.first = false
		s.at = s.m.advance(s.at, 0)
	default:
		s.at = s.m.advance(s.at, s.work()*s.bits/s.rate)
	}
	return packet{s.at, s.size}
}

// video sends a burst 60 times a second. What does not fill a packet is left for the next frame, so that the rate
// holds.
type video struct {
	m       *intensity
	bits    float64
	size    int
	rate    float64
	origin  float64 // of the frame clock
	frame   int     // how many frames after it the next one is
	pending int     // packets of the frame at sent still to be handed out
	sent    float64
	credit  float64 // bits that no packet was filled with yet
}

func (s *video) next() packet {
	for s.pending == 0 {
		at := s.origin + float64(s.frame)/VideoFrameHz
		if s.rate <= 0 || at >= s.m.end || s.m.silentFrom(at) {
			return packet{never, s.size}
		}
		s.sent = at
		s.credit += s.rate * s.m.factor(at) / VideoFrameHz
		s.pending = int(s.credit / s.bits)
		s.credit -= float64(s.pending) * s.bits
		s.frame++
	}
	s.pending--
	return packet{s.sent, s.size}
}
