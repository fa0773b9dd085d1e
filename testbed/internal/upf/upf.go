// Package upf is a reference User Plane Function for the testbed (3GPP TS 23.501 clause 6.2.3): a userspace forwarder
// between N3 (GTP-U, TS 29.281) and a TUN device, controlled over N4 (PFCP, TS 29.244).
//
// It is made to be measured and to be driven by any SMF, not to be the fastest there is: messages are those of
// github.com/wmnsk/go-pfcp and github.com/wmnsk/go-gtp; packets go through read loops of its own, one for
// each direction (package datapath).
package upf

import (
	"fmt"
	"log"
	"net/netip"
	"time"

	"slicepilot/userplane/internal/upf/datapath"
	"slicepilot/userplane/internal/upf/n4"
	"slicepilot/userplane/internal/upf/netio"
	"slicepilot/userplane/internal/upf/tun"
)

// Config is what a UPF is started with.
type Config struct {
	NodeID        netip.Addr // also the address in the UP F-SEID
	N4, N3        netip.AddrPort
	PeerPort      uint16 // see n4.Config
	Heartbeat     time.Duration
	TUN           string
	TUNMTU        int
	UEPools       []netip.Prefix
	ReceiveBuffer int // of N3, see netio.Listen
	Burn          time.Duration
	MaxSessions   int
	Log           *log.Logger
}

// UPF is a running UPF.
type UPF struct {
	N3, N4 *netio.Socket
	Device *tun.Device
	plane  *datapath.Plane
	server *n4.Server
}

// Start makes the TUN device, binds the sockets and starts the loops. When it returns, the UPF can carry traffic. After an
// error the program is to end, and what was opened before goes with it.
func Start(config Config) (*UPF, error) {
	device, err := tun.Open(config.TUN, config.TUNMTU, config.UEPools)
	if err != nil {
		return nil, err
	}
	return assemble(config, device)
}

// assemble starts everything on a device that is open.
func assemble(config Config, device *tun.Device) (u *UPF, err error) {
	u = &UPF{Device: device}
	if u.N4, err = netio.Listen(config.N4, 0); err != nil {
		return nil, fmt.Errorf("N4: %w", err)
	}
	if u.N3, err = netio.Listen(config.N3, config.ReceiveBuffer); err != nil {
		return nil, fmt.Errorf("N3: %w", err)
	}
	u.plane, err = datapath.Start(datapath.Config{N3: u.N3, TUN: device.FD, TUNMTU: config.TUNMTU, Burn: config.Burn})
	if err != nil {
		return nil, err
	}
	u.server, err = n4.Start(n4.Config{
		Socket: u.N4, NodeID: config.NodeID, N3: config.N3.Addr(), MaxSessions: config.MaxSessions,
		PeerPort: config.PeerPort, Heartbeat: config.Heartbeat, Log: config.Log,
	}, u.plane)
	return u, err
}

// Failed delivers the error of a loop that could not go on.
func (u *UPF) Failed() <-chan error { return u.plane.Failed() }

// Stop ends everything and removes the TUN device.
func (u *UPF) Stop() {
	u.server.Stop()
	u.plane.Stop()
	u.Device.Close()
	u.N3.Close()
	u.N4.Close()
}

// Stats is a reading of all counters.
type Stats struct {
	datapath.Stats
	PFCP n4.Stats `json:"pfcp"`
}

// Stats reads the counters; not after Stop.
func (u *UPF) Stats() Stats {
	return Stats{Stats: u.plane.Stats(), PFCP: u.server.Stats()}
}
