package main

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"os"

	"slicepilot/userplane/internal/cli"
	"slicepilot/userplane/internal/traffic"
)

// input is standard input, line by line.
type input struct{ lines chan []byte }

func newInput(wanted bool) *input {
	in := &input{lines: make(chan []byte)}
	if wanted {
		go in.read()
	}
	return in
}

func (in *input) read() {
	defer close(in.lines)
	scanner := bufio.NewScanner(os.Stdin)
	for scanner.Scan() {
		in.lines <- bytes.Clone(scanner.Bytes())
	}
}

// awaitStart waits for a line, whatever it says. It returns false without an error when it is interrupted.
func (in *input) awaitStart(ctx context.Context) (bool, error) {
	select {
	case <-ctx.Done():
		return false, nil
	case _, open := <-in.lines:
		if !open {
			return false, errors.New("standard input ended before the line to start at")
		}
		return true, nil
	}
}

// command is one line of control.
type command struct {
	Op       string   `json:"op"`
	Flow     *uint32  `json:"flow"`
	RateMbps *float64 `json:"rate_mbps"`
}

// commandAnswer is what is said to a command.
type commandAnswer struct {
	Op            string   `json:"op,omitempty"`
	Flow          *uint32  `json:"flow,omitempty"`
	RateMbps      *float64 `json:"rate_mbps,omitempty"`
	OK            bool     `json:"ok"`
	AtNs          int64    `json:"at_ns,omitempty"`
	FirstPacketNs int64    `json:"first_packet_ns,omitempty"`
	Outcome       string   `json:"outcome,omitempty"`
	Error         string   `json:"error,omitempty"`
}

const maxRateMbps = 1e6

// control executes commands until standard input ends; the sending goes on then.
func control(in *input, sender *traffic.Sender, out *output) {
	for line := range in.lines {
		if len(bytes.TrimSpace(line)) == 0 {
			continue
		}
		var c command
		if err := cli.DecodeStrict("command", line, &c); err != nil {
			out.line(commandAnswer{Error: err.Error()})
			continue
		}
		answer := commandAnswer{Op: c.Op, Flow: c.Flow, RateMbps: c.RateMbps, OK: true}
		switch {
		case c.Op == "stop":
			out.line(answer)
			sender.Stop()
			continue
		case c.Op != "" || c.Flow == nil || c.RateMbps == nil:
			answer.OK, answer.Error = false, `expected {"flow": ID, "rate_mbps": RATE}, {"op": "stop"}`
			out.line(answer)
			continue
		case !(*c.RateMbps >= 0 && *c.RateMbps <= maxRateMbps):
			answer.OK, answer.Error = false, "rate_mbps: expected 0 to 1000000"
			out.line(answer)
			continue
		}
		// Called by the sending thread, which must not wait for whoever reads the answers.
		err := sender.SetRate(*c.Flow, *c.RateMbps, func(change traffic.Change) {
			answer.AtNs, answer.FirstPacketNs, answer.Outcome = change.AtNs, change.FirstPacketNs, change.Outcome
			out.queue(answer)
		})
		if err != nil {
			answer.OK, answer.Error = false, err.Error()
			out.line(answer)
		}
	}
}
