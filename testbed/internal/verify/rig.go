// Package verify finds out what a UPF does with the packets of a session, whatever it has said on N4: it sends packets
// from both sides of the UPF and looks which come out on the other.
//
// Clauses in comments are those of 3GPP TS 29.244 Release 17 where no other document is named.
package verify

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"net/netip"
	"strings"
	"sync"
	"time"

	"slicepilot/userplane/internal/gtpu"
	"slicepilot/userplane/internal/n4"
)

// Place is where packets are sent from and looked for.
type Place struct {
	// N6 is an address of the data network, which the UPF's uplink is routed to and which is there to be bound to.
	N6 netip.Addr
	// N6Namespace is the network namespace that has the address: a file such as /run/netns/NAME. Empty: the program's.
	N6Namespace string
}

// Direction is that of a packet, as JSON names it.
type Direction string

// Directions.
const (
	Uplink   Direction = "ul"
	Downlink Direction = "dl"
)

// terminalPort is the UDP port of the terminal's packets.
const terminalPort = 5000

// pollEvery is how often the rig looks whether packets have arrived.
const pollEvery = 500 * time.Microsecond

// Rig is the radio side and the data network of one session: a gNB's N3 socket and a server's socket behind N6.
type Rig struct {
	session n4.SessionState
	number  uint64
	n3, n6  *net.UDPConn
	server  netip.AddrPort
	readers sync.WaitGroup

	mu        sync.Mutex
	volley    uint32
	arrived   map[uint32]map[uint32]struct{} // by volley: the numbers of its packets that came
	unwelcome bool                           // the UPF has sent an Error Indication for the uplink tunnel
}

// Open binds both sockets.
func Open(session n4.SessionState, place Place) (*Rig, error) {
	switch {
	case !session.GNB.IsValid():
		return nil, errors.New("the session has no gNB; accepted: one that was established with gnb and gnb_teid")
	case place.N6.Is4() != session.UE.Is4():
		return nil, fmt.Errorf("n6: %s; accepted: an address of the UE's family (%s)", place.N6, session.UE)
	case session.N3.Is4() != session.GNB.Is4():
		return nil, fmt.Errorf("gnb: %s; accepted: an address of the family of the UPF's N3, %s", session.GNB, session.N3)
	}
	r := &Rig{session: session, number: rand.Uint64(), arrived: map[uint32]map[uint32]struct{}{}}
	var err error
	if r.n3, err = listenUDP("", netip.AddrPortFrom(session.GNB, gtpu.Port)); err != nil {
		return nil, fmt.Errorf("the gNB's N3 socket: %w", err)
	}
	if r.n6, err = listenUDP(place.N6Namespace, netip.AddrPortFrom(place.N6, 0)); err != nil {
		r.n3.Close()
		return nil, fmt.Errorf("the socket behind N6: %w", err)
	}
	r.server = netip.AddrPortFrom(place.N6, r.n6.LocalAddr().(*net.UDPAddr).AddrPort().Port())
	r.readers.Add(2)
	go r.read(r.n6, func(b []byte) { r.note(b) })
	go r.read(r.n3, r.fromUPF)
	return r, nil
}

// Close closes the sockets.
func (r *Rig) Close() {
	r.n3.Close()
	r.n6.Close()
	r.readers.Wait()
}

func (r *Rig) read(conn *net.UDPConn, take func([]byte)) {
	defer r.readers.Done()
	buffer := make([]byte, 1<<16)
	for {
		n, _, err := conn.ReadFromUDPAddrPort(buffer)
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err == nil { // any other error is one of an earlier datagram (ICMP)
			take(buffer[:n])
		}
	}
}

// fromUPF takes what the UPF sends to the gNB.
func (r *Rig) fromUPF(b []byte) {
	if teid, _, ok := gtpu.ReadErrorIndication(b); ok && teid == r.session.TEID {
		r.mu.Lock()
		r.unwelcome = true
		r.mu.Unlock()
		return
	}
	header, err := gtpu.Parse(b)
	if err != nil || header.Type != gtpu.TypeGPDU || header.TEID != r.session.GNBTEID {
		return
	}
	if payload, ok := userPayload(header.Payload(b)); ok {
		r.note(payload)
	}
}

func (r *Rig) note(payload []byte) {
	m, ok := readMark(payload)
	if !ok || m.rig != r.number {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if numbers := r.arrived[m.volley]; numbers != nil {
		numbers[m.number] = struct{}{}
	}
}

// Volley is a number of packets sent one after the other in one direction.
type Volley struct {
	number uint32
	sent   int
	took   time.Duration // of its second half
}

// Send sends n packets of size octets, from their IP header on, one every interval.
func (r *Rig) Send(direction Direction, n, size int, interval time.Duration) (Volley, error) {
	r.mu.Lock()
	r.volley++
	v := Volley{number: r.volley, sent: n}
	r.arrived[v.number] = make(map[uint32]struct{}, n)
	r.mu.Unlock()
	start := time.Now()
	var half time.Time
	for i := range n {
		time.Sleep(time.Until(start.Add(time.Duration(i) * interval)))
		if i == n/2 {
			half = time.Now()
		}
		if err := r.sendOne(direction, size, mark{r.number, v.number, uint32(i)}); err != nil {
			return v, fmt.Errorf("%s: sending: %w", direction, err)
		}
	}
	v.took = time.Since(half)
	return v, nil
}

func (r *Rig) sendOne(direction Direction, size int, m mark) error {
	s := &r.session
	packet := userPacket(netip.AddrPortFrom(s.UE, terminalPort), r.server, size, m)
	if direction == Downlink {
		payload, _ := userPayload(packet)
		_, err := r.n6.WriteToUDPAddrPort(payload, netip.AddrPortFrom(s.UE, terminalPort))
		return err
	}
	var datagram []byte
	if s.QFI != 0 {
		datagram = gtpu.AppendGPDU(nil, s.TEID, gtpu.PDUTypeUplink, s.QFI, len(packet))
	} else {
		datagram = gtpu.AppendPlainGPDU(nil, s.TEID, len(packet))
	}
	_, err := r.n3.WriteToUDPAddrPort(append(datagram, packet...), netip.AddrPortFrom(s.N3, gtpu.Port))
	return err
}

// Await returns how many packets of a volley have arrived: at once when all have, after patience at the latest.
func (r *Rig) Await(v Volley, patience time.Duration) int {
	deadline := time.Now().Add(patience)
	for {
		arrived := r.since(v, 0)
		if arrived == v.sent || time.Now().After(deadline) {
			return arrived
		}
		time.Sleep(pollEvery)
	}
}

// since counts the packets of a volley that have arrived, from a number on.
func (r *Rig) since(v Volley, first int) int {
	r.mu.Lock()
	defer r.mu.Unlock()
	count := 0
	for number := range r.arrived[v.number] {
		if int(number) >= first {
			count++
		}
	}
	return count
}

// describe says between which addresses the packets of a direction travel.
func (r *Rig) describe(direction Direction) string {
	s := &r.session
	var b strings.Builder
	if direction == Uplink {
		fmt.Fprintf(&b, "UE %s through TEID %#x at %s to %s", s.UE, s.TEID, s.N3, r.server.Addr())
	} else {
		fmt.Fprintf(&b, "%s to UE %s through TEID %#x at %s", r.server.Addr(), s.UE, s.GNBTEID, s.GNB)
	}
	return b.String()
}
