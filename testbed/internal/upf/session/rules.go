package session

import (
	"net/netip"
	"sync/atomic"

	"slicepilot/userplane/internal/pfcp"
	"slicepilot/userplane/internal/upf/netio"
)

// Rules are the compiled rules of a session, best precedence first. Immutable.
type Rules struct {
	Tunnel []PDR // for packets that arrive in a GTP-U tunnel
	Plain  []PDR // for packets that arrive at the TUN device
}

// PDR is a compiled Packet Detection Rule with everything that happens to its packets.
type PDR struct {
	ID     uint16
	TEID   uint32
	Uplink bool // from the terminal: the side that QERs and URRs count

	qfis    uint64 // bit i: QFI i is accepted; 0: whatever comes
	ue4     Address
	ue6     Address
	hasUE   bool
	ue6Bits int
	flows   []pfcp.Flow // any of them; none: every packet

	FAR     *FAR
	QFI     int // to mark packets with when they enter a tunnel; -1 for none
	closed  bool
	meters  []metered
	Metered bool // a clock reading is needed for Admit
	usages  []*Usage
}

type metered struct {
	rate  Rate
	meter *Meter
}

// FAR is a compiled Forwarding Action Rule. It is kept as long as its rule is not updated.
type FAR struct {
	ID          uint32
	Forward     bool
	Buffer      bool
	notify      bool
	BufferLimit int
	ToCore      bool // without a tunnel, through the TUN device

	Tunnelled bool // into the tunnel below
	PDUType   uint8
	Peer      Peer
	To        netio.Sockaddr

	version  uint64
	torn     atomic.Bool
	notified atomic.Bool
}

// Peer is the far end of a tunnel.
type Peer struct {
	Address netip.Addr
	TEID    uint32
}

// Torn says that the peer has answered with an Error Indication: nothing is sent until the rule is updated.
func (f *FAR) Torn() bool { return f.torn.Load() }

// Tear stops the tunnel; it returns whether it was in use.
func (f *FAR) Tear() bool { return f.Tunnelled && f.torn.CompareAndSwap(false, true) }

// Notify says, once, that the CP function wants to hear of a packet buffered.
func (f *FAR) Notify() bool { return f.notify && f.notified.CompareAndSwap(false, true) }

// Renotify takes back a Notify that could not be passed on.
func (f *FAR) Renotify() { f.notified.Store(false) }

// MatchTunnel returns the rule for a packet that came through one of our tunnels, nil for none. qfi is -1 where the
// packet carries none.
func (r *Rules) MatchTunnel(teid uint32, qfi int, p *Packet) *PDR {
	for i := range r.Tunnel {
		rule := &r.Tunnel[i]
		if rule.TEID == teid && rule.acceptsQFI(qfi) && rule.acceptsPacket(p) {
			return rule
		}
	}
	return nil
}

// MatchPlain returns the rule for a packet that came from the data network, nil for none.
func (r *Rules) MatchPlain(p *Packet) *PDR {
	for i := range r.Plain {
		if rule := &r.Plain[i]; rule.acceptsPacket(p) {
			return rule
		}
	}
	return nil
}

func (p *PDR) acceptsQFI(qfi int) bool {
	return p.qfis == 0 || qfi >= 0 && p.qfis>>uint(qfi)&1 != 0
}

func (p *PDR) acceptsPacket(packet *Packet) bool {
	terminal, network := packet.Src, packet.Dst
	if !p.Uplink {
		terminal, network = packet.Dst, packet.Src
	}
	if p.hasUE && !p.isUE(terminal) {
		return false
	}
	return len(p.flows) == 0 || p.acceptsFlow(packet, terminal, network)
}

func (p *PDR) isUE(a Address) bool {
	if a.IsIPv4() {
		return a == p.ue4
	}
	return p.ue6Bits == 128 && a == p.ue6 || p.ue6Bits == 64 && a.Prefix64() == p.ue6
}

func (p *PDR) acceptsFlow(packet *Packet, terminal, network Address) bool {
	t := packet.transport()
	terminalPort, networkPort := t.srcPort, t.dstPort
	if !p.Uplink {
		terminalPort, networkPort = t.dstPort, t.srcPort
	}
	for i := range p.flows {
		if p.flows[i].Match(t.protocol, network.netip(), terminal.netip(), networkPort, terminalPort, t.hasPorts) {
			return true
		}
	}
	return false
}

// Verdict is what QoS enforcement says to a packet.
type Verdict uint8

// Verdicts.
const (
	Pass Verdict = iota
	GateClosed
	OverRate
	QuotaSpent
)

// Admit enforces gates, quotas and maximum bit rates. A packet that the second of two rates refuses has still used up
// its share of the first.
func (p *PDR) Admit(size int, nowNs int64) Verdict {
	if p.closed {
		return GateClosed
	}
	for _, usage := range p.usages {
		if usage.Exhausted() {
			return QuotaSpent
		}
	}
	for i := range p.meters {
		if m := &p.meters[i]; !m.meter.Allow(m.rate, size, nowNs) {
			return OverRate
		}
	}
	return Pass
}

// Count adds a packet that passes to the volumes and tells events what this sets off. An event for which there is no
// room is set off again by the next packet.
func (p *PDR) Count(size int, s *Session, events chan<- Event) {
	for _, usage := range p.usages {
		event := usage.Count(p.Uplink, size)
		if event == UsageNone {
			continue
		}
		kind := EventVolume
		if event == UsageQuota {
			kind = EventVolumeQuota
		}
		select {
		case events <- Event{Kind: kind, Session: s, Usage: usage}:
		default:
			usage.Rearm(event)
		}
	}
}
