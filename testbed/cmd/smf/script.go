package main

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"time"

	"slicepilot/userplane/internal/cli"
	"slicepilot/userplane/internal/histogram"
)

// maxLine bounds a line of a script.
const maxLine = 1 << 20

// openScript opens a script; nil when there is none.
func openScript(name string) (io.Reader, error) {
	switch name {
	case "":
		return nil, nil
	case "-":
		return os.Stdin, nil
	}
	file, err := os.Open(name)
	if err != nil {
		return nil, cli.Usagef("--script: %v", err)
	}
	return file, nil
}

// runScript executes commands until quit, the end of the script or of the context.
func (s *smf) runScript(ctx context.Context, script io.Reader) error {
	lines, failure := make(chan []byte), make(chan error, 1)
	go func() { failure <- readLines(ctx, script, lines) }()
	for {
		select {
		case <-ctx.Done():
			return nil
		case err := <-failure:
			return err
		case line := <-lines:
			var c command
			if err := cli.DecodeStrict("command", line, &c); err != nil {
				s.out.answer(answer{Op: c.Op, ID: c.ID, Error: err.Error()})
				continue
			}
			s.out.answer(s.execute(ctx, c))
			if c.Op == "quit" {
				return nil
			}
		}
	}
}

func readLines(ctx context.Context, script io.Reader, lines chan<- []byte) error {
	scanner := bufio.NewScanner(script)
	scanner.Buffer(nil, maxLine)
	for scanner.Scan() {
		line := bytes.TrimSpace(scanner.Bytes())
		if len(line) == 0 {
			continue
		}
		select {
		case lines <- bytes.Clone(line):
		case <-ctx.Done():
			return nil
		}
	}
	if err := scanner.Err(); err != nil {
		return fmt.Errorf("script: %w", err)
	}
	return nil
}

// repeated is the outcome of a repeat command; the round trips are of the repeated commands, by operation.
type repeated struct {
	Rounds   int               `json:"rounds"`
	Failed   int               `json:"failed"`
	ElapsedS float64           `json:"elapsed_s"`
	RTT      map[string]rttRow `json:"rtt"`
}

type rttRow struct {
	Count uint64  `json:"count"`
	P50us float64 `json:"p50_us"`
	P99us float64 `json:"p99_us"`
	Maxus float64 `json:"max_us"`
}

// repeat does a command, or several in turn, n times, a round starting every interval or as soon as the one before is
// done. It goes on after failures, and says how many there were and what the first was.
func (s *smf) repeat(ctx context.Context, c command) (*repeated, error) {
	todo, err := c.repeatedCommands()
	if err != nil {
		return nil, err
	}
	if c.N < 1 || c.IntervalUs < 0 {
		return nil, fmt.Errorf("repeat: n %d, interval_us %g; expected n from 1, interval_us from 0", c.N, c.IntervalUs)
	}
	interval := time.Duration(c.IntervalUs * float64(time.Microsecond))
	done := &repeated{RTT: map[string]rttRow{}}
	trips, first, start := map[string]*histogram.Histogram{}, "", time.Now()
	for ; done.Rounds < c.N; done.Rounds++ {
		if err := sleep(ctx, time.Until(start.Add(time.Duration(done.Rounds)*interval))); err != nil {
			return nil, err
		}
		for _, step := range todo {
			a := s.execute(ctx, step)
			if trips[step.Op] == nil {
				trips[step.Op] = &histogram.Histogram{}
			}
			if a.OK {
				trips[step.Op].Add(int64(a.RTTUs * 1e3))
				continue
			}
			if done.Failed++; first == "" {
				first = a.Error
			}
		}
	}
	done.ElapsedS = time.Since(start).Seconds()
	for op, h := range trips {
		done.RTT[op] = rttRow{h.Count(), h.Quantile(0.5) / 1e3, h.Quantile(0.99) / 1e3, float64(h.Max()) / 1e3}
	}
	if done.Failed > 0 {
		return done, fmt.Errorf("%d of %d commands failed, the first: %s", done.Failed, c.N*len(todo), first)
	}
	return done, nil
}

// repeatedCommands is what to repeat: one command, or a list.
func (c *command) repeatedCommands() ([]command, error) {
	if len(c.Command) == 0 {
		return nil, fmt.Errorf("repeat: command: missing; expected a command or a list of them")
	}
	encoded := bytes.TrimSpace(c.Command)
	if !bytes.HasPrefix(encoded, []byte("[")) {
		encoded = bytes.Join([][]byte{[]byte("["), encoded, []byte("]")}, nil)
	}
	var todo []command
	if err := cli.DecodeStrict("repeat: command", encoded, &todo); err != nil {
		return nil, err
	}
	for _, step := range todo {
		switch step.Op {
		case "repeat", "sleep", "quit", "status":
			return nil, fmt.Errorf("repeat: command: op %q; expected associate, establish, modify, delete, release", step.Op)
		}
	}
	return todo, nil
}
