package n4

import "math/rand/v2"

// seedIdentifiers starts TEIDs, SEIDs and sequence numbers at random: after a restart, packets and messages of the
// former life meet no session instead of somebody else's.
func (s *Server) seedIdentifiers() {
	s.nextTEID = rand.Uint32()
	s.nextSEID = rand.Uint64()
	s.nextSeq = rand.Uint32() & maxSeq
}

// newTEID returns a TEID that no session has and that is not in taken. 0 is never one (TS 29.281 clause 5.1).
func (s *Server) newTEID(taken map[uint32]struct{}) uint32 {
	for {
		s.nextTEID++
		_, isTaken := taken[s.nextTEID]
		if s.nextTEID != 0 && !isTaken && s.plane.TEIDs.Get(s.nextTEID) == nil {
			return s.nextTEID
		}
	}
}

// newSEID returns a SEID that no session has; 0 means "unknown" in a header (clause 7.2.2.4.2).
func (s *Server) newSEID() uint64 {
	for {
		s.nextSEID++
		if _, isTaken := s.sessions[s.nextSEID]; s.nextSEID != 0 && !isTaken {
			return s.nextSEID
		}
	}
}
