package traffic

import (
	"math"
	"strings"
	"testing"
)

func TestNormalizeNamesTheField(t *testing.T) {
	negative, nan, late := -1.0, math.NaN(), 1.0
	qfi, id := uint8(64), uint32(0)
	for field, spoil := range map[string]func(*Plan){
		"flows: none":   func(p *Plan) { p.Flows = nil },
		"duration_s":    func(p *Plan) { p.DurationS = -1 },
		"apps[0]":       func(p *Plan) { p.Apps[0].MeanMbps = 0 },
		"kind":          func(p *Plan) { p.Flows[0].Kind = "tcp" },
		"rate_mbps: -1": func(p *Plan) { p.Flows[0].RateMbps = &negative },
		"rate_mbps: N":  func(p *Plan) { p.Flows[0].RateMbps = &nan },
		"rate_mbps: m":  func(p *Plan) { p.Flows[0].RateMbps, p.Flows[0].Kind = nil, CBR },
		"packet_bytes":  func(p *Plan) { p.Flows[0].PacketBytes = 51 },
		"start_s":       func(p *Plan) { p.Flows[0].StartS = -1 },
		"end_s":         func(p *Plan) { p.Flows[0].EndS, p.Flows[0].StartS = &late, 2 },
		"on_s":          func(p *Plan) { p.Flows[0].Kind = OnOff },
		"phase_s":       func(p *Plan) { p.Flows[0].PhaseS = &negative },
		"profile":       func(p *Plan) { p.Flows[0].Profile = [][2]float64{{1, 1}, {1, 2}} },
		"qfi":           func(p *Plan) { p.Flows[0].QFI = &qfi },
		"from":          func(p *Plan) { p.Flows[0].From = "gnb" },
		"to":            func(p *Plan) { p.Flows[0].To = "2001:db8::1" },
		"ue: ":          func(p *Plan) { p.Flows[0].UE = "" },
		"ue 10":         func(p *Plan) { p.Flows[0].Dst = "[2001:db8::1]:6000" },
		"dst":           func(p *Plan) { p.Flows[0].Dst = "10.0.0.1" },
		"id":            func(p *Plan) { p.Flows = append(p.Flows, p.Flows[0]); p.Flows[1].ID = &id },
	} {
		plan := Plan{Flows: []FlowSpec{*spec(CBR, 1, nil)}, Apps: append([]App(nil), testApps...)}
		spoil(&plan)
		err := plan.Normalize()
		if err == nil || !strings.Contains(err.Error(), field) {
			t.Errorf("%s: got %v", field, err)
		}
	}
}
