package main

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"slicepilot/userplane/internal/n4"
	"slicepilot/userplane/internal/pfcp"
	"slicepilot/userplane/internal/sockaddr"
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
	Peers     []peerStatus    `json:"peers,omitempty"`
	Error     string          `json:"error,omitempty"`
}

const operations = "associate, establish, modify, delete, release, status, sleep, quit"

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
	case "status":
		a.Peers = s.status()
	case "sleep":
		err = sleep(ctx, time.Duration(c.Ms*float64(time.Millisecond)))
	case "quit":
	default:
		err = fmt.Errorf("op: %q; expected %s", c.Op, operations)
	}
	a.fill(outcome, err)
	return a
}

func (a *answer) fill(outcome n4.Outcome, err error) {
	a.OK = err == nil
	a.RTTUs, a.Attempts = float64(outcome.RTT.Nanoseconds())/1e3, outcome.Attempts
	a.TEID = outcome.TEID
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
	address, err := sockaddr.Parse(c.UPF, pfcp.Port)
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

func (s *smf) status() []peerStatus {
	var result []peerStatus
	for _, peer := range s.endpoint.Peers() {
		result = append(result, peerStatus{peer.Address().String(), peer.Associated(), peer.Sessions()})
	}
	return result
}

func sleep(ctx context.Context, duration time.Duration) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(duration):
		return nil
	}
}
