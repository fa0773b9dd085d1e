package verify

import (
	"context"
	"encoding/hex"
	"net/netip"
	"testing"
	"time"

	"github.com/wmnsk/go-pfcp/ie"

	"slicepilot/userplane/internal/n4"
)

var place = Place{N6: serverAddress}

// results are those of a verification by rule and direction.
func results(t *testing.T, peer *n4.Peer) map[string]Check {
	t.Helper()
	checks, err := Verify(context.Background(), peer, "a", place)
	if err != nil {
		t.Fatal(err)
	}
	found := map[string]Check{}
	for _, check := range checks {
		found[check.Rule+" "+string(check.Direction)] = check
	}
	if len(found) != 2*len(Rules) || len(checks) != len(found) {
		t.Fatalf("checks %+v", checks)
	}
	return found
}

func TestVerify(t *testing.T) {
	all := func(result Result) map[string]Result {
		return map[string]Result{"gate": result, "mbr": result, "urr": result}
	}
	with := func(rule string, result Result) map[string]Result {
		want := all(Enforced)
		want[rule] = result
		return want
	}
	for name, test := range map[string]struct {
		change func(*farEnd)
		want   map[string]Result
	}{
		"everything is enforced": {nil, all(Enforced)},
		"everything is ignored": {func(f *farEnd) {
			f.ignores = map[string]bool{"gate": true, "mbr": true, "urr": true}
		}, all(Ignored)},
		"gates are ignored":   {func(f *farEnd) { f.ignores["gate"] = true }, with("gate", Ignored)},
		"gates are refused":   {func(f *farEnd) { f.refuses["gate"] = true }, with("gate", Refused)},
		"rates are refused":   {func(f *farEnd) { f.refuses["mbr"] = true }, with("mbr", Refused)},
		"queries are refused": {func(f *farEnd) { f.refuses["urr"] = true }, with("urr", Refused)},
		"gates leak":          {func(f *farEnd) { f.leaky = true }, with("gate", Partly)},
		"totals only":         {func(f *farEnd) { f.totalOnly = true }, all(Enforced)},
		"headers are counted": {func(f *farEnd) { f.tunnelBytes = 44 }, with("urr", Partly)},
		"nothing passes":      {func(f *farEnd) { f.silent = true }, all(Untested)},
	} {
		t.Run(name, func(t *testing.T) {
			peer := startFarEnd(t, test.change)
			for what, check := range results(t, peer) {
				if check.Result != test.want[check.Rule] {
					t.Errorf("%s: %+v (%+v, %+v); want %s", what, check, check.Rate, check.Volume, test.want[check.Rule])
				}
				if (check.Result == Refused) != (check.Cause != 0) {
					t.Errorf("%s: result %s with cause %d", what, check.Result, check.Cause)
				}
			}
		})
	}
}

func TestAGateThatStaysClosedIsSaid(t *testing.T) {
	peer := startFarEnd(t, func(f *farEnd) { f.sticky = true })
	if got := results(t, peer)["gate ul"]; got.Result != Partly || got.Detail == "" {
		t.Errorf("%+v", got)
	}
}

func TestEverythingIsPutBack(t *testing.T) {
	var far *farEnd
	peer := startFarEnd(t, func(f *farEnd) { far = f })
	closed, rate := true, 1.0
	if _, err := peer.Modify(context.Background(), "a", n4.Change{CloseDownlink: &closed, MBRUplinkMbps: &rate}); err != nil {
		t.Fatal(err)
	}
	before, _ := peer.State("a")
	results(t, peer)
	after, err := peer.State("a")
	if err != nil || after != before {
		t.Errorf("%+v, %v; before %+v", after, err, before)
	}
	far.mu.Lock()
	defer far.mu.Unlock()
	if far.closed != [2]bool{false, true} || !far.limited {
		t.Errorf("the UPF has gates closed %v, limited %v", far.closed, far.limited)
	}
}

func TestTripsCountWhatPasses(t *testing.T) {
	peer := startFarEnd(t, nil)
	trips, err := Trips(context.Background(), peer, "a", place, 3, time.Second)
	if err != nil || len(trips) != 2 {
		t.Fatalf("%+v, %v", trips, err)
	}
	for _, trip := range trips {
		if trip.Sent != 3 || trip.Arrived != 3 || trip.CountedBytes == nil || *trip.CountedBytes != 3*tripSize {
			t.Errorf("%+v", trip)
		}
	}
}

func TestTripsWithoutUsage(t *testing.T) {
	peer := startFarEnd(t, func(f *farEnd) { f.ignores["urr"], f.silent = true, true })
	start := time.Now()
	trips, err := Trips(context.Background(), peer, "a", place, 1, 50*time.Millisecond)
	if err != nil || trips[0].Arrived != 0 || trips[1].Arrived != 0 || trips[0].CountedBytes != nil {
		t.Errorf("%+v, %v", trips, err)
	}
	if took := time.Since(start); took > time.Second {
		t.Errorf("took %v", took)
	}
}

func TestPlacesThatCannotBe(t *testing.T) {
	peer := startFarEnd(t, nil)
	for _, wrong := range []Place{
		{N6: netip.MustParseAddr("2001:db8::1")}, {N6: netip.MustParseAddr("203.0.113.1")},
		{N6: serverAddress, N6Namespace: "/no/such/namespace"}, {N6: serverAddress, N6Namespace: "/dev/null"},
	} {
		if _, err := Verify(context.Background(), peer, "a", wrong); err == nil {
			t.Errorf("%+v was accepted", wrong)
		}
	}
	if _, err := Verify(context.Background(), peer, "b", place); err == nil {
		t.Error("a session that is not there was verified")
	}
}

// A rate that the path cannot carry says nothing of a limit.
func TestJudgingRates(t *testing.T) {
	const took = 400 * time.Millisecond
	full := offered{100, 100, 100 * time.Millisecond}
	for name, test := range map[string]struct {
		free, limited, lifted offered
		want                  Result
	}{
		"at the limit":         {full, offered{400, 50, took}, full, Enforced},
		"a window's tolerance": {full, offered{400, 79, took}, full, Enforced},
		"above the tolerance":  {full, offered{400, 100, took}, full, Partly},
		"everything":           {full, offered{400, 400, took}, full, Ignored},
		"nothing":              {full, offered{400, 0, took}, full, Partly},
		"never lifted":         {full, offered{400, 50, took}, offered{100, 13, took / 4}, Partly},
		"a slow path":          {offered{100, 20, took / 4}, offered{400, 50, took}, offered{100, 20, took / 4}, Untested},
	} {
		var check Check
		if check.judgeRate(test.free, test.limited, test.lifted); check.Result != test.want {
			t.Errorf("%s: %+v, want %s", name, check, test.want)
		}
	}
}

func TestRefusalsAloneAreResults(t *testing.T) {
	rejected := &n4.RejectedError{Message: "m", Cause: ie.CauseServiceNotSupported}
	if check, err := (Check{}).refusedBy(rejected); err != nil || check.Result != Refused || check.Cause != rejected.Cause {
		t.Errorf("%+v, %v", check, err)
	}
	if _, err := (Check{}).refusedBy(n4.ErrNoAnswer); err == nil {
		t.Error("silence was taken for a refusal")
	}
}

// Headers worked out by hand from RFC 791, RFC 8200 and RFC 768.
func TestUserPackets(t *testing.T) {
	m := mark{rig: 0x0102030405060708, volley: 1, number: 2}
	payload := "0102030405060708" + "00000001" + "00000002"
	for _, test := range []struct{ from, to, want string }{
		{"10.0.0.1", "10.0.0.2", "4500002c000040004011" + "26bf" + "0a0000010a000002" + "13881770" + "0018" + "b0ac" + payload},
		{"2001:db8::1", "2001:db8::2", "60000000" + "0018" + "1140" + "20010db8000000000000000000000001" +
			"20010db8000000000000000000000002" + "13881770" + "0018" + "693a" + payload},
	} {
		from := netip.AddrPortFrom(netip.MustParseAddr(test.from), 5000)
		to := netip.AddrPortFrom(netip.MustParseAddr(test.to), 6000)
		got := userPacket(from, to, headerLen(from.Addr())+markLen, m)
		if hex.EncodeToString(got) != test.want {
			t.Errorf("%s:\n got %x\nwant %s", test.from, got, test.want)
		}
		inner, ok := userPayload(got)
		if back, marked := readMark(inner); !ok || !marked || back != m {
			t.Errorf("%s: read back %+v", test.from, back)
		}
	}
	for _, junk := range [][]byte{nil, {0x45}, make([]byte, 60), []byte{0x46}} {
		if payload, ok := userPayload(junk); ok {
			t.Errorf("%x has the payload %x", junk, payload)
		}
	}
}
