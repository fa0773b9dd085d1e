// Command load is the radio side of N3 for a testbed: it sends GTP-U flows at exact rates. See --help.
package main

import (
	"flag"
	"fmt"
	"io"
	"os"
	"time"

	"slicepilot/userplane/internal/cli"
	"slicepilot/userplane/internal/traffic"
)

func main() { cli.Exit("load", run(os.Args[1:])) }

func run(args []string) error {
	o, err := parseFlags(args)
	if err != nil {
		return err
	}
	sender, err := traffic.NewSender(&o.plan, o.maxLag)
	if err != nil {
		return err
	}
	defer sender.Close()
	start, bound, finished := make(chan struct{}), make(chan error), make(chan traffic.Report, 1)
	go func() {
		// Not unlocked: the thread, with its scheduling, ends with the goroutine.
		err := traffic.BindThread(o.cpu)
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

const help = `load sends GTP-U (3GPP TS 29.281) from a gNB's end of N3: flows of UDP packets of UEs, each in its tunnel, at exact
rates. A rate counts the octets of inner IP packets, IP header included; the tunnel comes on top. Every packet carries
flow, sequence number and send time, which sink reads.

  load --flow kind=video,rate=45,from=10.100.0.1,to=10.100.0.2,teid=1,qfi=9,ue=10.60.0.2,dst=10.103.0.2:6000 \
       --duration 10s

  Keys of --flow (in brackets the field of a plan): kind, rate (rate_mbps), bytes (packet_bytes, default 1400), from, to
  (ADDRESS[:PORT], port 2152), teid, qfi (none: no PDU Session Container), ue, dst (ADDRESS:PORT), sport (source_port),
  start, end, on, off, phase (start_s ...), seed, id, name, trace, scale, loop.

  kind video    60 frames/s, each sent at once as a burst of packets; default 45 Mbit/s
       cbr      one packet after another at equal distances
       poisson  at exponential distances
       onoff    cbr for "on" seconds, silent for "off"
       apps     a user of the applications in the plan's table; the rate is that of the mix, see the table
       trace    rates or packets of a file, once or (loop=true) again and again; scale multiplies the rates

The file of a trace is CSV with the first line time_s,mbps (a rate holds until the next row's time) or time_s,bytes (IP
packets). Packets that are larger than packet_bytes or smaller than the marker are sent in such sizes that their octets
hold. trace_start_s is when its time 0 is (start_s), trace_s how long it is (a mean distance of rows after the last).

--plan FILE (- for standard input) reads the same, and more, as JSON:

  {"duration_s": 60,
   "flows": [{"id": 0, "name": "video", "kind": "video", "rate_mbps": 45, "packet_bytes": 1400,
              "from": "10.100.0.1", "to": "10.100.0.2", "teid": 1, "qfi": 9, "ue": "10.60.0.2", "dst": "10.103.0.2:6000",
              "source_port": 40000, "start_s": 0, "end_s": 60, "on_s": 1, "off_s": 1, "phase_s": 0, "seed": 1,
              "trace": "", "trace_start_s": 0, "trace_s": 0, "scale": 1, "loop": false,
              "profile": [[0, 1], [10, 0.5]]}],
   "apps": [{"application": "YouTube", "duration_s": 63.4, "mean_mbps": 2.2, "mean_packet_bytes": 1226}]}

  profile multiplies the rate, linear between its (time_s, factor) knots. phase_s is when, after start_s, a flow's first
  frame, packet or on-period comes; without it, a random moment of its first period, the same for the same seed.

With --start-on-stdin it opens its sockets, prints {"event":"ready"} and starts at the first line on standard input.

Tunnel packets are not fragmented: with 1500 octets of MTU on N3 an inner packet can have 1456 (IPv4) or 1436 (IPv6).

Its times are as exact as its threads are scheduled: chrt --fifo 30 load ... where CPUs are busy.

When its thread could not run, it sends what was due as a burst, of --max-lag at most; what is older is not sent and
counted as skipped. Reports tell packets, octets, the rate offered, late (1 ms) and skipped packets, send errors, and how
late packets were handed to the kernel. What UPFs send back is counted; Echo Requests are answered.

SIGTERM and SIGINT end it with the report. Exit code: 0; 1 where a socket or thread could not be set up or nothing could
be sent; 2 for bad input.
`

type options struct {
	plan         traffic.Plan
	maxLag       time.Duration
	cpu          int
	startOnStdin bool
}

func parseFlags(args []string) (options, error) {
	var o options
	var flows cli.Strings
	var planFile string
	var duration time.Duration
	flags := flag.NewFlagSet("load", flag.ContinueOnError)
	flags.Var(&flows, "flow", "flow to send, as `KEY=VALUE,...`; may be repeated")
	flags.StringVar(&planFile, "plan", "", "`FILE` with the flows; - for standard input")
	flags.DurationVar(&duration, "duration", 0, "how long to send; 0: as the plan says, else until all flows have ended")
	flags.DurationVar(&o.maxLag, "max-lag", 100*time.Millisecond, "how late a packet may be sent at most")
	flags.BoolVar(&o.startOnStdin, "start-on-stdin", false, "start at the first line on standard input")
	flags.IntVar(&o.cpu, "cpu", -1, "`CPU` of the sending thread; -1: any")
	flags.Bool("json", true, "print JSON lines, as it always does")
	if err := cli.Parse(flags, args, help); err != nil {
		return o, err
	}
	switch {
	case duration < 0 || o.maxLag <= 0:
		return o, cli.Usagef("--duration %v, --max-lag %v; expected from 0, max-lag above", duration, o.maxLag)
	case o.cpu < -1 || o.cpu > 1023:
		return o, cli.Usagef("--cpu: %d; expected -1 to 1023", o.cpu)
	case planFile == "-" && o.startOnStdin:
		return o, cli.Usagef("--plan: -; expected a file where standard input is used otherwise")
	}
	err := readPlan(&o.plan, planFile, flows)
	if duration > 0 {
		o.plan.DurationS = duration.Seconds()
	}
	return o, err
}

// readPlan collects the flows of the plan and the command line.
func readPlan(plan *traffic.Plan, file string, flows []string) error {
	if file != "" {
		encoded, err := readFile(file)
		if err != nil {
			return cli.Usagef("--plan: %v", err)
		}
		if err := cli.DecodeStrict("--plan "+file, encoded, plan); err != nil {
			return err
		}
	}
	for _, text := range flows {
		var flow traffic.FlowSpec
		if err := cli.DecodeKeyValues("--flow", text, flowKeys, &flow); err != nil {
			return err
		}
		plan.Flows = append(plan.Flows, flow)
	}
	if err := plan.Normalize(); err != nil {
		return cli.Usagef("%v", err)
	}
	return nil
}

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

func readFile(name string) ([]byte, error) {
	if name == "-" {
		return io.ReadAll(os.Stdin)
	}
	return os.ReadFile(name)
}
