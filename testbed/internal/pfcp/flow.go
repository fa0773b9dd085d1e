package pfcp

import (
	"fmt"
	"net/netip"
	"strconv"
	"strings"
)

// PortRange is a closed range of port numbers.
type PortRange struct{ Low, High uint16 }

// Flow is a Flow Description: an IPFilterRule (RFC 6733 clause 4.3.1) as TS 29.212 clause 5.4.2 restricts it. It is
// written for the downlink: From is the network's side, To the terminal's.
type Flow struct {
	Protocol           int // -1 for any
	From, To           netip.Prefix
	FromPorts, ToPorts []PortRange // none for any
}

// anyProtocol stands for the keyword "ip".
const anyProtocol = -1

// ParseFlow reads a flow description such as "permit out 17 from 10.0.0.0/8 53 to assigned".
//
// "any" and "assigned" become the zero Prefix: the terminal's own address is checked against the PDI's UE IP Address.
// Only what TS 29.212 allows is accepted: action permit, direction out, no options, no negation.
func ParseFlow(text string) (Flow, error) {
	words := strings.Fields(text)
	if len(words) < 7 || words[0] != "permit" || words[1] != "out" || words[3] != "from" {
		return Flow{}, fmt.Errorf("flow description %q: expected permit out PROTOCOL from ADDRESS [PORTS] to ADDRESS [PORTS]", text)
	}
	flow := Flow{Protocol: anyProtocol}
	if words[2] != "ip" {
		protocol, err := strconv.ParseUint(words[2], 10, 8)
		if err != nil {
			return Flow{}, fmt.Errorf("flow description %q: protocol %q: expected ip, 0..255", text, words[2])
		}
		flow.Protocol = int(protocol)
	}
	var err error
	rest := words[4:]
	if flow.From, flow.FromPorts, rest, err = parseEnd(rest); err != nil {
		return Flow{}, fmt.Errorf("flow description %q: %w", text, err)
	}
	if len(rest) < 2 || rest[0] != "to" {
		return Flow{}, fmt.Errorf("flow description %q: \"to\" expected", text)
	}
	if flow.To, flow.ToPorts, rest, err = parseEnd(rest[1:]); err != nil {
		return Flow{}, fmt.Errorf("flow description %q: %w", text, err)
	}
	if len(rest) != 0 {
		return Flow{}, fmt.Errorf("flow description %q: %q not accepted", text, strings.Join(rest, " "))
	}
	return flow, nil
}

// parseEnd reads an address and, if they follow, its ports; it returns the words after them.
func parseEnd(words []string) (netip.Prefix, []PortRange, []string, error) {
	prefix, err := parseAddress(words[0])
	if err != nil {
		return netip.Prefix{}, nil, nil, err
	}
	words = words[1:]
	if len(words) == 0 || words[0] == "to" {
		return prefix, nil, words, nil
	}
	var ports []PortRange
	for _, part := range strings.Split(words[0], ",") {
		low, high, isRange := strings.Cut(part, "-")
		if !isRange {
			high = low
		}
		first, err1 := strconv.ParseUint(low, 10, 16)
		last, err2 := strconv.ParseUint(high, 10, 16)
		if err1 != nil || err2 != nil || first > last {
			return netip.Prefix{}, nil, nil, fmt.Errorf("ports %q: expected N, N-M, or a list of them", words[0])
		}
		ports = append(ports, PortRange{uint16(first), uint16(last)})
	}
	return prefix, ports, words[1:], nil
}

func parseAddress(word string) (netip.Prefix, error) {
	if word == "any" || word == "assigned" {
		return netip.Prefix{}, nil
	}
	if prefix, err := netip.ParsePrefix(word); err == nil {
		return prefix.Masked(), nil
	}
	address, err := netip.ParseAddr(word)
	if err != nil || address.Zone() != "" {
		return netip.Prefix{}, fmt.Errorf("address %q: expected any, assigned, an address, a prefix", word)
	}
	return netip.PrefixFrom(address, address.BitLen()), nil
}

// Any says that the flow accepts every packet.
func (f *Flow) Any() bool {
	return f.Protocol == anyProtocol && !f.From.IsValid() && !f.To.IsValid() && f.FromPorts == nil && f.ToPorts == nil
}

// Match says whether a packet belongs to the flow. The network's side comes first, whichever way the packet goes.
// hasPorts is false where the packet carries none (not TCP, UDP or SCTP, or not the first fragment).
func (f *Flow) Match(protocol uint8, network, terminal netip.Addr, networkPort, terminalPort uint16, hasPorts bool) bool {
	return (f.Protocol == anyProtocol || f.Protocol == int(protocol)) &&
		(!f.From.IsValid() || f.From.Contains(network)) &&
		(!f.To.IsValid() || f.To.Contains(terminal)) &&
		inPorts(f.FromPorts, networkPort, hasPorts) &&
		inPorts(f.ToPorts, terminalPort, hasPorts)
}

func inPorts(ranges []PortRange, port uint16, hasPorts bool) bool {
	if ranges == nil {
		return true
	}
	for _, r := range ranges {
		if hasPorts && r.Low <= port && port <= r.High {
			return true
		}
	}
	return false
}
