package traffic

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"
)

func TestBucketsTileTheRangeAndAreNarrow(t *testing.T) {
	previous := -1.0
	for i := range numBuckets {
		low, high := bounds(i)
		if low < previous {
			t.Fatalf("bucket %d starts at %g, the one before ends at %g", i, low, previous)
		}
		if i >= perOctave && (high-low)/low > 0.0626 {
			t.Fatalf("bucket %d (%g..%g) is %.1f%% wide", i, low, high, 100*(high-low)/low)
		}
		previous = high
	}
	for _, value := range []uint64{0, 1, 15, 16, 17, 31, 32, 1000, 123456789, 1 << 38, 1<<38 + 1, math.MaxInt64} {
		i := bucket(value)
		low, high := bounds(i)
		if i == numBuckets-1 {
			continue // holds everything above too
		}
		if float64(value) < low || float64(value) > high {
			t.Errorf("value %d went to bucket %d of %g..%g", value, i, low, high)
		}
	}
}

func TestQuantilesAreWithinABucketOfTheExactOnes(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	values := make([]int64, 20000)
	var h Histogram
	for i := range values {
		values[i] = int64(math.Exp(rng.NormFloat64()*2 + 10))
		h.Add(values[i])
	}
	slices.Sort(values)
	for _, q := range []float64{0.01, 0.5, 0.9, 0.99, 0.999} {
		exact := float64(values[int(math.Ceil(q*float64(len(values))))-1])
		if got := h.Quantile(q); math.Abs(got-exact)/exact > 0.065 {
			t.Errorf("quantile %g: got %g, exact %g", q, got, exact)
		}
	}
	if h.Quantile(1) != float64(values[len(values)-1]) || h.Max() != values[len(values)-1] {
		t.Errorf("quantile 1 is %g, max %d, exact %d", h.Quantile(1), h.Max(), values[len(values)-1])
	}
}

func TestEmptyAndNegative(t *testing.T) {
	var h Histogram
	if h.Quantile(0.5) != 0 || h.Max() != 0 {
		t.Error("an empty histogram has quantiles")
	}
	if h.Add(-5); h.count != 1 || h.Max() != 0 || h.Quantile(0.5) != 0 {
		t.Errorf("after -5: count %d, max %d, median %g", h.count, h.Max(), h.Quantile(0.5))
	}
}

func TestSinceHoldsOnlyWhatCameAfter(t *testing.T) {
	var h Histogram
	h.Add(1_000_000)
	before := h
	for range 99 {
		h.Add(100)
	}
	h.Add(5000)
	d := h.Since(&before)
	if d.count != 100 || math.Abs(d.Quantile(0.5)-100) > 7 || d.Max() < 5000 || d.Max() > 5320 {
		t.Errorf("count %d, median %g, max %d", d.count, d.Quantile(0.5), d.Max())
	}
}
