package pfcp

import (
	"hash/maphash"
	"maps"
	"net/netip"
	"time"
)

// Replay remembers the answers given, so that a request that is sent again is answered again and not carried out
// again (TS 29.244 clause 6.4: the receiver recognises a retransmission by peer and sequence number).
//
// A retransmission is the same octets, so the request's hash is part of the key: a peer that restarts and counts from
// the beginning is not handed an answer from its former life. Not safe for concurrent use.
type Replay struct {
	seed    maphash.Seed
	keep    time.Duration
	limit   int
	entries map[replayKey]replayEntry
	order   []replayEntry // oldest first, with those that were forgotten or given anew since
}

type replayKey struct {
	peer netip.AddrPort
	hash uint64
	seq  uint32
	kind uint8
}

type replayEntry struct {
	key     replayKey
	answer  []byte
	expires time.Time
}

// NewReplay makes a memory of at most limit answers, each kept for the time a peer may still repeat its request.
func NewReplay(limit int, keep time.Duration) *Replay {
	return &Replay{seed: maphash.MakeSeed(), keep: keep, limit: limit, entries: map[replayKey]replayEntry{}}
}

func (r *Replay) key(peer netip.AddrPort, h Header, request []byte) replayKey {
	return replayKey{peer: peer, hash: maphash.Bytes(r.seed, request), seq: h.Seq, kind: h.Type}
}

// Answer returns the answer already given to this very request, nil for none.
func (r *Replay) Answer(peer netip.AddrPort, h Header, request []byte, now time.Time) []byte {
	entry := r.entries[r.key(peer, h, request)]
	if now.After(entry.expires) {
		return nil
	}
	return entry.answer
}

// Remember keeps an answer; the oldest go when there are too many or their time is over.
func (r *Replay) Remember(peer netip.AddrPort, h Header, request, answer []byte, now time.Time) {
	entry := replayEntry{r.key(peer, h, request), answer, now.Add(r.keep)}
	r.entries[entry.key] = entry
	r.order = append(r.order, entry)
	for len(r.order) > r.limit || now.After(r.order[0].expires) {
		oldest := r.order[0]
		r.order = r.order[1:]
		if r.entries[oldest.key].expires.Equal(oldest.expires) {
			delete(r.entries, oldest.key)
		}
	}
}

// Forget drops the answers given to a peer's address, whatever port they went to: it has restarted.
func (r *Replay) Forget(peer netip.Addr) {
	maps.DeleteFunc(r.entries, func(key replayKey, _ replayEntry) bool { return key.peer.Addr() == peer })
}
