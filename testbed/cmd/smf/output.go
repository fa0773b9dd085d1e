package main

import (
	"fmt"
	"io"
	"net/netip"
	"os"
	"sync"

	"slicepilot/userplane/internal/cli"
	"slicepilot/userplane/internal/n4"
)

// eventBacklog is how many events wait for a slow reader of standard output before further ones are dropped: answering
// the UPFs must not wait for it.
const eventBacklog = 1024

// output writes answers and events, as JSON lines or as text.
type output struct {
	writer  io.Writer
	lines   *cli.Lines // nil: text
	events  chan n4.Event
	writing sync.WaitGroup
}

func newOutput(w io.Writer, json bool) *output {
	o := &output{writer: w, events: make(chan n4.Event, eventBacklog)}
	if json {
		o.lines = cli.NewLines(w)
	}
	o.writing.Add(1)
	go o.writeEvents()
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

func (o *output) writeEvents() {
	defer o.writing.Done()
	for event := range o.events {
		if o.lines != nil {
			_ = o.lines.Write(event)
			continue
		}
		fmt.Fprintf(o.writer, "%s: UPF %s", event.Event, event.UPF)
		if event.Session != "" {
			fmt.Fprintf(o.writer, ", session %s", event.Session)
		}
		if event.Detail != "" {
			fmt.Fprintf(o.writer, ": %s", event.Detail)
		}
		if event.Event == "recovered" {
			fmt.Fprintf(o.writer, ", %d sessions", event.Count)
		}
		fmt.Fprintln(o.writer)
	}
}

func (o *output) ready(local netip.AddrPort) {
	if o.lines != nil {
		_ = o.lines.Write(map[string]any{"event": "ready", "n4": local.String(), "pid": os.Getpid()})
		return
	}
	fmt.Fprintf(o.writer, "N4 at %s\n", local)
}

func (o *output) answer(a answer) {
	if o.lines != nil {
		_ = o.lines.Write(a)
		return
	}
	if !a.OK {
		return // the error is printed where the program ends
	}
	switch a.Op {
	case "associate":
		fmt.Fprintf(o.writer, "associated with UPF %s in %.0f us\n", a.UPF, a.RTTUs)
	case "establish":
		fmt.Fprintf(o.writer, "session %s established at UPF %s in %.0f us: uplink TEID %#x at %s\n",
			a.Session, a.UPF, a.RTTUs, a.TEID, a.N3)
	}
}
