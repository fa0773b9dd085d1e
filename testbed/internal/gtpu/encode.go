package gtpu

import "encoding/binary"

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
