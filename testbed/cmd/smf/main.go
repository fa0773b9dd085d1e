// Command smf is the control plane's end of N4 for a testbed: it associates with UPFs, holds PFCP sessions, and reports
// the round trip of every request. See --help.
package main

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"sync"
	"time"

	"slicepilot/userplane/internal/cli"
	"slicepilot/userplane/internal/n4"
)

func main() { cli.Exit("smf", run(os.Args[1:])) }

func run(args []string) error {
	o, err := parseFlags(args)
	if err != nil {
		return err
	}
	script, err := openScript(o.script)
	if err != nil {
		return err
	}
	out := newOutput(os.Stdout)
	defer out.close()
	endpoint, err := n4.Listen(n4.Config{
		Local: o.listen, NodeID: o.nodeID, T1: o.t1, N1: o.n1, Heartbeat: o.heartbeat, OnEvent: out.event,
	})
	if err != nil {
		return err
	}
	defer endpoint.Close()
	ctx, stop := cli.Until(0)
	defer stop()
	_ = out.lines.Write(map[string]any{"event": "ready", "n4": endpoint.Local().String(), "pid": os.Getpid()})

	s := &smf{endpoint: endpoint, out: out}
	err = s.setUp(ctx, o)
	switch {
	case ctx.Err() != nil:
		err = nil // interrupted while setting up
	case err != nil:
	case script != nil:
		err = s.runScript(ctx, script)
	case o.duration > 0:
		_ = sleep(ctx, o.duration)
	default:
		<-ctx.Done()
	}
	takeLeave(endpoint)
	return err
}

// setUp does what the flags ask for: one UPF after another, with its sessions.
func (s *smf) setUp(ctx context.Context, o options) error {
	var failures []error
	for _, upf := range o.upfs {
		failures = append(failures, s.setUpPeer(ctx, upf, o.sessions))
	}
	return errors.Join(failures...)
}

func (s *smf) setUpPeer(ctx context.Context, upf netip.AddrPort, sessions []command) error {
	todo := []command{{Op: "associate", UPF: upf.String()}}
	for _, session := range sessions {
		if session.peer == upf {
			todo = append(todo, session)
		}
	}
	for _, step := range todo {
		answer := s.execute(ctx, step)
		_ = s.out.lines.Write(answer)
		if !answer.OK {
			return errors.New(answer.Error)
		}
	}
	return nil
}

// leaveTimeout bounds the leave-taking of all UPFs together.
const leaveTimeout = time.Second

func takeLeave(endpoint *n4.Endpoint) {
	ctx, cancel := context.WithTimeout(context.Background(), leaveTimeout)
	defer cancel()
	var group sync.WaitGroup
	for _, peer := range endpoint.Peers() {
		group.Add(1)
		go func() {
			defer group.Done()
			if err := peer.Shutdown(ctx); err != nil {
				fmt.Fprintf(os.Stderr, "smf: leaving UPF %s: %v\n", peer.Address(), err)
			}
		}()
	}
	group.Wait()
}

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
				_ = s.out.lines.Write(answer{Op: c.Op, ID: c.ID, Error: err.Error()})
				continue
			}
			_ = s.out.lines.Write(s.execute(ctx, c))
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

// eventBacklog is how many events wait for a slow reader of standard output before further ones are dropped: answering
// the UPFs must not wait for it.
const eventBacklog = 1024

// output writes answers and events as JSON lines.
type output struct {
	lines   *cli.Lines
	events  chan n4.Event
	writing sync.WaitGroup
}

func newOutput(w io.Writer) *output {
	o := &output{lines: cli.NewLines(w), events: make(chan n4.Event, eventBacklog)}
	o.writing.Add(1)
	go func() {
		defer o.writing.Done()
		for event := range o.events {
			_ = o.lines.Write(event)
		}
	}()
	return o
}

func (o *output) close() {
	close(o.events)
	o.writing.Wait()
}

// event never blocks.
func (o *output) event(event n4.Event) {
	select {
	case o.events <- event:
	default:
		fmt.Fprintf(os.Stderr, "smf: standard output is not read: event %s dropped\n", event.Event)
	}
}
