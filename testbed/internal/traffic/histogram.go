package traffic

import (
	"math"
	"math/bits"
)

const (
	subBits    = 4
	perOctave  = 1 << subBits
	maxExp     = 38 // the largest value with a bucket of its own: 2^38 ns are 275 s
	numBuckets = (maxExp-subBits+1)*perOctave + perOctave
)

// Histogram counts non-negative integers (here: nanoseconds) in log-linear buckets: sixteen to an octave, so that a bucket
// is at most 6.3% wide, in a fixed amount of memory whatever is counted. The zero value is empty and ready. It is not safe for
// concurrent use.
type Histogram struct {
	counts [numBuckets]uint64
	count  uint64
	max    int64
}

// Add counts one value; a negative one counts as 0.
func (h *Histogram) Add(value int64) {
	value = max(value, 0)
	h.counts[bucket(uint64(value))]++
	h.count++
	h.max = max(h.max, value)
}

// Since is what was added after before, an earlier state of h. Its maximum is known to a bucket only.
func (h *Histogram) Since(before *Histogram) Histogram {
	var d Histogram
	for i := range h.counts {
		d.counts[i] = h.counts[i] - before.counts[i]
		if d.counts[i] > 0 {
			_, high := bounds(i)
			d.max = min(int64(high), h.max)
		}
	}
	d.count = h.count - before.count
	return d
}

// Max is the largest value added, exactly; 0 when there was none.
func (h *Histogram) Max() int64 { return h.max }

// Quantile estimates the value below which the share q (0..1) of the values lies, by the nearest rank with linear
// interpolation inside its bucket. It is 0 when nothing was counted.
func (h *Histogram) Quantile(q float64) float64 {
	if h.count == 0 {
		return 0
	}
	rank := math.Ceil(q * float64(h.count))
	rank = min(max(rank, 1), float64(h.count))
	below := 0.0
	for i, n := range h.counts {
		if n == 0 || below+float64(n) < rank {
			below += float64(n)
			continue
		}
		low, high := bounds(i)
		return min(low+(high-low)*(rank-below)/float64(n), float64(h.max))
	}
	return float64(h.max)
}

// bucket is the index of the bucket that holds value: below 16 one bucket a value, from there sixteen an octave.
func bucket(value uint64) int {
	if value < perOctave {
		return int(value)
	}
	exp := bits.Len64(value) - 1
	if exp > maxExp {
		return numBuckets - 1
	}
	return (exp-subBits+1)*perOctave + int(value>>(exp-subBits)) - perOctave
}

// bounds are the values between which a bucket's values lie.
func bounds(index int) (low, high float64) {
	if index < perOctave {
		return float64(index), float64(index)
	}
	exp := index/perOctave + subBits - 1
	width := math.Ldexp(1, exp-subBits)
	low = math.Ldexp(1, exp) + float64(index%perOctave)*width
	return low, low + width
}
