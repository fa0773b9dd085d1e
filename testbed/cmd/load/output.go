package main

import (
	"fmt"
	"io"
	"os"

	"slicepilot/userplane/internal/cli"
	"slicepilot/userplane/internal/traffic"
)

// output writes the report, as JSON lines or as text.
type output struct {
	writer io.Writer
	lines  *cli.Lines
	json   bool
	plan   *traffic.Plan
}

func newOutput(w io.Writer, json bool, plan *traffic.Plan) *output {
	return &output{writer: w, lines: cli.NewLines(w), json: json, plan: plan}
}

// line writes a line of JSON.
func (o *output) line(value any) { _ = o.lines.Write(value) }

func (o *output) ready() {
	if o.json {
		o.line(map[string]any{"event": "ready", "pid": os.Getpid(), "flows": len(o.plan.Flows)})
	}
}

// report writes the result, and fails where nothing was sent though something should have been.
func (o *output) report(report traffic.Report) error {
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
