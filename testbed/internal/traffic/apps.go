package traffic

import (
	"math"
	"math/rand/v2"
)

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
	mean    float64 // Mbit/s of the table
	at      float64 // of the packet before
	app     *App
	appEnds float64
	factor  float64 // of this second
	redraw  float64 // when the factor is drawn anew
}

func newAppUser(f *FlowSpec, apps []App, m *intensity, rng *rand.Rand) *appUser {
	u := &appUser{m: m, rng: rng, apps: apps, large: f.PacketBytes, mean: meanMbps(apps), at: f.StartS}
	u.scale = *f.RateMbps / u.mean
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
// so it is carried over in packets.
func (u *appUser) next() packet {
	if u.scale <= 0 {
		return packet{never, u.large}
	}
	packets := u.rng.ExpFloat64()
	for !u.m.silentFrom(u.at) {
		perSecond := u.scale * u.factor * u.app.MeanMbps * 1e6 / (8 * u.app.MeanPacketBytes)
		stretch := *u.m
		stretch.end = min(u.redraw, u.appEnds, u.m.end)
		reached := stretch.advance(u.at, packets/perSecond)
		if reached < stretch.end {
			u.at = reached
			return packet{u.at, u.size()}
		}
		if stretch.end == u.m.end {
			return packet{never, u.large}
		}
		packets = max(packets-perSecond*stretch.integral(u.at, stretch.end), 0)
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
