// Package datapath moves user packets between N3 (GTP-U) and a TUN device: one loop of system calls for each
// direction, so that packets of a direction are never reordered. The loops take no locks and allocate nothing per
// packet; everything that can grow is bounded.
package datapath

import (
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"slicepilot/userplane/internal/upf/netio"
	"slicepilot/userplane/internal/upf/own"
	"slicepilot/userplane/internal/upf/session"
)

const (
	// maxBatch is how many packets one system call may move.
	maxBatch = 64
	// batchWork bounds the work that is taken out of a socket's queue at once: beyond it the queue belongs in the
	// socket, where its size is set and its overflow is counted.
	batchWork = 100 * time.Microsecond
	// slack is what a datagram may be longer than the TUN device's MTU: a GTP-U header with extension headers.
	slack = 256
)

// Config is what the data path works on. The descriptors stay the caller's to close, after Stop.
type Config struct {
	N3     *netio.Socket
	TUN    int // descriptor, non-blocking
	TUNMTU int
	Burn   time.Duration // of CPU work per packet
}

// Plane is a running data path.
type Plane struct {
	TEIDs     *session.Table[uint32]
	Addresses *session.Table[session.Address]

	config   Config
	uplink   *uplink
	downlink *downlink
	path     *path
	own      *own.Addresses
	stopping atomic.Bool
	loops    sync.WaitGroup
	failed   chan error
}

// Start starts the loops.
func Start(config Config) (*Plane, error) {
	p := &Plane{
		TEIDs: session.NewTEIDTable(), Addresses: session.NewAddressTable(), config: config, failed: make(chan error, 3),
	}
	var err error
	p.path = newPath(config.N3)
	if p.own, err = own.Watch(); err != nil {
		return nil, err
	}
	if p.uplink, err = newUplink(p); err != nil {
		p.own.Close()
		return nil, fmt.Errorf("uplink: %w", err)
	}
	if p.downlink, err = newDownlink(p); err != nil {
		p.own.Close()
		p.uplink.waker.Close()
		return nil, fmt.Errorf("downlink: %w", err)
	}
	p.loops.Add(4)
	go p.loop("uplink", p.uplink.run)
	go p.loop("downlink", p.downlink.run)
	go p.loop("path management", p.path.run)
	go p.loop("own addresses", p.own.Follow)
	return p, nil
}

func (p *Plane) loop(name string, run func() error) {
	defer p.loops.Done()
	if err := run(); err != nil {
		p.failed <- fmt.Errorf("%s: %w", name, err)
	}
}

// Failed delivers the error of a loop that could not go on, such as that of a TUN device that has been removed.
func (p *Plane) Failed() <-chan error { return p.failed }

// Stop stops the loops and waits for them.
func (p *Plane) Stop() {
	p.stopping.Store(true)
	p.uplink.waker.Wake()
	p.downlink.waker.Wake()
	close(p.path.stop)
	p.own.Close()
	p.loops.Wait()
	p.uplink.waker.Close()
	p.downlink.waker.Close()
}

// batch is how many packets to take at once.
func (c *Config) batch() int {
	if c.Burn <= 0 {
		return maxBatch
	}
	return int(min(max(batchWork/c.Burn, 1), maxBatch))
}

// Stats is a reading of all counters.
type Stats struct {
	Uplink      Direction `json:"uplink"`
	Downlink    Direction `json:"downlink"`
	SocketDrops uint64    `json:"n3_socket_drops"`
	Path        PathStats `json:"gtpu"`
}

// Stats reads the counters.
func (p *Plane) Stats() Stats {
	return Stats{
		Uplink: p.uplink.counters.Read(), Downlink: p.downlink.counters.Read(),
		SocketDrops: p.config.N3.Drops(), Path: p.path.stats(),
	}
}

var processStart = time.Now()

// monotonicNs is a clock for rates; time.Since on it costs no system call.
func monotonicNs() int64 { return int64(time.Since(processStart)) }
