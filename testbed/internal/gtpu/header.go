// Package gtpu reads and writes GTP-U (3GPP TS 29.281), the user plane's tunnelling protocol, with the PDU Session
// Container of TS 38.415.
//
// Headers are decoded and encoded here without allocation, because this happens for every packet. The rare path
// management messages are built and read with github.com/wmnsk/go-gtp.
package gtpu

import (
	"encoding/binary"
	"errors"
	"net/netip"

	"github.com/wmnsk/go-gtp/gtpv1/ie"
	"github.com/wmnsk/go-gtp/gtpv1/message"
)

// Port is the registered UDP port of GTP-U (TS 29.281 clause 4.4.2).
const Port = 2152

// Message types (TS 29.281 table 6.1-1).
const (
	TypeEchoRequest                  uint8 = 1
	TypeEchoResponse                 uint8 = 2
	TypeErrorIndication              uint8 = 26
	TypeSupportedExtensionHeadersNot uint8 = 31
	TypeEndMarker                    uint8 = 254
	TypeGPDU                         uint8 = 255
)

// ExtPDUSessionContainer is the extension header type of the PDU Session Container (TS 29.281 clause 5.2.2.7).
const ExtPDUSessionContainer uint8 = 0x85

// PDU types of the PDU Session Container (TS 38.415 clause 5.5.3.1).
const (
	PDUTypeDownlink uint8 = 0
	PDUTypeUplink   uint8 = 1
)

// NoQFI marks a header without a PDU Session Container.
const NoQFI = -1

const (
	flagsVersion1   = 0x20 // version 1 in the upper three bits
	versionMask     = 0xe0
	flagPT          = 0x10 // protocol type: GTP, not GTP'
	flagE           = 0x04 // extension header follows
	flagS           = 0x02 // sequence number is meaningful
	flagPN          = 0x01 // N-PDU number is meaningful
	mandatoryLen    = 8
	optionalLen     = 4    // sequence number, N-PDU number, next extension header type: present when E, S or PN is set
	extRequired     = 0x80 // upper bits 10 and 11: comprehension required by the endpoint (TS 29.281 figure 5.2.1-2)
	qfiMask         = 0x3f
	lenFieldOffset  = 2
	teidFieldOffset = 4
)

// Why a message cannot be used.
var (
	ErrShort   = errors.New("gtpu: message shorter than its header says")
	ErrVersion = errors.New("gtpu: not GTP version 1")
	ErrPrime   = errors.New("gtpu: GTP', not GTP")
	ErrLength  = errors.New("gtpu: extension header of length 0 or beyond the message")
	// ErrExtension reports an extension header that has to be understood and is not: Header.Unsupported is its type.
	ErrExtension = errors.New("gtpu: unsupported extension header that requires comprehension")
)

// Header is what a GTP-U header says.
type Header struct {
	Type    uint8
	TEID    uint32
	QFI     int   // of the PDU Session Container; NoQFI where there is none
	PDUType uint8 // of the PDU Session Container: PDUTypeDownlink or PDUTypeUplink
	Seq     uint16
	// Unsupported is the type of the extension header that made Parse return ErrExtension.
	Unsupported uint8
	// The payload is b[PayloadOffset : PayloadOffset+PayloadLength]; octets after it belong to nobody.
	PayloadOffset, PayloadLength int
}

// Payload returns the message's payload: the inner packet of a G-PDU, the information elements of the others.
func (h *Header) Payload(b []byte) []byte {
	return b[h.PayloadOffset : h.PayloadOffset+h.PayloadLength]
}

// Parse decodes the header at the start of b (TS 29.281 clause 5). It never reads beyond b.
//
// Where it fails with ErrExtension, Type, TEID, Seq and Unsupported are filled in, so that the sender can be told.
func Parse(b []byte) (Header, error) {
	h := Header{QFI: NoQFI}
	if len(b) < mandatoryLen {
		return h, ErrShort
	}
	flags := b[0]
	if flags&versionMask != flagsVersion1 {
		return h, ErrVersion
	}
	if flags&flagPT == 0 {
		return h, ErrPrime
	}
	h.Type = b[1]
	h.TEID = binary.BigEndian.Uint32(b[teidFieldOffset:])
	// The length counts everything after the mandatory part, so the optional fields too.
	end := mandatoryLen + int(binary.BigEndian.Uint16(b[lenFieldOffset:]))
	if end > len(b) {
		return h, ErrShort
	}
	offset := mandatoryLen
	if flags&(flagE|flagS|flagPN) != 0 {
		if end < mandatoryLen+optionalLen {
			return h, ErrShort
		}
		if flags&flagS != 0 {
			h.Seq = binary.BigEndian.Uint16(b[mandatoryLen:])
		}
		offset += optionalLen
		if flags&flagE != 0 {
			var err error
			if offset, err = h.walkExtensions(b[:end], offset); err != nil {
				return h, err
			}
		}
	}
	h.PayloadOffset, h.PayloadLength = offset, end-offset
	return h, nil
}

// walkExtensions follows the chain of extension headers that starts at offset and returns where it ends (clause 5.2).
func (h *Header) walkExtensions(b []byte, offset int) (int, error) {
	kind := b[offset-1]
	for kind != 0 {
		if offset >= len(b) {
			return 0, ErrLength
		}
		size := int(b[offset]) * 4 // the length is in units of four octets and counts itself and the next type
		if size == 0 || offset+size > len(b) {
			return 0, ErrLength
		}
		switch {
		case kind == ExtPDUSessionContainer:
			h.PDUType = b[offset+1] >> 4
			h.QFI = int(b[offset+2] & qfiMask)
		case kind&extRequired != 0:
			h.Unsupported = kind
			return 0, ErrExtension
		}
		kind = b[offset+size-1]
		offset += size
	}
	return offset, nil
}

// Lengths of the headers that AppendGPDU and AppendPlainGPDU write.
const (
	GPDULen      = mandatoryLen + optionalLen + 4
	PlainGPDULen = mandatoryLen
)

// AppendGPDU appends the header of a G-PDU with a PDU Session Container, to be followed by payloadLen octets.
//
// The container is the shortest one: PDU type and QFI, no QoS monitoring, no paging policy (TS 38.415 clause 5.5.2).
func AppendGPDU(dst []byte, teid uint32, pduType, qfi uint8, payloadLen int) []byte {
	dst = append(dst, flagsVersion1|flagPT|flagE, TypeGPDU)
	dst = binary.BigEndian.AppendUint16(dst, uint16(GPDULen-mandatoryLen+payloadLen))
	dst = binary.BigEndian.AppendUint32(dst, teid)
	return append(dst,
		0, 0, 0, ExtPDUSessionContainer,
		1, pduType<<4, qfi&qfiMask, 0,
	)
}

// AppendPlainGPDU appends the header of a G-PDU without extension headers, to be followed by payloadLen octets.
func AppendPlainGPDU(dst []byte, teid uint32, payloadLen int) []byte {
	dst = append(dst, flagsVersion1|flagPT, TypeGPDU)
	dst = binary.BigEndian.AppendUint16(dst, uint16(payloadLen))
	return binary.BigEndian.AppendUint32(dst, teid)
}

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
