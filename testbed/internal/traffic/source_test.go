package traffic

import (
	"math"
	"math/rand/v2"
	"testing"
)

// integrate adds up a modulation in small steps.
func integrate(m *intensity, from, to float64) float64 {
	const steps = 200_000
	sum, width := 0.0, (to-from)/steps
	for i := range steps {
		t := from + (float64(i)+0.5)*width
		if _, open := m.gate(t); open && t >= m.start && t < m.end {
			sum += m.factor(t) * width
		}
	}
	return sum
}

func TestAdvanceIsTheInverseOfTheIntegral(t *testing.T) {
	rng := rand.New(rand.NewPCG(3, 4))
	for range 60 {
		m := &intensity{start: rng.Float64(), end: never}
		if rng.IntN(2) == 0 {
			m.cycle = 0.5 + rng.Float64()
			m.on, m.phase = m.cycle*(0.1+0.8*rng.Float64()), m.cycle*rng.Float64()
		}
		at := 0.0
		for range rng.IntN(4) {
			at += 0.2 + rng.Float64()
			m.profile = append(m.profile, [2]float64{at, float64(rng.IntN(3))})
		}
		from, work := 5*rng.Float64(), 0.05+rng.Float64()
		to := m.advance(from, work)
		if math.IsInf(to, 1) {
			if n := len(m.profile); n == 0 || m.profile[n-1][1] != 0 || integrate(m, from, from+50) > work {
				t.Errorf("%+v never reaches %g from %g", m, work, from)
			}
			continue
		}
		if got := integrate(m, from, to); math.Abs(got-work) > 2e-3 {
			t.Errorf("%+v: from %g to %g the integral is %g, not %g", m, from, to, got, work)
		}
	}
}

func spec(kind Kind, mbps float64, change func(*FlowSpec)) *FlowSpec {
	qfi := uint8(9)
	f := FlowSpec{
		Kind: kind, RateMbps: &mbps, Seed: 5, From: "10.0.0.1", To: "10.0.0.2", TEID: 1, QFI: &qfi, UE: "10.60.0.2",
		Dst: "10.103.0.2:6000",
	}
	if change != nil {
		change(&f)
	}
	p := Plan{Flows: []FlowSpec{f}, Apps: testApps}
	if err := p.Normalize(); err != nil {
		panic(err)
	}
	return &p.Flows[0]
}

// testApps are two of the nine that the replayed mix consists of.
var testApps = []App{
	{Name: "YouTube", DurationS: 63.4, MeanMbps: 2.2, MeanPacketBytes: 1226},
	{Name: "Wikipedia", DurationS: 77.4, MeanMbps: 0.4, MeanPacketBytes: 883},
}

// play returns the packets that are due before an end.
func play(s source, untilS float64) []packet {
	var packets []packet
	for {
		p := s.next()
		if p.due >= untilS {
			return packets
		}
		packets = append(packets, p)
	}
}

func megabits(packets []packet) float64 {
	sum := 0
	for _, p := range packets {
		sum += p.size
	}
	return 8e-6 * float64(sum)
}

func TestSourcesOfferTheirRate(t *testing.T) {
	const seconds = 40.0
	trapezoid := func(f *FlowSpec) { f.Profile = [][2]float64{{0, 0}, {10, 2}, {20, 2}, {30, 0}} } // mean 1 over 40 s
	for name, c := range map[string]struct {
		flow      *FlowSpec
		mean      float64
		tolerance float64
	}{
		"video":            {spec(Video, 45, nil), 45, 0.002},
		"video, profile":   {spec(Video, 45, trapezoid), 45, 0.002},
		"video, thin":      {spec(Video, 0.1, nil), 0.1, 0.01},
		"cbr":              {spec(CBR, 10, nil), 10, 0.001},
		"cbr, profile":     {spec(CBR, 10, trapezoid), 10, 0.001},
		"cbr, part":        {spec(CBR, 10, func(f *FlowSpec) { end := 30.0; f.StartS, f.EndS = 20, &end }), 2.5, 0.001},
		"poisson":          {spec(Poisson, 10, nil), 10, 0.02},
		"poisson, profile": {spec(Poisson, 10, trapezoid), 10, 0.02},
		"onoff":            {spec(OnOff, 10, func(f *FlowSpec) { f.OnS, f.OffS = 0.5, 1.5 }), 2.5, 0.01},
		"silent":           {spec(CBR, 0, nil), 0, 0},
		"profile to zero":  {spec(Video, 45, func(f *FlowSpec) { f.Profile = [][2]float64{{1, 0}} }), 0, 0},
	} {
		packets := play(newSource(c.flow, nil), seconds)
		if got := megabits(packets) / seconds; math.Abs(got-c.mean) > c.tolerance*c.mean {
			t.Errorf("%s: %g Mbit/s, want %g", name, got, c.mean)
		}
		for i := 1; i < len(packets); i++ {
			if packets[i].due < packets[i-1].due {
				t.Fatalf("%s: packet %d at %g after %g", name, i, packets[i].due, packets[i-1].due)
			}
		}
	}
}

func TestVideoComesInFrames(t *testing.T) {
	phase := 0.25
	packets := play(newSource(spec(Video, 45, func(f *FlowSpec) { f.PhaseS = &phase }), nil), 2)
	frames := map[float64]int{}
	for _, p := range packets {
		frames[p.due]++
	}
	if len(frames) != 105 || frames[0.25] != 66 {
		t.Errorf("%d frames in 1.75 s, the first of %d packets: want 105 and 45e6/60/8/1400 = 66", len(frames), frames[0.25])
	}
	for due := range frames {
		if beat := (due - phase) * VideoFrameHz; math.Abs(beat-math.Round(beat)) > 1e-6 {
			t.Errorf("a frame at %g s", due)
		}
	}
}

func TestPoissonGapsAreExponential(t *testing.T) {
	packets := play(newSource(spec(Poisson, 20, nil), nil), 30)
	mean, square := 0.0, 0.0
	for i := 1; i < len(packets); i++ {
		gap := packets[i].due - packets[i-1].due
		mean += gap
		square += gap * gap
	}
	n := float64(len(packets) - 1)
	mean /= n
	if cv := math.Sqrt(square/n-mean*mean) / mean; math.Abs(cv-1) > 0.03 {
		t.Errorf("coefficient of variation of the gaps is %g, an exponential's is 1", cv)
	}
}

func TestAppsFollowTheTable(t *testing.T) {
	bits, packets, bytes := 0.0, 0, 0
	const users, seconds = 200, 120.0
	for seed := range uint64(users) {
		user := spec(Apps, 0, func(f *FlowSpec) { f.RateMbps, f.Seed = nil, seed })
		for _, p := range play(newSource(user, testApps), seconds) {
			bits += 8 * float64(p.size)
			packets++
			bytes += p.size
		}
	}
	if mean := bits / users / seconds / 1e6; math.Abs(mean-1.3) > 0.08 {
		t.Errorf("mean rate of a user is %g Mbit/s, the table's 1.3", mean)
	}
	// By packets: 2.2 and 0.4 Mbit/s of packets of 1226 and 883 octets.
	want := (2.2 + 0.4) / (2.2/1226 + 0.4/883)
	if mean := float64(bytes) / float64(packets); math.Abs(mean-want) > 15 {
		t.Errorf("mean packet has %g octets, the table's %g", mean, want)
	}
}

func TestSameSeedSamePackets(t *testing.T) {
	for _, kind := range []Kind{Video, CBR, Poisson, Apps} {
		a, b := newSource(spec(kind, 5, nil), testApps), newSource(spec(kind, 5, nil), testApps)
		c := newSource(spec(kind, 5, func(f *FlowSpec) { f.Seed = 6 }), testApps)
		differs := false
		for range 100 {
			x, y, z := a.next(), b.next(), c.next()
			if x != y {
				t.Fatalf("%s: %v and %v with the same seed", kind, x, y)
			}
			differs = differs || x != z
		}
		if !differs {
			t.Errorf("%s: another seed, the same packets", kind)
		}
	}
}
