package session

import (
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
	Uplink bool // from the terminal

	qfis    uint64 // bit i: QFI i is accepted; 0: any
	ue4     Address
	ue6     Address
	hasUE   bool
	ue6Bits int
	// For some flows only, which are not told apart here: packets go by a rule of lower precedence.
	someFlows bool

	FAR    FAR
	QFI    int  // to mark packets with when they enter a tunnel; -1 for none
	Closed bool // a QER's gate for this direction is closed
}

// FAR is a compiled Forwarding Action Rule.
type FAR struct {
	Forward bool // without it packets are dropped
	ToCore  bool // without a tunnel, through the TUN device

	Tunnelled bool // into the tunnel below
	PDUType   uint8
	Peer      pfcp.Tunnel
	To        netio.Sockaddr
}

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
	terminal := packet.Src
	if !p.Uplink {
		terminal = packet.Dst
	}
	return !p.someFlows && (!p.hasUE || p.isUE(terminal))
}

func (p *PDR) isUE(a Address) bool {
	if a.IsIPv4() {
		return a == p.ue4
	}
	return p.ue6Bits == 128 && a == p.ue6 || p.ue6Bits == 64 && a.Prefix64() == p.ue6
}
