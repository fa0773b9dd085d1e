package gtpu

import (
	"net/netip"

	"github.com/wmnsk/go-gtp/gtpv1/ie"
	"github.com/wmnsk/go-gtp/gtpv1/message"
)

// encode returns a message's octets, nil if it has none.
func encode(m message.Message) []byte {
	b := make([]byte, m.MarshalLen())
	if m.MarshalTo(b) != nil {
		return nil
	}
	return b
}

// EchoAnswer returns the Echo Response to an Echo Request (TS 29.281 clause 7.2): the same sequence number, and a
// Recovery element of 0, which GTP-U gives no meaning to.
func EchoAnswer(request []byte) ([]byte, bool) {
	header, err := Parse(request)
	if err != nil || header.Type != TypeEchoRequest {
		return nil, false
	}
	return encode(message.NewEchoResponse(header.Seq, ie.NewRecovery(0))), true
}

// ErrorIndication returns the message that tells a peer that its G-PDU's tunnel is not known here (clause 7.3.1):
// the TEID it used and the address it sent to.
func ErrorIndication(teid uint32, local netip.Addr) []byte {
	return encode(message.NewErrorIndication(0, 0, ie.NewTEIDDataI(teid), ie.NewGSNAddressByIP(local.AsSlice())))
}

// SupportedExtensionHeaders returns the notification that answers an extension header that is not understood
// (clause 7.2.3), with the list of those that are.
func SupportedExtensionHeaders(seq uint16) []byte {
	return encode(message.NewSupportedExtensionHeaderNotification(0, seq, ie.NewExtensionHeaderTypeList(ExtPDUSessionContainer)))
}
