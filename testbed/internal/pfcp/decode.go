// Package pfcp turns PFCP messages (3GPP TS 29.244), as github.com/wmnsk/go-pfcp decodes them, into plain Go values,
// and holds what both ends of N4 need around them: decoding that survives any input, rejections with a cause, and
// the memory of answers that makes retransmitted requests harmless.
package pfcp

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"

	gopfcp "github.com/wmnsk/go-pfcp"
	"github.com/wmnsk/go-pfcp/ie"
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
	_, end := bounds(b)
	if end == 0 {
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

// bounds are where a message's elements begin and end; 0 where it is shorter than its header says.
func bounds(b []byte) (head, end int) {
	head = 8
	if len(b) > 0 && b[0]&1 != 0 {
		head = 16
	}
	if len(b) < head {
		return 0, 0
	}
	if end = 4 + int(binary.BigEndian.Uint16(b[2:])); end > len(b) || end < head {
		return 0, 0
	}
	return head, end
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

// actedOn are the groups without which a message would ask for something else; all other groups may be absent.
var actedOn = map[uint16]bool{
	ie.CreatePDR: true, ie.CreateFAR: true, ie.CreateQER: true, ie.CreatedPDR: true, ie.UpdatePDR: true, ie.UpdateFAR: true,
	ie.UpdateQER: true, ie.RemovePDR: true, ie.RemoveFAR: true, ie.RemoveQER: true,
}

// WithoutUnreadable returns a message without those elements that may be absent and cannot be read, and how many these
// were: an optional element in error counts as absent (TS 29.244 clause 7.6). The octets are b's own where all is well.
func WithoutUnreadable(b []byte) (message []byte, ignored int) {
	head, end := bounds(b)
	if end == 0 {
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

// Reject is why a request is refused: what the answer's Cause, Offending IE and Failed Rule ID say (clause 8.2.1).
type Reject struct {
	Cause     uint8
	Offending uint16 // IE type, 0 for none
	Rule      *RuleID
	Reason    string // for the log
}

// RuleID names one rule of a session; Kind is one of ie.RuleIDTypePDR and its siblings (clause 8.2.80).
type RuleID struct {
	Kind uint8
	ID   uint32
}

func (r *Reject) Error() string {
	text := fmt.Sprintf("cause %d: %s", r.Cause, r.Reason)
	if r.Offending != 0 {
		text += fmt.Sprintf(" (IE type %d)", r.Offending)
	}
	return text
}

// IEs returns the information elements that carry the rejection, Cause first.
func (r *Reject) IEs() []*ie.IE {
	ies := []*ie.IE{ie.NewCause(r.Cause)}
	if r.Offending != 0 {
		ies = append(ies, ie.NewOffendingIE(r.Offending))
	}
	if r.Rule != nil {
		ies = append(ies, ie.NewFailedRuleID(r.Rule.Kind, r.Rule.ID))
	}
	return ies
}

// Missing rejects a request that lacks a mandatory information element.
func Missing(kind uint16, reason string) *Reject {
	return &Reject{Cause: ie.CauseMandatoryIEMissing, Offending: kind, Reason: reason + " missing"}
}

// Incorrect rejects a request for the value of an information element.
func Incorrect(kind uint16, reason string) *Reject {
	return &Reject{Cause: ie.CauseMandatoryIEIncorrect, Offending: kind, Reason: reason}
}

// RuleFailure rejects a request because one rule cannot be installed.
func RuleFailure(kind uint8, id uint32, offending uint16, reason string) *Reject {
	rule := &RuleID{kind, id}
	return &Reject{Cause: ie.CauseRuleCreationModificationFailure, Offending: offending, Rule: rule, Reason: reason}
}

// VersionNotSupported returns the answer to a request of another version of PFCP, whose sequence number is where version 1
// has it (clause 7.6.1); nil to an answer.
func VersionNotSupported(request Header) []byte {
	if IsAnswer(request.Type) {
		return nil
	}
	octets, _ := Encode(message.NewVersionNotSupportedResponse(request.Seq))
	return octets
}

// IsAnswer tells answers from requests by the message type (clause 7.3): up to Version Not Supported Response (11),
// which has no request of its own, answers are even; after it they are odd.
func IsAnswer(messageType uint8) bool {
	if messageType < message.MsgTypeVersionNotSupportedResponse {
		return messageType%2 == 0
	}
	return messageType%2 == 1
}

// FSEID is an end of a session (clause 8.2.37): its identifier and the address to reach it at.
func FSEID(seid uint64, address netip.Addr) *ie.IE {
	if address.Is4() {
		return ie.NewFSEID(seid, address.AsSlice(), nil)
	}
	return ie.NewFSEID(seid, nil, address.AsSlice())
}
