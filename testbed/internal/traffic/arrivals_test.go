package traffic

import (
	"math/rand/v2"
	"testing"
)

// model keeps account of sequence numbers with all the memory it takes.
type model struct {
	seen                           map[uint64]bool
	next                           uint64
	packets, reordered, duplicates uint64
}

func (m *model) add(sequence uint64) {
	switch {
	case m.seen[sequence]:
		m.duplicates++
		return
	case sequence < m.next:
		m.reordered++
	default:
		m.next = sequence + 1
	}
	m.seen[sequence] = true
	m.packets++
}

func TestArrivalsAgreeWithTheModel(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 1))
	var a Arrivals
	lost := int64(0)
	for run := range uint16(3) {
		m := model{seen: map[uint64]bool{}}
		before := a
		var order []uint64
		for sequence := range uint64(30_000) {
			switch {
			case rng.IntN(50) == 0: // lost
			case rng.IntN(300) == 0:
				order = append(order, sequence, sequence) // twice
			default:
				order = append(order, sequence)
			}
		}
		for range 3000 { // swaps within the window
			i := rng.IntN(len(order) - 1000)
			j := i + rng.IntN(1000)
			order[i], order[j] = order[j], order[i]
		}
		for _, sequence := range order {
			m.add(sequence)
			a.add(Marker{Run: run, Sequence: sequence}, 100, 0)
		}
		lost += int64(m.next) - int64(m.packets)
		if a.Packets-before.Packets != m.packets || a.Reordered-before.Reordered != m.reordered ||
			a.Duplicates-before.Duplicates != m.duplicates || a.Lost() != lost {
			t.Errorf("run %d: packets %d, reordered %d, duplicates %d, lost %d; the model %d, %d, %d, %d", run,
				a.Packets-before.Packets, a.Reordered-before.Reordered, a.Duplicates-before.Duplicates, a.Lost(),
				m.packets, m.reordered, m.duplicates, lost)
		}
	}
}

func TestLongGapsAreLosses(t *testing.T) {
	var a Arrivals
	for _, sequence := range []uint64{0, 1, 1_000_000, 2, 1_000_001} {
		a.add(Marker{Sequence: sequence}, 100, 0)
	}
	if a.Packets != 5 || a.Lost() != 999_997 || a.Reordered != 1 || a.Duplicates != 0 {
		t.Errorf("packets %d, lost %d, reordered %d, duplicates %d", a.Packets, a.Lost(), a.Reordered, a.Duplicates)
	}
}
