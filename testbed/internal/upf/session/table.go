package session

import "sync/atomic"

// shards is how many parts a Table is copied in: a change copies 1/shards of its entries.
const shards = 1 << 10

// Table maps keys to sessions. Any number of readers look up without a lock and without writing to shared memory;
// one writer at a time replaces the small map that a key belongs to (copy on write).
type Table[K comparable] struct {
	hash  func(K) uint64
	parts [shards]atomic.Pointer[map[K]*Session]
}

// NewTEIDTable maps our own TEIDs.
func NewTEIDTable() *Table[uint32] {
	return &Table[uint32]{hash: func(teid uint32) uint64 { return mix(uint64(teid)) }}
}

// NewAddressTable maps terminals' addresses, or their /64 prefixes.
func NewAddressTable() *Table[Address] {
	return &Table[Address]{hash: func(a Address) uint64 { return mix(a.High ^ mix(a.Low)) }}
}

// mix spreads neighbouring keys over the upper bits (the multiplier is 2^64 divided by the golden ratio).
func mix(x uint64) uint64 { return x * 0x9e3779b97f4a7c15 }

func (t *Table[K]) part(key K) *atomic.Pointer[map[K]*Session] {
	return &t.parts[t.hash(key)>>(64-10)]
}

// Get returns the session of a key, nil for none.
func (t *Table[K]) Get(key K) *Session {
	entries := t.part(key).Load()
	if entries == nil {
		return nil
	}
	return (*entries)[key]
}

// Put sets a key's session. Writers take turns.
func (t *Table[K]) Put(key K, s *Session) {
	t.replace(key, func(entries map[K]*Session) { entries[key] = s })
}

// Delete removes a key. Writers take turns.
func (t *Table[K]) Delete(key K) {
	t.replace(key, func(entries map[K]*Session) { delete(entries, key) })
}

func (t *Table[K]) replace(key K, change func(map[K]*Session)) {
	part := t.part(key)
	entries := make(map[K]*Session)
	if old := part.Load(); old != nil {
		for k, s := range *old {
			entries[k] = s
		}
	}
	change(entries)
	part.Store(&entries)
}
