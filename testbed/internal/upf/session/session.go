// Package session holds what the control plane and the data path share: sessions with their compiled rules, and the
// tables that find a session by TEID or by a terminal's address.
//
// The control plane replaces, the data path reads: rules are immutable and reached through one atomic pointer, so a
// packet sees either all of a modification or nothing of it, and no reader ever waits for a lock.
package session

import (
	"maps"
	"sync/atomic"
)

// Session is one PFCP session as the data path sees it.
type Session struct {
	SEID  uint64 // ours
	rules atomic.Pointer[Rules]
}

// New makes a session without rules: it drops everything.
func New(seid uint64) *Session {
	s := &Session{SEID: seid}
	s.rules.Store(&Rules{})
	return s
}

// Rules returns the rules that hold now.
func (s *Session) Rules() *Rules { return s.rules.Load() }

// Install replaces the rules.
func (s *Session) Install(r *Rules) { s.rules.Store(r) }

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

// mix spreads neighbouring keys over the upper bits (the multiplier is 2^64 divided by the golden ratio), and takes these.
func mix(x uint64) uint64 { return x * 0x9e3779b97f4a7c15 >> 32 }

// Get returns the session of a key, nil for none.
func (t *Table[K]) Get(key K) *Session {
	entries := t.parts[t.hash(key)%shards].Load()
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
	part := &t.parts[t.hash(key)%shards]
	entries := map[K]*Session{}
	if old := part.Load(); old != nil {
		entries = maps.Clone(*old)
	}
	change(entries)
	part.Store(&entries)
}

// Move makes the keys of a session in a table those it is to have, in place of those it had. Writers take turns.
func Move[K comparable](table *Table[K], had, has map[K]struct{}, s *Session) {
	for key := range has {
		table.Put(key, s)
	}
	for key := range had {
		if _, kept := has[key]; !kept {
			table.Delete(key)
		}
	}
}
