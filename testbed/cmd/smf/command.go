package main

import (
	"context"
	"encoding/json"
	"fmt"
	"net/netip"
	"strconv"
	"time"

	"slicepilot/userplane/internal/cli"
	"slicepilot/userplane/internal/inet"
	"slicepilot/userplane/internal/n4"
	"slicepilot/userplane/internal/pfcp"
)

const (
	defaultQFI = 9
	defaultDNN = "internet"
)

// command is one line of a script; which fields an operation reads is in the help.
type command struct {
	Op              string          `json:"op"`
	ID              json.RawMessage `json:"id"`
	UPF             string          `json:"upf"`
	Session         string          `json:"session"`
	UE              string          `json:"ue"`
	TEID            uint32          `json:"teid"`
	N3              string          `json:"n3"`
	GNB             string          `json:"gnb"`
	GNBTEID         uint32          `json:"gnb_teid"`
	QFI             *uint8          `json:"qfi"`
	SST             *uint8          `json:"sst"`
	SD              *string         `json:"sd"`
	DNN             string          `json:"dnn"`
	MBRUplinkMbps   *float64        `json:"mbr_ul_mbps"`
	MBRDownlinkMbps *float64        `json:"mbr_dl_mbps"`
	GateUplink      string          `json:"gate_ul"`
	GateDownlink    string          `json:"gate_dl"`
	Ms              float64         `json:"ms"`

	peer netip.AddrPort // the UPF of a --session
}

// sessionKeys are the keys of --session, which stand for the fields of an establish command.
var sessionKeys = map[string]cli.Key{
	"name": {Field: "session", Kind: cli.Text}, "upf": {Field: "upf", Kind: cli.Text}, "ue": {Field: "ue", Kind: cli.Text},
	"teid": {Field: "teid", Kind: cli.Integer}, "n3": {Field: "n3", Kind: cli.Text},
	"gnb": {Field: "gnb", Kind: cli.Text}, "gnb-teid": {Field: "gnb_teid", Kind: cli.Integer},
	"qfi": {Field: "qfi", Kind: cli.Integer}, "sst": {Field: "sst", Kind: cli.Integer}, "sd": {Field: "sd", Kind: cli.Text},
	"dnn":    {Field: "dnn", Kind: cli.Text},
	"mbr-ul": {Field: "mbr_ul_mbps", Kind: cli.Number}, "mbr-dl": {Field: "mbr_dl_mbps", Kind: cli.Number},
}

// parseSession reads a --session flag; index names a session without a name.
func parseSession(text string, index int) (command, error) {
	c := command{Op: "establish", Session: strconv.Itoa(index)}
	if err := cli.DecodeKeyValues("--session", text, sessionKeys, &c); err != nil {
		return c, err
	}
	var err error
	if c.peer, err = inet.Parse(c.UPF, pfcp.Port); err != nil {
		return c, cli.Usagef("--session: upf: %v", err)
	}
	if _, err := c.sessionSpec(); err != nil {
		return c, cli.Usagef("--session: %v", err)
	}
	return c, nil
}

func (c *command) sessionSpec() (n4.SessionSpec, error) {
	spec := n4.SessionSpec{
		Name: c.Session, TEID: c.TEID, GNBTEID: c.GNBTEID, QFI: defaultQFI, SST: c.SST, SD: n4.NoSD, DNN: defaultDNN,
	}
	for _, field := range []struct {
		name, text string
		target     *netip.Addr
	}{{"ue", c.UE, &spec.UE}, {"n3", c.N3, &spec.N3}, {"gnb", c.GNB, &spec.GNB}} {
		var err error
		if *field.target, err = parseAddress(field.name, field.text); err != nil {
			return spec, err
		}
	}
	if c.QFI != nil {
		spec.QFI = *c.QFI
	}
	if c.DNN != "" {
		spec.DNN = c.DNN
	}
	if c.SD != nil {
		sd, err := strconv.ParseUint(*c.SD, 16, 24)
		if err != nil || len(*c.SD) != 6 {
			return spec, fmt.Errorf("sd: %q; expected six hexadecimal digits", *c.SD)
		}
		spec.SD = uint32(sd)
	}
	if c.MBRUplinkMbps != nil {
		spec.MBRUplinkMbps = *c.MBRUplinkMbps
	}
	if c.MBRDownlinkMbps != nil {
		spec.MBRDownlinkMbps = *c.MBRDownlinkMbps
	}
	return spec, spec.Validate()
}

func (c *command) change() (n4.Change, error) {
	change := n4.Change{MBRUplinkMbps: c.MBRUplinkMbps, MBRDownlinkMbps: c.MBRDownlinkMbps}
	var err error
	if change.CloseUplink, err = parseGate("gate_ul", c.GateUplink); err != nil {
		return change, err
	}
	if change.CloseDownlink, err = parseGate("gate_dl", c.GateDownlink); err != nil {
		return change, err
	}
	if change == (n4.Change{}) {
		return change, fmt.Errorf("modify: nothing to modify; expected at least one of the fields that --help lists")
	}
	return change, nil
}

func parseAddress(field, text string) (netip.Addr, error) {
	if text == "" {
		return netip.Addr{}, nil
	}
	address, err := netip.ParseAddr(text)
	if err != nil {
		return netip.Addr{}, fmt.Errorf("%s: %q; expected an IPv4 or IPv6 address", field, text)
	}
	return address.Unmap(), nil
}

func parseGate(field, text string) (*bool, error) {
	switch text {
	case "":
		return nil, nil
	case "open", "closed":
		closed := text == "closed"
		return &closed, nil
	}
	return nil, fmt.Errorf("%s: %q; expected open, closed", field, text)
}

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
	Peers     []any           `json:"peers,omitempty"`
	Error     string          `json:"error,omitempty"`
}

const operations = "associate, establish, modify, delete, release, status, sleep, quit"

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
	address, err := inet.Parse(c.UPF, pfcp.Port)
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

func (s *smf) status() (result []any) {
	for _, peer := range s.endpoint.Peers() {
		result = append(result, map[string]any{
			"upf": peer.Address().String(), "associated": peer.Associated(), "sessions": peer.Sessions(),
		})
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
