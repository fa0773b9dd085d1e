// Package session holds what the control plane and the data path share: sessions with their compiled rules, and the
// tables that find a session by TEID or by a terminal's address.
//
// The control plane replaces, the data path reads: rules are immutable and reached through one atomic pointer, so a
// packet sees either all of a modification or nothing of it, and no reader ever waits for a lock.
package session

import "sync/atomic"

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
