package pfcp

import (
	"container/list"
	"hash/maphash"
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
	entries map[replayKey]*list.Element
	order   *list.List // of *replayEntry, oldest first
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
	return &Replay{
		seed: maphash.MakeSeed(), keep: keep, limit: limit,
		entries: make(map[replayKey]*list.Element), order: list.New(),
	}
}

func (r *Replay) key(peer netip.AddrPort, h Header, request []byte) replayKey {
	return replayKey{peer: peer, hash: maphash.Bytes(r.seed, request), seq: h.Seq, kind: h.Type}
}

// Answer returns the answer already given to this very request, nil for none.
func (r *Replay) Answer(peer netip.AddrPort, h Header, request []byte, now time.Time) []byte {
	element, ok := r.entries[r.key(peer, h, request)]
	if !ok {
		return nil
	}
	entry := element.Value.(*replayEntry)
	if now.After(entry.expires) {
		return nil
	}
	return entry.answer
}

// Remember keeps an answer; the oldest go when there are too many or their time is over.
func (r *Replay) Remember(peer netip.AddrPort, h Header, request, answer []byte, now time.Time) {
	key := r.key(peer, h, request)
	if old, ok := r.entries[key]; ok {
		r.remove(old)
	}
	r.entries[key] = r.order.PushBack(&replayEntry{key: key, answer: answer, expires: now.Add(r.keep)})
	for oldest := r.order.Front(); oldest != nil; oldest = r.order.Front() {
		if r.order.Len() <= r.limit && !now.After(oldest.Value.(*replayEntry).expires) {
			break
		}
		r.remove(oldest)
	}
}

// Forget drops the answers given to a peer's address, whatever port they went to: it has restarted.
func (r *Replay) Forget(peer netip.Addr) {
	for element := r.order.Front(); element != nil; {
		next := element.Next()
		if element.Value.(*replayEntry).key.peer.Addr() == peer {
			r.remove(element)
		}
		element = next
	}
}

func (r *Replay) remove(element *list.Element) {
	delete(r.entries, element.Value.(*replayEntry).key)
	r.order.Remove(element)
}
