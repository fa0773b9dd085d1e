package pfcp

import (
	"encoding/binary"

	"github.com/wmnsk/go-pfcp/ie"
)

// actedOn are the groups without which a message would ask for something else; all other groups may be absent.
var actedOn = map[uint16]bool{
	ie.CreatePDR: true, ie.CreateFAR: true, ie.CreateQER: true, ie.CreatedPDR: true, ie.UpdatePDR: true, ie.UpdateFAR: true,
	ie.UpdateQER: true, ie.RemovePDR: true, ie.RemoveFAR: true, ie.RemoveQER: true,
}

// WithoutUnreadable returns a message without those elements that may be absent and cannot be read, and how many these
// were: an optional element in error counts as absent (TS 29.244 clause 7.6). The octets are b's own where all is well.
func WithoutUnreadable(b []byte) (message []byte, ignored int) {
	head := 8
	if len(b) > 0 && b[0]&1 != 0 {
		head = 16
	}
	if len(b) < head {
		return b, 0
	}
	end := 4 + int(binary.BigEndian.Uint16(b[2:]))
	if end > len(b) || end < head {
		return b, 0
	}
	message = append([]byte(nil), b[:head]...)
	for rest := b[head:end]; len(rest) > 0; {
		size := elementHeader
		if len(rest) >= elementHeader {
			size += int(binary.BigEndian.Uint16(rest[2:]))
		}
		if size > len(rest) { // where the next one begins is not known
			return b, 0
		}
		if actedOn[binary.BigEndian.Uint16(rest)] || readable(rest[:size]) {
			message = append(message, rest[:size]...)
		} else {
			ignored++
		}
		rest = rest[size:]
	}
	if ignored == 0 {
		return b, 0
	}
	binary.BigEndian.PutUint16(message[2:], uint16(len(message)-4))
	return message, ignored
}

const elementHeader = 4

func readable(element []byte) (is bool) {
	defer func() {
		if recover() != nil {
			is = false
		}
	}()
	_, err := ie.Parse(element)
	return err == nil
}
