package traffic

import (
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

func traceFile(t testing.TB, content string) string {
	t.Helper()
	name := filepath.Join(t.TempDir(), "trace.csv")
	if err := os.WriteFile(name, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
	return name
}

func traceOf(t testing.TB, content string, change func(*FlowSpec)) source {
	t.Helper()
	return newSource(spec(Trace, 0, func(f *FlowSpec) {
		f.File = traceFile(t, content)
		if change != nil {
			change(f)
		}
	}), nil)
}

// ratesOf draws rates with silence and bursts among them.
func ratesOf(n int, seed uint64) []float64 {
	rng := rand.New(rand.NewPCG(seed, 7))
	result := make([]float64, n)
	for i := range result {
		if rng.IntN(4) > 0 {
			result[i] = math.Round(100*rng.ExpFloat64()*30) / 100
		}
	}
	return result
}

func csvOf(mbps []float64, width float64) string {
	var text strings.Builder
	text.WriteString("time_s,mbps\n")
	for i, rate := range mbps {
		fmt.Fprintf(&text, "%.6f,%g\n", float64(i)*width, rate)
	}
	return text.String()
}

func TestEachOf100000BinsHasItsRateToOnePacket(t *testing.T) {
	const bins, width, loops = 100_000, 0.02, 2
	mbps := ratesOf(bins, 1)
	s := traceOf(t, csvOf(mbps, width), func(f *FlowSpec) {
		f.Scale, f.Loop, f.StartS = 1.5, true, 3
		end := 3 + loops*bins*width
		f.EndS = &end
	})
	octets := make([]int, loops*bins)
	for p := s.next(); p.due < never; p = s.next() {
		octets[int((p.due-3)/width)] += p.size
	}
	for i, got := range octets {
		if want := 1.5 * mbps[i%bins] * width * 1e6 / 8; math.Abs(float64(got)-want) > max(1401, 0.01*want) {
			t.Fatalf("bin %d has %d octets, not %g", i, got, want)
		}
	}
}

func TestATraceIsPlayedOnceAndOnlyBetweenItsTimes(t *testing.T) {
	s := traceOf(t, "time_s,mbps\n1,8\n2,4\n", func(f *FlowSpec) { f.PacketBytes = 1000 })
	var dues []float64
	for p := s.next(); p.due < never; p = s.next() {
		dues = append(dues, p.due)
	}
	if n := len(dues); n < 1499 || n > 1500 || dues[0] < 1 || dues[n-1] > 3 {
		t.Errorf("%d packets from %g to %g, not 1500 from 1 to 3", n, dues[0], dues[n-1])
	}
}

func TestAFlowThatComesLaterMeetsTheTraceWhereItIs(t *testing.T) {
	origin := 1.0
	for loop, from := range map[bool]float64{false: 2.5, true: 2.5 + 4*100} {
		s := traceOf(t, "time_s,mbps\n0,0\n1,8\n2,0\n3,80\n", func(f *FlowSpec) {
			f.StartS, f.TraceStartS, f.Loop = from, &origin, loop
		})
		if p := s.next(); p.due < from || p.due > from+2e-3 {
			t.Errorf("loop %v: first packet at %g, not at %g", loop, p.due, from)
		}
		packets := 0
		for p := s.next(); p.due < from+1; p = s.next() {
			packets++
		}
		if packets < 355 || packets > 358 { // half a second of 8 Mbit/s
			t.Errorf("loop %v: %d packets, not 357", loop, packets)
		}
	}
}

func TestCapturedPacketsKeepTheirTimesAndOctets(t *testing.T) {
	rng := rand.New(rand.NewPCG(9, 9))
	var text strings.Builder
	text.WriteString("time_s,bytes\n")
	at, sum := 0.0, 0
	times, until := []float64{}, []int{}
	for range 20_000 {
		at += rng.ExpFloat64() * 1e-3
		size := []int{40, 80, 700, 1400, 1500, 9000}[rng.IntN(6)]
		sum += size
		times, until = append(times, at), append(until, sum)
		fmt.Fprintf(&text, "%.9f,%d\n", at, size)
	}
	for _, scale := range []float64{1, 0.3, 2.5} {
		s := traceOf(t, text.String(), func(f *FlowSpec) { f.Scale = scale })
		sent := 0
		for p := s.next(); p.due < never; p = s.next() {
			if p.size < 52 || p.size > 1400 {
				t.Fatalf("a packet of %d octets", p.size)
			}
			sent += p.size
			i, found := slices.BinarySearch(times, p.due+6e-10)
			if _, before := slices.BinarySearch(times, p.due-6e-10); !found && !before && i == 0 {
				t.Fatalf("a packet at %g, when none was captured", p.due)
			}
			if want := scale * float64(until[max(i-1, 0)]); float64(sent) > want+1 {
				t.Fatalf("%d octets sent at %g, not %g", sent, p.due, want)
			}
		}
		if want := scale * float64(sum); math.Abs(float64(sent)-want) > 1400 {
			t.Errorf("scale %g: %d octets, not %g", scale, sent, want)
		}
	}
}

func TestSilenceEnds(t *testing.T) {
	if p := traceOf(t, "time_s,mbps\n0,0\n1,0\n", func(f *FlowSpec) { f.Loop = true }).next(); p.due != never {
		t.Errorf("a silent trace sends at %g", p.due)
	}
}

func TestTracesThatAreNone(t *testing.T) {
	for content, want := range map[string]string{
		"":                                           `line 1: ""`,
		"a,b\n1,2\n":                                 "line 1",
		"time_s,mbps\n0,1\n":                         "1 rows",
		"time_s,mbps\n0,1\n0,1\n":                    "line 3: time_s: 0 after 0",
		"time_s,mbps\n1,1\n0,1\n":                    "line 3: time_s: 0 after 1",
		"time_s,mbps\n0,-1\n1,1\n":                   "line 2: mbps: -1",
		"time_s,mbps\n0,nan\n1,1\n":                  "line 2: mbps: NaN",
		"time_s,mbps\nnan,1\n1,1\n":                  "line 2: time_s: NaN",
		"time_s,mbps\n0;1\n1,1\n":                    "line 2",
		"time_s,bytes\n0,1.5\n1,1\n":                 "line 2: bytes: 1.5",
		"time_s,bytes\n0,0\n1,1\n":                   "line 2: bytes: 0",
		"time_s,bytes\n0,1400\n0,1400\n":             "2 rows; expected at least two, at different times",
		"time_s,mbps\n" + strings.Repeat("1", 1<<17): "token too long",
	} {
		_, err := readTrace(traceFile(t, content), 0)
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%.30q: %v; expected %q", content, err, want)
		}
	}
	if _, err := readTrace("/nowhere", 0); err == nil {
		t.Error("no file is read")
	}
}

func FuzzTrace(f *testing.F) {
	f.Add("time_s,mbps\n0,1\n1,0\n", 1.0, true)
	f.Add("time_s,bytes\n0,1400\n0.5,40\n", 0.3, false)
	f.Fuzz(func(t *testing.T, content string, scale float64, loop bool) {
		if parsed, err := parseTrace(strings.NewReader(content)); err != nil || len(parsed.times) > 100 || !finite(scale, 1e-6, 10) {
			return
		}
		s, before := traceOf(t, content, func(f *FlowSpec) { f.Scale, f.Loop = scale, loop }), 0.0
		for range 1000 {
			p := s.next()
			if p.due < before || p.size < 52 || p.size > 1400 {
				t.Fatalf("packet of %d octets at %g after %g", p.size, p.due, before)
			}
			before = p.due
		}
	})
}
