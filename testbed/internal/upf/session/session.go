// Package session holds what the control plane and the data path share: sessions with their compiled rules, and the
// tables that find a session by TEID or by a terminal's address.
//
// The control plane replaces, the data path reads: rules are immutable and reached through one atomic pointer, so a
// packet sees either all of a modification or nothing of it, and no reader ever waits for a lock. What changes with
// every packet (meters, volumes) lives in objects that successive rules share.
package session

import "sync/atomic"

// Session is one PFCP session as the data path sees it.
type Session struct {
	SEID  uint64 // ours
	rules atomic.Pointer[Rules]

	// Buffer belongs to the downlink loop.
	Buffer Buffer
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

// Event tells the control plane what the data path has met. Which fields count depends on Kind.
type Event struct {
	Kind    EventKind
	Session *Session
	PDR     uint16 // EventData: the rule whose packet was buffered
	Usage   *Usage // EventVolume, EventVolumeQuota
	Peer    Peer   // EventErrorIndication
}

// EventKind tells events apart.
type EventKind uint8

// Kinds of Event.
const (
	EventData            EventKind = iota // the first packet was buffered and the CP function wants to know
	EventVolume                           // a volume threshold was passed
	EventVolumeQuota                      // a volume quota is used up
	EventErrorIndication                  // a peer does not know the tunnel that we send into
)

// Buffer keeps downlink packets while a FAR says BUFF, in order.
type Buffer struct{ packets [][]byte }

// Add keeps a copy of a packet; false means that limit packets are there already.
func (b *Buffer) Add(packet []byte, limit int) bool {
	if len(b.packets) >= limit {
		return false
	}
	b.packets = append(b.packets, append([]byte(nil), packet...))
	return true
}

// Len is how many packets are kept.
func (b *Buffer) Len() int { return len(b.packets) }

// Take returns the packets, oldest first, and forgets them.
func (b *Buffer) Take() [][]byte {
	packets := b.packets
	b.packets = nil
	return packets
}
