package traffic

import "math"

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
	i := 0
	for i < len(knots) && knots[i][0] <= t {
		i++
	}
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

// integral of the profile from t to until, with an open gate.
func (m *intensity) integral(t, until float64) float64 {
	if len(m.profile) == 0 {
		return max(until-max(t, m.start), 0)
	}
	sum := 0.0
	for t = max(t, m.start); t < until; {
		low, high, end := m.segment(t)
		stop := min(end, until)
		sum += (stop - t) * (interpolate(low, high, t) + interpolate(low, high, stop)) / 2
		t = stop
	}
	return sum
}
