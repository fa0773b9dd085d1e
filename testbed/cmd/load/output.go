package main

import (
	"fmt"
	"io"
	"os"
	"sync"

	"slicepilot/userplane/internal/cli"
	"slicepilot/userplane/internal/traffic"
)

// output writes progress and the report, as JSON lines or as text.
type output struct {
	writer io.Writer
	lines  *cli.Lines
	json   bool
	plan   *traffic.Plan
	last   traffic.Snapshot
	queued sync.WaitGroup // answers on their way out
}

func newOutput(w io.Writer, json bool, plan *traffic.Plan) *output {
	return &output{
		writer: w, lines: cli.NewLines(w), json: json, plan: plan,
		last: traffic.Snapshot{Flows: make([]traffic.Counters, len(plan.Flows))},
	}
}

// line writes an answer, which is JSON in either case.
func (o *output) line(value any) { _ = o.lines.Write(value) }

// queue writes an answer without making the caller wait for whoever reads it.
func (o *output) queue(value any) {
	o.queued.Add(1)
	go func() {
		defer o.queued.Done()
		o.line(value)
	}()
}

func (o *output) ready() {
	if o.json {
		o.line(map[string]any{"event": "ready", "pid": os.Getpid(), "flows": len(o.plan.Flows)})
	}
}

type intervalRow struct {
	Flow    uint32  `json:"flow"`
	Packets uint64  `json:"packets"`
	Mbps    float64 `json:"mbps"`
	Late    uint64  `json:"late_packets"`
	Skipped uint64  `json:"skipped_packets"`
	Errors  uint64  `json:"send_errors"`
}

// interval writes what was sent since the snapshot before.
func (o *output) interval(snapshot traffic.Snapshot) {
	span := snapshot.ElapsedS - o.last.ElapsedS
	rows, total := make([]intervalRow, len(snapshot.Flows)), intervalRow{}
	for i, now := range snapshot.Flows {
		before := o.last.Flows[i]
		rows[i] = intervalRow{
			Flow: *o.plan.Flows[i].ID, Packets: now.Packets - before.Packets,
			Mbps: 8e-6 * float64(now.Bytes-before.Bytes) / span,
			Late: now.Late - before.Late, Skipped: now.Skipped - before.Skipped, Errors: now.SendErrors - before.SendErrors,
		}
		total.Packets += rows[i].Packets
		total.Mbps += rows[i].Mbps
		total.Late += rows[i].Late
		total.Skipped += rows[i].Skipped
		total.Errors += rows[i].Errors
	}
	o.last = snapshot
	if o.json {
		o.line(map[string]any{"event": "interval", "elapsed_s": snapshot.ElapsedS, "interval_s": span, "flows": rows})
		return
	}
	fmt.Fprintf(o.writer, "%8.1f s  %9.2f Mbit/s  %8d packets  %6d late  %6d skipped  %6d errors\n",
		snapshot.ElapsedS, total.Mbps, total.Packets, total.Late, total.Skipped, total.Errors)
}

// report writes the result, and fails where nothing was sent though something should have been.
func (o *output) report(report traffic.Report) error {
	o.queued.Wait()
	packets, failure := uint64(0), ""
	for _, flow := range report.Flows {
		packets += flow.Packets
		if failure == "" {
			failure = flow.FirstError
		}
	}
	if o.json {
		o.line(struct {
			Event string `json:"event"`
			traffic.Report
		}{"report", report})
	} else {
		o.table(report)
	}
	if packets == 0 && failure != "" {
		return fmt.Errorf("%w: %s", errNothingSent, failure)
	}
	return nil
}

func (o *output) table(report traffic.Report) {
	fmt.Fprintf(o.writer, "%6s %-8s %10s %12s %8s %8s %8s %9s %9s\n",
		"flow", "kind", "packets", "Mbit/s", "errors", "late", "skipped", "p50 us", "p99 us")
	for _, f := range report.Flows {
		fmt.Fprintf(o.writer, "%6d %-8s %10d %12.4f %8d %8d %8d %9.1f %9.1f\n",
			f.Flow, f.Kind, f.Packets, f.OfferedMbps, f.SendErrors, f.Late, f.Skipped, f.LatenessP50, f.LatenessP99)
		if f.FirstError != "" {
			fmt.Fprintf(o.writer, "       first error: %s\n", f.FirstError)
		}
	}
	for _, p := range report.Peers {
		if p.ErrorIndications > 0 {
			fmt.Fprintf(o.writer, "UPF %s sent %d Error Indications: it has no tunnel for TEID %v\n",
				p.UPF, p.ErrorIndications, p.UnknownTEIDs)
		}
	}
}
