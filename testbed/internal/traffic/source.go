package traffic

import (
	"math"
	"math/rand/v2"
	"sort"
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
	bits, rate := 8*float64(f.PacketBytes), *f.RateMbps*1e6
	paced := &paced{m: m, bits: bits, size: f.PacketBytes, rate: rate, at: f.StartS, work: constant}
	switch f.Kind {
	case Video:
		return &video{m: m, bits: bits, size: f.PacketBytes, rate: rate, origin: f.StartS + phase(1/VideoFrameHz)}
	case OnOff:
		m.cycle, m.on = f.OnS+f.OffS, f.OnS
		m.phase = math.Mod(phase(m.cycle), m.cycle)
		return paced
	case Poisson:
		paced.work = rng.ExpFloat64
		return paced
	case Trace:
		if len(f.trace.bytes) > 0 {
			return newCaptured(f)
		}
		return newRates(f, rng.Float64())
	case Apps:
		return newAppUser(f, apps, m, rng)
	}
	// The first packet comes at the phase: a gap before it there is what comes before it.
	paced.at, paced.first = f.StartS+phase(min(bits/max(rate, 1), 1)), true
	return paced
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

// Kind apps makes traffic from what a study tells of nine applications it replayed: how long each ran, its mean rate
// and its mean packet size. The rest is modelled, and is no recording:
//   - a user plays one application after another, each drawn with equal chances and for its duration in the table;
//   - the rate moves about its mean once a second, log-normally with a coefficient of variation of 0.8 (the simulator's
//     for one user);
//   - packets come as a Poisson process, small or large so that the mean size is the table's.
const (
	smallPacketBytes = 80
	rateInterval     = 1.0
	rateCV           = 0.8
)

// rateSigma is the log-normal's, from its coefficient of variation.
var rateSigma = math.Sqrt(math.Log(1 + rateCV*rateCV))

type appUser struct {
	m       *intensity
	rng     *rand.Rand
	apps    []App
	large   int     // octets of large packets
	scale   float64 // on the table's rates
	at      float64 // of the packet before
	app     *App
	appEnds float64
	factor  float64 // of this second
	redraw  float64 // when the factor is drawn anew
}

func newAppUser(f *FlowSpec, apps []App, m *intensity, rng *rand.Rand) *appUser {
	u := &appUser{m: m, rng: rng, apps: apps, large: f.PacketBytes, at: f.StartS}
	u.scale = *f.RateMbps / meanMbps(apps)
	// The first application began before the flow did, so that users are not in step.
	u.app = u.draw()
	u.appEnds = f.StartS + u.app.DurationS*rng.Float64()
	u.redraw = f.StartS + rateInterval*rng.Float64()
	u.factor = u.drawFactor()
	return u
}

func (u *appUser) draw() *App { return &u.apps[u.rng.IntN(len(u.apps))] }

func (u *appUser) drawFactor() float64 {
	return math.Exp(rateSigma*u.rng.NormFloat64() - rateSigma*rateSigma/2)
}

// next passes from one stretch of constant rate to the next; what is left of an exponential gap is exponential again,
// so it is drawn anew there.
func (u *appUser) next() packet {
	if u.scale <= 0 {
		return packet{never, u.large}
	}
	for !u.m.silentFrom(u.at) {
		perSecond := u.scale * u.factor * u.app.MeanMbps * 1e6 / (8 * u.app.MeanPacketBytes)
		stretch := *u.m
		stretch.end = min(u.redraw, u.appEnds, u.m.end)
		reached := stretch.advance(u.at, u.rng.ExpFloat64()/perSecond)
		if reached < stretch.end {
			u.at = reached
			return packet{u.at, u.size()}
		}
		if stretch.end == u.m.end {
			return packet{never, u.large}
		}
		u.at = stretch.end
		u.pass()
	}
	return packet{never, u.large}
}

// pass starts the next second or the next application, whichever has come.
func (u *appUser) pass() {
	if u.at >= u.appEnds {
		u.app = u.draw()
		u.appEnds = u.at + u.app.DurationS
	}
	if u.at >= u.redraw {
		u.factor, u.redraw = u.drawFactor(), u.at+rateInterval
	}
}

// size draws a packet's size: small or large, with the application's mean.
func (u *appUser) size() int {
	large := float64(u.large)
	share := (u.app.MeanPacketBytes - smallPacketBytes) / (large - smallPacketBytes)
	if u.rng.Float64() < share {
		return u.large
	}
	return smallPacketBytes
}

// never is a time that does not come.
var never = math.Inf(1)

// intensity is what modulates a flow's rate over time: a piecewise-linear factor and an on/off gate, between a start
// and an end. Times are seconds since the start of the sending.
type intensity struct {
	start, end float64
	profile    [][2]float64
	cycle, on  float64 // the gate opens for the first on seconds of each cycle; cycle 0: always open
	phase      float64 // a cycle begins at start - phase
}

// factor is the profile at a time.
func (m *intensity) factor(t float64) float64 {
	if len(m.profile) == 0 {
		return 1
	}
	low, high, _ := m.segment(t)
	return interpolate(low, high, t)
}

// silentFrom reports whether the factor is 0 from t on for good.
func (m *intensity) silentFrom(t float64) bool {
	n := len(m.profile)
	return n > 0 && t >= m.profile[n-1][0] && m.profile[n-1][1] == 0
}

// segment are the knots around t; the outer ones stand for constants, so that both are the same there. until is where
// the segment ends.
func (m *intensity) segment(t float64) (low, high [2]float64, until float64) {
	knots := m.profile
	i := sort.Search(len(knots), func(i int) bool { return knots[i][0] > t })
	switch i {
	case 0:
		return knots[0], knots[0], knots[0][0]
	case len(knots):
		return knots[i-1], knots[i-1], never
	}
	return knots[i-1], knots[i], knots[i][0]
}

func interpolate(low, high [2]float64, t float64) float64 {
	if low == high {
		return low[1]
	}
	return low[1] + (high[1]-low[1])*(t-low[0])/(high[0]-low[0])
}

// advance is the time at which the integral of the modulation since t reaches work: at a constant modulation of 1, t +
// work. It is never when the flow has ended before.
func (m *intensity) advance(t, work float64) float64 {
	t = max(t, m.start)
	for t < m.end && !m.silentFrom(t) {
		until, open := m.gate(t)
		if !open {
			t = until
			continue
		}
		limit := min(until, m.end)
		reached, rest := m.advanceOpen(t, work, limit)
		if rest <= 0 && reached < m.end {
			return reached
		}
		t, work = limit, rest
	}
	return never
}

// gate tells whether the gate is open at t, and until when it stays so.
func (m *intensity) gate(t float64) (until float64, open bool) {
	if m.cycle <= 0 || m.on >= m.cycle {
		return never, true
	}
	since := t - m.start + m.phase
	begin := t - math.Mod(since, m.cycle)
	if closing := begin + m.on; t < closing {
		return closing, true
	}
	// The next opening must lie ahead of t also after rounding.
	return max(begin+m.cycle, math.Nextafter(t, never)), false
}

// advanceOpen is advance with an open gate and no further than limit; rest is the work left there.
func (m *intensity) advanceOpen(t, work, limit float64) (reached, rest float64) {
	if len(m.profile) == 0 {
		if t+work <= limit {
			return t + work, 0
		}
		return limit, work - (limit - t)
	}
	for t < limit {
		low, high, until := m.segment(t)
		stop := min(until, limit)
		now := interpolate(low, high, t)
		slope := 0.0
		if low != high {
			slope = (high[1] - low[1]) / (high[0] - low[0])
		}
		step := stepFor(now, slope, work)
		if t+step <= stop {
			return t + step, 0
		}
		if math.IsInf(stop, 1) {
			return never, work // the factor stays at 0
		}
		work -= (stop - t) * (now + interpolate(low, high, stop)) / 2
		t = stop
	}
	return limit, max(work, math.SmallestNonzeroFloat64)
}

// stepFor solves now*x + slope*x*x/2 = work for the first x >= 0; never when there is none.
func stepFor(now, slope, work float64) float64 {
	switch {
	case now <= 0 && slope <= 0:
		return never
	case work <= 0:
		return 0
	case slope == 0:
		return work / now
	}
	discriminant := now*now + 2*slope*work
	if discriminant < 0 {
		return never
	}
	// This form of the root does not cancel when the slope is small.
	return 2 * work / (now + math.Sqrt(discriminant))
}
