// Command sink is the data network's end of a testbed: it receives what load sends and reports what is missing. See
// --help.
package main

import (
	"context"
	"flag"
	"net/netip"
	"os"
	"time"

	"slicepilot/userplane/internal/cli"
	"slicepilot/userplane/internal/traffic"
)

const help = `sink receives, behind N6, the flows that load sends, and reports of each: packets and octets (inner IP packets, header
included), packets lost, reordered and duplicated (by their sequence numbers), the rate, and the one-way delay from load
to the network device of the sink. Delays mean something where load and sink run on one machine, as they read one clock.

  sink --listen 10.103.0.2:6000 --report-interval 1s

Packets lost at the sink's own socket are counted as lost, and reported as sink_drops: a larger --rcvbuf helps. What is
lost at the very end of a flow shows only beside the count of load.

It prints {"event":"ready"}, {"event":"interval",...} every --report-interval, and {"event":"report",...} at the end,
which is SIGTERM, SIGINT or --duration. Exit code: 0; 1 where a socket could not be opened; 2 for bad input.
`

// maxFlows bounds the memory of a sink that a stranger sends to.
const maxFlows = 4096

type options struct {
	sink     traffic.SinkOptions
	interval time.Duration
	duration time.Duration
}

func parseFlags(args []string) (options, error) {
	o := options{sink: traffic.SinkOptions{MaxFlows: maxFlows}}
	var listen cli.Strings
	flags := flag.NewFlagSet("sink", flag.ContinueOnError)
	flags.Var(&listen, "listen", "`ADDRESS:PORT` to receive at; may be repeated")
	flags.IntVar(&o.sink.ReceiveBuffer, "rcvbuf", 16<<20, "receive buffer of a socket in `BYTES`, as the kernel counts them")
	flags.DurationVar(&o.interval, "report-interval", 0, "time between reports; 0: only at the end")
	flags.DurationVar(&o.duration, "duration", 0, "how long to receive; 0: until SIGTERM")
	flags.Bool("json", true, "print JSON lines, as it always does")
	if err := cli.Parse(flags, args, help); err != nil {
		return o, err
	}
	for _, text := range listen {
		address, err := netip.ParseAddrPort(text)
		if err != nil {
			return o, cli.Usagef("--listen: %q; expected ADDRESS:PORT", text)
		}
		o.sink.Listen = append(o.sink.Listen, netip.AddrPortFrom(address.Addr().Unmap(), address.Port()))
	}
	switch {
	case len(listen) == 0:
		return o, cli.Usagef("--listen: missing; expected ADDRESS:PORT, at least once")
	case o.sink.ReceiveBuffer < 4096 || o.sink.ReceiveBuffer > 1<<30:
		return o, cli.Usagef("--rcvbuf: %d; expected 4096 to %d", o.sink.ReceiveBuffer, 1<<30)
	case o.interval < 0 || o.duration < 0:
		return o, cli.Usagef("--report-interval %v, --duration %v; expected from 0", o.interval, o.duration)
	}
	return o, nil
}

func main() { cli.Exit("sink", run(os.Args[1:])) }

func run(args []string) error {
	o, err := parseFlags(args)
	if err != nil {
		return err
	}
	ctx, stop := cli.Until(o.duration)
	defer stop()
	sink, err := traffic.NewSink(o.sink)
	if err != nil {
		return err
	}
	lines := cli.NewLines(os.Stdout)
	if err := lines.Write(map[string]any{"event": "ready", "pid": os.Getpid()}); err != nil {
		return err
	}
	watch(ctx, o.interval, sink, lines)
	sink.Close()
	last := sink.Snapshot()
	return report(lines, "report", last.Total())
}

// watch reports every interval until the end.
func watch(ctx context.Context, interval time.Duration, sink *traffic.Sink, lines *cli.Lines) {
	if interval == 0 {
		<-ctx.Done()
		return
	}
	ticker := time.NewTicker(interval)
	defer ticker.Stop()
	before := sink.Snapshot()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
			now := sink.Snapshot()
			_ = report(lines, "interval", now.Since(&before))
			before = now
		}
	}
}

func report(lines *cli.Lines, event string, report traffic.SinkReport) error {
	return lines.Write(struct {
		Event string `json:"event"`
		AtNs  int64  `json:"at_ns"`
		traffic.SinkReport
	}{event, traffic.Monotonic(), report})
}
