package traffic

import (
	"bufio"
	"fmt"
	"io"
	"math"
	"os"
	"sort"
	"strconv"
	"strings"
)

// maxTraceBytes and maxTraceRows bound what a trace's file may take.
const (
	maxTraceBytes = 1 << 30
	maxTraceRows  = 1 << 24
)

// trace is what flows of kind trace play: rates, each from its time to the next, or packets.
type trace struct {
	times    []float64 // s, from 0 or later, growing (packets: not falling)
	mbps     []float64 // of rates
	bytes    []int     // of packets
	duration float64   // after which a loop begins anew
}

// readTrace reads a file: CSV with the columns time_s and mbps (rates), or time_s and bytes (packets).
func readTrace(name string, durationS float64) (*trace, error) {
	file, err := os.Open(name)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	t, err := parseTrace(io.LimitReader(file, maxTraceBytes+1))
	if err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	last := t.times[len(t.times)-1]
	t.duration = durationS
	if durationS == 0 {
		t.duration = last + (last-t.times[0])/float64(len(t.times)-1)
	}
	if !finite(t.duration, math.Nextafter(last, never), 2e9) {
		return nil, fmt.Errorf("%s: trace_s: %g; expected more than its last time, %g", name, t.duration, last)
	}
	return t, nil
}

func parseTrace(reader io.Reader) (*trace, error) {
	t, rows, size := &trace{}, bufio.NewScanner(reader), 0
	rows.Scan() // without a line its text is empty
	header := strings.TrimSpace(rows.Text())
	if header != "time_s,mbps" && header != "time_s,bytes" {
		return nil, fmt.Errorf("line 1: %.40q; expected time_s,mbps or time_s,bytes", header)
	}
	packets := header == "time_s,bytes"
	for line := 2; rows.Scan(); line++ {
		if size += len(rows.Bytes()) + 1; size > maxTraceBytes || len(t.times) == maxTraceRows {
			return nil, fmt.Errorf("line %d: too long; expected at most %d rows", line, maxTraceRows)
		}
		at, value, found := strings.Cut(strings.TrimSpace(rows.Text()), ",")
		time, timeErr := strconv.ParseFloat(at, 64)
		number, valueErr := strconv.ParseFloat(value, 64)
		if !found || timeErr != nil || valueErr != nil {
			return nil, fmt.Errorf("line %d: %.40q; expected two numbers", line, rows.Text())
		}
		if err := t.add(time, number, packets); err != nil {
			return nil, fmt.Errorf("line %d: %w", line, err)
		}
	}
	if err := rows.Err(); err != nil {
		return nil, err
	}
	if n := len(t.times); n < 2 || t.times[0] == t.times[n-1] {
		return nil, fmt.Errorf("%d rows; expected at least two, at different times", n)
	}
	return t, nil
}

func (t *trace) add(time, value float64, packets bool) error {
	before := math.Inf(-1)
	if n := len(t.times); n > 0 {
		before = t.times[n-1]
	}
	switch {
	case !finite(time, 0, 1e9):
		return fmt.Errorf("time_s: %g; expected 0 to 1e9", time)
	case time < before || (time == before && !packets):
		return fmt.Errorf("time_s: %g after %g; expected growing times", time, before)
	case packets && (!finite(value, 1, 1<<20) || value != math.Trunc(value)):
		return fmt.Errorf("bytes: %g; expected octets of an IP packet", value)
	case !packets && !finite(value, 0, 1e6):
		return fmt.Errorf("mbps: %g; expected 0 to 1000000", value)
	}
	t.times = append(t.times, time)
	if packets {
		t.bytes = append(t.bytes, int(value))
	} else {
		t.mbps = append(t.mbps, value)
	}
	return nil
}

// position is where a trace is being played.
type position struct {
	origin float64 // when its time 0 was, in seconds since the start
	round  float64 // how often it has been played
	row    int
	loop   bool
}

// time is that of a moment of the trace in this round.
func (p *position) time(t *trace, moment float64) float64 {
	return p.origin + p.round*t.duration + moment
}

// seek goes to the first moment of the trace at or after start, and returns it; ok is false where it has ended.
func (p *position) seek(t *trace, start float64) (moment float64, ok bool) {
	since := max(start-p.origin, 0)
	if since >= t.duration {
		if !p.loop {
			return 0, false
		}
		p.round = math.Floor(since / t.duration)
		since -= p.round * t.duration
	}
	return since, true
}

// advance goes to the next row and reports whether there is any.
func (p *position) advance(t *trace) bool {
	if p.row++; p.row < len(t.times) {
		return true
	}
	p.row, p.round = 0, p.round+1
	return p.loop
}

// rates sends packets of one size so that each rate holds over its time.
type rates struct {
	position
	t      *trace
	scale  float64
	end    float64
	bits   float64 // of a packet
	size   int
	moment float64 // of the packet before, in the trace
	work   float64 // bits until the next one
	ended  bool

	bitsARound float64
}

func newRates(f *FlowSpec, phase float64) source {
	s := &rates{
		position: position{origin: f.traceOrigin(), loop: f.Loop}, t: f.trace, scale: 1e6 * f.Scale, end: *f.EndS,
		bits: 8 * float64(f.PacketBytes), size: f.PacketBytes,
	}
	s.work = phase * s.bits
	moment, ok := s.seek(s.t, f.StartS)
	for i, rate := range s.t.mbps {
		until := s.t.duration
		if i+1 < len(s.t.times) {
			until = s.t.times[i+1]
		}
		s.bitsARound += s.scale * rate * (until - s.t.times[i])
	}
	s.moment, s.ended = moment, !ok || s.bitsARound <= 0
	s.row = sort.SearchFloat64s(s.t.times, math.Nextafter(moment, never)) - 1
	if s.row < 0 { // before its first row nothing is sent
		s.row, s.moment = 0, s.t.times[0]
	}
	return s
}

func (s *rates) next() packet {
	for !s.ended && s.time(s.t, s.moment) < s.end {
		until := s.t.duration
		if s.row+1 < len(s.t.times) {
			until = s.t.times[s.row+1]
		}
		rate := s.scale * s.t.mbps[s.row]
		if there := rate * (until - s.moment); s.work <= there && rate > 0 {
			s.moment += s.work / rate
			s.work = s.bits
			if at := s.time(s.t, s.moment); at < s.end {
				return packet{at, s.size}
			}
			break
		} else {
			s.work -= there
		}
		s.ended = !s.advance(s.t)
		s.moment = s.t.times[s.row]
		if s.row == 0 && s.work > s.bitsARound {
			rounds := math.Floor(s.work / s.bitsARound) // in which no packet is filled
			s.round += rounds
			s.work -= rounds * s.bitsARound
		}
	}
	s.ended = true
	return packet{never, s.size}
}

// captured sends packets as they were captured. Their octets hold: what a packet has more than fits, or less than the
// marker needs, is carried over to the next.
type captured struct {
	position
	t         *trace
	scale     float64
	end       float64
	low, high int     // sizes that can be sent
	credit    float64 // octets that were not sent yet
	pending   int     // packets of this row still to be handed out
	now       packet
	ended     bool
}

func newCaptured(f *FlowSpec) source {
	s := &captured{
		position: position{origin: f.traceOrigin(), loop: f.Loop}, t: f.trace, scale: f.Scale, end: *f.EndS,
		low: f.smallest, high: f.PacketBytes,
	}
	moment, ok := s.seek(s.t, f.StartS)
	s.row = sort.SearchFloat64s(s.t.times, moment) - 1 // the row before the first
	s.ended = !ok
	return s
}

func (s *captured) next() packet {
	for s.pending == 0 && !s.ended {
		if s.ended = !s.advance(s.t); s.ended {
			break
		}
		size := min(max(s.t.bytes[s.row], s.low), s.high)
		s.now = packet{s.time(s.t, s.t.times[s.row]), size}
		s.ended = s.now.due >= s.end
		s.credit += s.scale * float64(s.t.bytes[s.row])
		s.pending = int(s.credit / float64(size))
		s.credit -= float64(s.pending * size)
	}
	if s.ended {
		return packet{never, s.high}
	}
	s.pending--
	return s.now
}
