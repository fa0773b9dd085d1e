package main

import (
	"io"
	"os"
	"strconv"
	"strings"

	"slicepilot/userplane/internal/cli"
	"slicepilot/userplane/internal/traffic"
)

// flowKeys are the keys of --flow, which stand for the fields of a plan's flows.
var flowKeys = map[string]cli.Key{
	"id": {Field: "id", Kind: cli.Integer}, "name": {Field: "name"}, "kind": {Field: "kind"},
	"rate": {Field: "rate_mbps", Kind: cli.Number}, "bytes": {Field: "packet_bytes", Kind: cli.Integer},
	"from": {Field: "from"}, "to": {Field: "to"}, "ue": {Field: "ue"}, "dst": {Field: "dst"},
	"teid": {Field: "teid", Kind: cli.Integer}, "qfi": {Field: "qfi", Kind: cli.Integer},
	"sport": {Field: "source_port", Kind: cli.Integer}, "seed": {Field: "seed", Kind: cli.Integer},
	"start": {Field: "start_s", Kind: cli.Number}, "end": {Field: "end_s", Kind: cli.Number},
	"on": {Field: "on_s", Kind: cli.Number}, "off": {Field: "off_s", Kind: cli.Number},
	"phase": {Field: "phase_s", Kind: cli.Number}, "trace": {Field: "trace"},
	"scale": {Field: "scale", Kind: cli.Number}, "loop": {Field: "loop", Kind: cli.Boolean},
}

// parseFlow reads a --flow flag.
func parseFlow(text string) (traffic.FlowSpec, error) {
	var flow traffic.FlowSpec
	var profile [][2]float64
	var rest []string
	for _, pair := range strings.Split(text, ",") {
		knots, result := strings.CutPrefix(pair, "profile=")
		if !result {
			rest = append(rest, pair)
			continue
		}
		var err error
		if profile, err = parseProfile(knots); err != nil {
			return flow, err
		}
	}
	if err := cli.DecodeKeyValues("--flow", strings.Join(rest, ","), flowKeys, &flow); err != nil {
		return flow, err
	}
	flow.Profile = profile
	return flow, nil
}

// parseProfile reads TIME:FACTOR;TIME:FACTOR...
func parseProfile(text string) ([][2]float64, error) {
	var knots [][2]float64
	for _, knot := range strings.Split(text, ";") {
		at, factor, result := strings.Cut(knot, ":")
		timeS, timeErr := strconv.ParseFloat(at, 64)
		value, valueErr := strconv.ParseFloat(factor, 64)
		if !result || timeErr != nil || valueErr != nil {
			return nil, cli.Usagef("--flow: profile=%s; expected TIME:FACTOR;TIME:FACTOR... in seconds", text)
		}
		knots = append(knots, [2]float64{timeS, value})
	}
	return knots, nil
}

func readFile(name string) ([]byte, error) {
	if name == "-" {
		return io.ReadAll(os.Stdin)
	}
	return os.ReadFile(name)
}
