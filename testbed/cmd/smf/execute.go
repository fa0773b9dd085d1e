package main

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"slicepilot/userplane/internal/n4"
	"slicepilot/userplane/internal/verify"
)

// answer is what is said to a command.
type answer struct {
	Op        string          `json:"op"`
	ID        json.RawMessage `json:"id,omitempty"`
	UPF       string          `json:"upf,omitempty"`
	Session   string          `json:"session,omitempty"`
	OK        bool            `json:"ok"`
	Cause     uint8           `json:"cause,omitempty"`
	CauseText string          `json:"cause_text,omitempty"`
	RTTUs     float64         `json:"rtt_us,omitempty"`
	Attempts  int             `json:"attempts,omitempty"`
	TEID      uint32          `json:"teid,omitempty"`
	N3        string          `json:"n3,omitempty"`
	Usage     []n4.Usage      `json:"usage,omitempty"`
	Repeat    *repeated       `json:"repeat,omitempty"`
	Peers     []peerStatus    `json:"peers,omitempty"`
	Trips     []verify.Trip   `json:"trips,omitempty"`
	Checks    []verify.Check  `json:"checks,omitempty"`
	Error     string          `json:"error,omitempty"`

	Requests map[string]n4.RequestStats `json:"requests,omitempty"`
}

const operations = "associate, establish, modify, delete, release, packets, verify, status, repeat, sleep, quit"

type peerStatus struct {
	UPF        string   `json:"upf"`
	Associated bool     `json:"associated"`
	Sessions   []string `json:"sessions"`
}

type smf struct {
	endpoint *n4.Endpoint
	out      *output
}

// execute does one command and says what became of it.
func (s *smf) execute(ctx context.Context, c command) answer {
	a := answer{Op: c.Op, ID: c.ID, UPF: c.UPF, Session: c.Session}
	var outcome n4.Outcome
	var err error
	switch c.Op {
	case "associate", "establish", "release":
		outcome, err = s.atPeer(ctx, c, &a)
	case "modify", "delete":
		outcome, err = s.atSession(ctx, c, &a)
	case "packets", "verify":
		err = s.withPackets(ctx, c, &a)
	case "repeat":
		a.Repeat, err = s.repeat(ctx, c)
	case "status":
		a.Peers, a.Requests = s.status(), s.endpoint.Stats()
	case "sleep":
		err = sleep(ctx, time.Duration(c.Ms*float64(time.Millisecond)))
	case "quit":
	default:
		err = fmt.Errorf("op: %q; accepted: %s", c.Op, operations)
	}
	a.fill(outcome, err)
	return a
}

func (a *answer) fill(outcome n4.Outcome, err error) {
	a.OK = err == nil
	a.RTTUs, a.Attempts = float64(outcome.RTT.Nanoseconds())/1e3, outcome.Attempts
	a.TEID, a.Usage = outcome.TEID, outcome.Usage
	if outcome.N3.IsValid() {
		a.N3 = outcome.N3.String()
	}
	if outcome.Cause != 0 {
		a.Cause, a.CauseText = outcome.Cause, n4.CauseText(outcome.Cause)
	}
	if err != nil {
		a.Error = err.Error()
	}
}

func (s *smf) atPeer(ctx context.Context, c command, a *answer) (n4.Outcome, error) {
	address, err := n4.ParsePeer(c.UPF)
	if err != nil {
		return n4.Outcome{}, fmt.Errorf("upf: %w", err)
	}
	a.UPF = address.String()
	peer, err := s.endpoint.Peer(address)
	if err != nil {
		return n4.Outcome{}, err
	}
	switch c.Op {
	case "associate":
		return peer.Associate(ctx)
	case "release":
		return peer.Release(ctx)
	}
	spec, err := c.sessionSpec()
	if err != nil {
		return n4.Outcome{}, err
	}
	if other, err := s.endpoint.PeerOf(spec.Name); err == nil {
		return n4.Outcome{}, fmt.Errorf("session %q: exists already at UPF %s", spec.Name, other.Address())
	}
	return peer.Establish(ctx, spec)
}

func (s *smf) atSession(ctx context.Context, c command, a *answer) (n4.Outcome, error) {
	peer, err := s.endpoint.PeerOf(c.Session)
	if err != nil {
		return n4.Outcome{}, err
	}
	a.UPF = peer.Address().String()
	if c.Op == "delete" {
		return peer.Delete(ctx, c.Session)
	}
	change, err := c.change()
	if err != nil {
		return n4.Outcome{}, err
	}
	return peer.Modify(ctx, c.Session, change)
}

// Bounds of a packets command.
const (
	maxPackets       = 1000
	maxTimeoutMs     = 10_000
	defaultTimeoutMs = 500
)

// withPackets sends packets through a session's UPF and says what became of them.
func (s *smf) withPackets(ctx context.Context, c command, a *answer) error {
	place, err := c.place()
	if err != nil {
		return err
	}
	peer, err := s.endpoint.PeerOf(c.Session)
	if err != nil {
		return err
	}
	a.UPF = peer.Address().String()
	if c.Op == "verify" {
		a.Checks, err = verify.Verify(ctx, peer, c.Session, place)
		return err
	}
	if c.N == 0 {
		c.N = 1
	}
	if c.TimeoutMs == 0 {
		c.TimeoutMs = defaultTimeoutMs
	}
	if c.N < 1 || c.N > maxPackets || !(c.TimeoutMs > 0 && c.TimeoutMs <= maxTimeoutMs) {
		return fmt.Errorf("packets: n %d, timeout_ms %g; accepted: n 1 to %d, timeout_ms above 0 to %d",
			c.N, c.TimeoutMs, maxPackets, maxTimeoutMs)
	}
	patience := time.Duration(c.TimeoutMs * float64(time.Millisecond))
	a.Trips, err = verify.Trips(ctx, peer, c.Session, place, c.N, patience)
	return err
}

func (s *smf) status() []peerStatus {
	var found []peerStatus
	for _, peer := range s.endpoint.Peers() {
		found = append(found, peerStatus{peer.Address().String(), peer.Associated(), peer.Sessions()})
	}
	return found
}

func sleep(ctx context.Context, duration time.Duration) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(duration):
		return nil
	}
}
