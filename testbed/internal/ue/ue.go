// Package ue is a terminal with an IP stack: a TUN device whose packets go through a GTP-U tunnel to a UPF and back, and
// a user that asks a web server for octets through it, again and again.
package ue

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"os"
	"strconv"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

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

// Packets are those of a link so far.
type Packets struct {
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

// Packets says what went through so far.
func (l *Link) Packets() Packets {
	return Packets{l.uplink.Load(), l.downlink.Load(), l.foreign.Load(), l.discarded.Load()}
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

const (
	blockBytes = 64 << 10
	maxAnswer  = 1 << 40
)

type connection struct{}

// Serve answers GET /OCTETS with so many octets, at ?rate=BITS a second at most, until the context ends.
//
// The rate is the kernel's pacing of the connection (socket(7), SO_MAX_PACING_RATE).
func Serve(ctx context.Context, listener net.Listener) error {
	server := &http.Server{
		Handler:           http.HandlerFunc(answer),
		ReadHeaderTimeout: 10 * time.Second,
		ConnContext: func(ctx context.Context, c net.Conn) context.Context {
			return context.WithValue(ctx, connection{}, c)
		},
	}
	stop := context.AfterFunc(ctx, func() { _ = server.Close() })
	defer stop()
	if err := server.Serve(listener); !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}

func answer(w http.ResponseWriter, r *http.Request) {
	octets, err := strconv.ParseInt(r.URL.Path[1:], 10, 64)
	if r.Method != http.MethodGet || err != nil || octets < 0 || octets > maxAnswer {
		http.Error(w, "expected GET /OCTETS", http.StatusBadRequest)
		return
	}
	if text := r.URL.Query().Get("rate"); text != "" {
		rate, err := strconv.ParseUint(text, 10, 63)
		if err != nil || rate < 8 {
			http.Error(w, "rate: expected bits a second", http.StatusBadRequest)
			return
		}
		if err := pace(r, rate/8); err != nil {
			http.Error(w, err.Error(), http.StatusInternalServerError)
			return
		}
	}
	w.Header().Set("Content-Length", strconv.FormatInt(octets, 10))
	block := make([]byte, blockBytes)
	for octets > 0 {
		n, err := w.Write(block[:min(octets, blockBytes)])
		if err != nil {
			return
		}
		octets -= int64(n)
	}
}

// pace bounds what a request's connection sends, in octets a second.
func pace(r *http.Request, rate uint64) error {
	c, ok := r.Context().Value(connection{}).(*net.TCPConn)
	if !ok {
		return errors.New("not a TCP connection")
	}
	raw, err := c.SyscallConn()
	if err != nil {
		return err
	}
	var failure error
	err = raw.Control(func(fd uintptr) {
		failure = unix.SetsockoptUint64(int(fd), unix.SOL_SOCKET, unix.SO_MAX_PACING_RATE, rate)
	})
	return errors.Join(err, failure)
}

// User asks a server for octets by HTTP again and again, on a new connection each time, as curl in a loop does.
type User struct {
	URL    string
	From   netip.Addr
	Device string // by which packets leave, whatever the routes are
	Pause  time.Duration

	mu    sync.Mutex
	count Count
}

// Count is what a user has had so far.
type Count struct {
	Answers  uint64 `json:"answers"`
	Octets   uint64 `json:"octets"`
	Failures uint64 `json:"failures"`
	Failure  string `json:"failure,omitempty"` // the last
}

// Run asks until the context ends.
func (u *User) Run(ctx context.Context) {
	dialer := &net.Dialer{
		LocalAddr: &net.TCPAddr{IP: u.From.AsSlice()},
		Timeout:   10 * time.Second,
		Control: func(_, _ string, raw syscall.RawConn) error {
			var failure error
			err := raw.Control(func(fd uintptr) { failure = unix.BindToDevice(int(fd), u.Device) })
			return errors.Join(err, failure)
		},
	}
	client := &http.Client{Transport: &http.Transport{DialContext: dialer.DialContext, DisableKeepAlives: true}}
	for ctx.Err() == nil {
		octets, err := u.ask(ctx, client)
		u.mu.Lock()
		u.count.Octets += uint64(octets)
		if err == nil {
			u.count.Answers++
		} else if ctx.Err() == nil {
			u.count.Failures++
			u.count.Failure = err.Error()
		}
		u.mu.Unlock()
		select {
		case <-ctx.Done():
		case <-time.After(u.Pause):
		}
	}
}

// ask asks once, and says how many octets have come.
func (u *User) ask(ctx context.Context, client *http.Client) (int64, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, u.URL, nil)
	if err != nil {
		return 0, err
	}
	response, err := client.Do(request)
	if err != nil {
		return 0, err
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK {
		return 0, fmt.Errorf("%s: %s", u.URL, response.Status)
	}
	return io.Copy(io.Discard, response.Body)
}

// Count says what the user has had so far.
func (u *User) Count() Count {
	u.mu.Lock()
	defer u.mu.Unlock()
	return u.count
}
