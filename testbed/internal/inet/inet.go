// Package inet has what IP and UDP headers of user packets are built with.
package inet

// Lengths of headers without options, and fields of them.
const (
	IPv4HeaderLen = 20
	IPv6HeaderLen = 40
	UDPHeaderLen  = 8
	ProtocolUDP   = 17
	HopLimit      = 64
)

// Sum16 adds up 16-bit words (RFC 1071); an odd last octet counts as if a zero followed.
func Sum16(b []byte) uint32 {
	sum := uint32(0)
	for i := 0; i+1 < len(b); i += 2 {
		sum += uint32(b[i])<<8 | uint32(b[i+1])
	}
	if len(b)%2 == 1 {
		sum += uint32(b[len(b)-1]) << 8
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

// FoldUDP is Fold for UDP, in which 0 says that there is no checksum (RFC 768).
func FoldUDP(sum uint32) uint16 {
	if folded := Fold(sum); folded != 0 {
		return folded
	}
	return 0xffff
}
