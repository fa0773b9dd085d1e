// Package inet reads addresses, and has what IP and UDP headers of user packets are built with.
package inet

import (
	"fmt"
	"net/netip"
	"strings"
)

// Lengths of headers without options, and fields of them.
const (
	IPv4HeaderLen = 20
	IPv6HeaderLen = 40
	UDPHeaderLen  = 8
	ProtocolUDP   = 17
	HopLimit      = 64
)

// Sum16 adds up 16-bit words (RFC 1071).
func Sum16(b []byte) uint32 {
	sum := uint32(0)
	for i := 0; i+1 < len(b); i += 2 {
		sum += uint32(b[i])<<8 | uint32(b[i+1])
	}
	return sum
}

// Fold turns a sum of words into a checksum.
func Fold(sum uint32) uint16 {
	for sum > 0xffff {
		sum = sum>>16 + sum&0xffff
	}
	return ^uint16(sum)
}

// Parse reads "address" or "address:port" ("[address]:port" for IPv6); port is used where the text has none.
func Parse(text string, port uint16) (netip.AddrPort, error) {
	address, err := netip.ParseAddr(strings.Trim(text, "[]"))
	if err != nil {
		var both netip.AddrPort
		both, err = netip.ParseAddrPort(text)
		address, port = both.Addr(), both.Port()
	}
	if err != nil || port == 0 || address.Zone() != "" {
		return netip.AddrPort{}, fmt.Errorf("%q; expected ADDRESS or ADDRESS:PORT, for IPv6 [ADDRESS]:PORT", text)
	}
	return netip.AddrPortFrom(address.Unmap(), port), nil
}
