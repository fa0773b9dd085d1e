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

func (o *output) ready(local netip.AddrPort) {
	_ = o.lines.Write(map[string]any{"event": "ready", "n4": local.String(), "pid": os.Getpid()})
}

func (o *output) answer(a answer) { _ = o.lines.Write(a) }
