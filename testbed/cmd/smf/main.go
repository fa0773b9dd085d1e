// Command smf is the control plane's end of N4 for a testbed: it associates with UPFs, holds PFCP sessions, and reports
// the round trip of every request. See --help.
package main

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"sync"
	"time"

	"slicepilot/userplane/internal/cli"
	"slicepilot/userplane/internal/n4"
	"slicepilot/userplane/internal/pfcp"
	"slicepilot/userplane/internal/sockaddr"
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
	out.ready(endpoint.Local())

	s := &smf{endpoint: endpoint, out: out}
	err = s.setUp(ctx, o)
	switch {
	case ctx.Err() != nil:
		err = nil // interrupted while setting up
	case err != nil:
	case script != nil:
		err = s.runScript(ctx, script)
	default:
		wait(ctx, o.duration)
	}
	if !o.leave {
		takeLeave(endpoint)
	}
	return err
}

// setUp does what the flags ask for: all UPFs at once, the sessions of each in turn.
func (s *smf) setUp(ctx context.Context, o options) error {
	var group sync.WaitGroup
	failures := make([]error, len(o.upfs))
	for i, upf := range o.upfs {
		group.Add(1)
		go func() {
			defer group.Done()
			failures[i] = s.setUpPeer(ctx, upf, o.sessions)
		}()
	}
	group.Wait()
	return errors.Join(failures...)
}

func (s *smf) setUpPeer(ctx context.Context, upf netip.AddrPort, sessions []command) error {
	todo := []command{{Op: "associate", UPF: upf.String()}}
	for _, session := range sessions {
		if target, err := sockaddr.Parse(session.UPF, pfcp.Port); err == nil && target == upf {
			todo = append(todo, session)
		}
	}
	for _, step := range todo {
		answer := s.execute(ctx, step)
		s.out.answer(answer)
		if !answer.OK {
			return errors.New(answer.Error)
		}
	}
	return nil
}

func wait(ctx context.Context, duration time.Duration) {
	if duration > 0 {
		timed, cancel := context.WithTimeout(ctx, duration)
		defer cancel()
		ctx = timed
	}
	<-ctx.Done()
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
