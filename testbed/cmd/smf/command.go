package main

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"strconv"

	"slicepilot/userplane/internal/cli"
	"slicepilot/userplane/internal/n4"
	"slicepilot/userplane/internal/pfcp"
	"slicepilot/userplane/internal/sockaddr"
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
	if _, err := sockaddr.Parse(c.UPF, pfcp.Port); err != nil {
		return c, cli.Usagef("--session: upf: %v", err)
	}
	spec, err := c.sessionSpec()
	if err == nil {
		err = spec.Validate()
	}
	if err != nil {
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
	return spec, nil
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
