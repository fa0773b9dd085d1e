// Package pfcp turns PFCP messages (3GPP TS 29.244), as github.com/wmnsk/go-pfcp decodes them, into plain Go values,
// and holds what both ends of N4 need around them: decoding that survives any input, rejections with a cause, and
// the memory of answers that makes retransmitted requests harmless.
package pfcp

import (
	"encoding/binary"
	"errors"
	"fmt"

	gopfcp "github.com/wmnsk/go-pfcp"
	"github.com/wmnsk/go-pfcp/message"
)

// Port is the registered UDP port of PFCP (TS 29.244 clause 4.2.2).
const Port = 8805

const version = 1

// Why octets are not a message.
var (
	ErrShort   = errors.New("pfcp: message shorter than its header says")
	ErrVersion = errors.New("pfcp: not PFCP version 1")
	ErrType    = errors.New("pfcp: unknown message type")
)

func init() {
	// The library logs every message it does not know, which hands an attacker our standard error.
	gopfcp.DisableLogging()
}

// Header is the part of a message that stands before its information elements (TS 29.244 clause 7.2.2).
type Header struct {
	Type    uint8
	HasSEID bool
	SEID    uint64
	Seq     uint32 // 24 bits
}

// PeekHeader reads the header without touching the rest. With ErrVersion, Seq may still be used for an answer.
func PeekHeader(b []byte) (Header, error) {
	if len(b) < 8 {
		return Header{}, ErrShort
	}
	h := Header{Type: b[1], HasSEID: b[0]&1 != 0}
	seq := b[4:]
	if h.HasSEID {
		if len(b) < 16 {
			return Header{}, ErrShort
		}
		h.SEID = binary.BigEndian.Uint64(seq)
		seq = b[12:]
	}
	h.Seq = uint32(seq[0])<<16 | uint32(seq[1])<<8 | uint32(seq[2])
	if b[0]>>5 != version {
		return h, ErrVersion
	}
	return h, nil
}

// Decode decodes one message. It never panics: what makes the library panic comes back as an error.
//
// The message keeps references into b. Octets beyond the header's length are ignored (a message that follows on,
// clause 7.2.2.4.2, is not served).
func Decode(b []byte) (m message.Message, err error) {
	h, err := PeekHeader(b)
	if err != nil {
		return nil, err
	}
	if !known(h.Type) {
		return nil, fmt.Errorf("%w %d", ErrType, h.Type)
	}
	end := 4 + int(binary.BigEndian.Uint16(b[2:]))
	least := 8
	if h.HasSEID {
		least = 16
	}
	if end > len(b) || end < least {
		return nil, ErrShort
	}
	defer func() {
		if r := recover(); r != nil {
			m, err = nil, fmt.Errorf("pfcp: malformed message type %d: %v", h.Type, r)
		}
	}()
	if m, err = message.Parse(b[:end:end]); err != nil {
		return nil, fmt.Errorf("pfcp: malformed message type %d: %w", h.Type, err)
	}
	return m, nil
}

// Encode returns a message's octets.
func Encode(m message.Message) ([]byte, error) {
	b := make([]byte, m.MarshalLen())
	if err := m.MarshalTo(b); err != nil {
		return nil, fmt.Errorf("pfcp: encoding %s: %w", m.MessageTypeName(), err)
	}
	return b, nil
}

// known says whether a type is one of TS 29.244 table 7.3-1 that the library decodes.
func known(kind uint8) bool {
	return kind >= message.MsgTypeHeartbeatRequest && kind <= message.MsgTypeSessionSetDeletionResponse ||
		kind >= message.MsgTypeSessionEstablishmentRequest && kind <= message.MsgTypeSessionReportResponse
}
