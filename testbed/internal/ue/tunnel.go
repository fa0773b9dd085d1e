// Package ue is a terminal with an IP stack: a TUN device whose packets go through a GTP-U tunnel to a UPF and back, and
// a user that asks a web server for octets through it, again and again.
package ue

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"sync/atomic"

	"slicepilot/userplane/internal/gtpu"
	"slicepilot/userplane/internal/upf/tun"
)

// Tunnel is what one terminal has of N3, as its gNB sees it.
type Tunnel struct {
	From, To     netip.AddrPort // of gNB and UPF
	TEID         uint32         // towards the UPF
	DownlinkTEID uint32         // towards the gNB
	QFI          uint8
	UE           netip.Addr // the terminal's
	Device       string     // name of the TUN device
	MTU          int
}

// Link carries packets between a TUN device and a tunnel until it is closed.
type Link struct {
	tunnel             Tunnel
	device             *os.File
	socket             *net.UDPConn
	uplink, downlink   atomic.Uint64
	foreign, discarded atomic.Uint64
	done               chan error
}

// Report counts the packets of a link.
type Report struct {
	Uplink    uint64 `json:"uplink_packets"`
	Downlink  uint64 `json:"downlink_packets"`
	Foreign   uint64 `json:"foreign"`   // on N3: of no tunnel of this terminal
	Discarded uint64 `json:"discarded"` // that socket or device did not take
}

// Open makes the device and starts to carry packets.
func Open(tunnel Tunnel) (*Link, error) {
	socket, err := net.ListenUDP("udp", net.UDPAddrFromAddrPort(tunnel.From))
	if err != nil {
		return nil, fmt.Errorf("N3 at %v: %w", tunnel.From, err)
	}
	// With host bits the device gets the address.
	bits := tunnel.UE.BitLen() - 8
	device, err := tun.Open(tunnel.Device, tunnel.MTU, []netip.Prefix{netip.PrefixFrom(tunnel.UE, bits)})
	if err != nil {
		socket.Close()
		return nil, err
	}
	l := &Link{tunnel: tunnel, device: os.NewFile(uintptr(device.FD), tunnel.Device), socket: socket, done: make(chan error, 2)}
	go func() { l.done <- l.up() }()
	go func() { l.done <- l.down() }()
	return l, nil
}

// Close removes the device and ends the link.
func (l *Link) Close() error {
	err := errors.Join(l.device.Close(), l.socket.Close())
	<-l.done
	<-l.done
	return err
}

// Report says what went through so far.
func (l *Link) Report() Report {
	return Report{l.uplink.Load(), l.downlink.Load(), l.foreign.Load(), l.discarded.Load()}
}

// up sends what the terminal sends.
func (l *Link) up() error {
	packet, message := make([]byte, tun.MaxMTU), make([]byte, 0, tun.MaxMTU+gtpu.GPDULen)
	for {
		n, err := l.device.Read(packet)
		if err != nil {
			return err
		}
		message = gtpu.AppendGPDU(message[:0], l.tunnel.TEID, gtpu.PDUTypeUplink, l.tunnel.QFI, n)
		message = append(message, packet[:n]...)
		if _, err := l.socket.WriteToUDPAddrPort(message, l.tunnel.To); errors.Is(err, net.ErrClosed) {
			return err
		} else if err != nil {
			l.discarded.Add(1)
			continue
		}
		l.uplink.Add(1)
	}
}

// down hands to the terminal what comes for it.
func (l *Link) down() error {
	message := make([]byte, tun.MaxMTU)
	for {
		n, _, err := l.socket.ReadFromUDPAddrPort(message)
		if errors.Is(err, net.ErrClosed) {
			return err
		} else if err != nil {
			continue
		}
		header, err := gtpu.Parse(message[:n])
		if err != nil || header.Type != gtpu.TypeGPDU || header.TEID != l.tunnel.DownlinkTEID {
			l.foreign.Add(1)
			continue
		}
		if _, err := l.device.Write(header.Payload(message)); errors.Is(err, os.ErrClosed) {
			return err
		} else if err != nil {
			l.discarded.Add(1)
			continue
		}
		l.downlink.Add(1)
	}
}
