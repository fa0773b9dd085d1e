// Command load is the radio side of N3 for a testbed: it sends GTP-U flows at exact rates. See --help.
package main

import (
	"fmt"
	"os"

	"slicepilot/userplane/internal/cli"
	"slicepilot/userplane/internal/traffic"
)

func main() { cli.Exit("load", run(os.Args[1:])) }

func run(args []string) error {
	o, err := parseFlags(args)
	if err != nil {
		return err
	}
	sender, err := traffic.NewSender(&o.plan, o.sender)
	if err != nil {
		return err
	}
	defer sender.Close()
	start, bound, finished := make(chan struct{}), make(chan error), make(chan traffic.Report, 1)
	go func() {
		// Not unlocked: the thread, with its scheduling, ends with the goroutine.
		err := traffic.BindThread(o.scheduling)
		bound <- err
		if err != nil {
			return
		}
		<-start
		finished <- sender.Run()
	}()
	if err := <-bound; err != nil {
		return err
	}
	return supervise(o, sender, start, finished)
}

// supervise starts the sending and stays until it is over.
func supervise(o options, sender *traffic.Sender, start chan struct{}, finished <-chan traffic.Report) error {
	ctx, stop := cli.Until(0)
	defer stop()
	lines := cli.NewLines(os.Stdout)
	if err := lines.Write(map[string]any{"event": "ready", "pid": os.Getpid(), "flows": len(o.plan.Flows)}); err != nil {
		return err
	}
	if o.startOnStdin {
		if err := cli.AwaitLine(ctx); err != nil || ctx.Err() != nil {
			return err
		}
	}
	close(start)
	go func() {
		<-ctx.Done()
		sender.Stop()
	}()
	return report(lines, <-finished)
}

// report writes the result, and fails where nothing was sent though something should have been.
func report(lines *cli.Lines, result traffic.Report) error {
	packets, failure := uint64(0), ""
	for _, flow := range result.Flows {
		packets += flow.Packets
		if failure == "" {
			failure = flow.FirstError
		}
	}
	err := lines.Write(struct {
		Event string `json:"event"`
		traffic.Report
	}{"report", result})
	if err == nil && packets == 0 && failure != "" {
		err = fmt.Errorf("not one packet could be sent: %s", failure)
	}
	return err
}
