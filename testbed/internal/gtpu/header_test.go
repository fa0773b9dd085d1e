package gtpu

import (
	"encoding/hex"
	"testing"
)

func octets(t *testing.T, text string) []byte {
	t.Helper()
	b, err := hex.DecodeString(text)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// The messages are written out by hand from the figures of TS 29.281 and TS 38.415.
func TestParse(t *testing.T) {
	inner := "4500001400000000401100000a3c00020a670002"
	for _, test := range []struct {
		name, message string
		want          Header
	}{
		{
			"mandatory header only", "30ff0014" + "00000001" + inner,
			Header{Type: TypeGPDU, TEID: 1, QFI: NoQFI, PayloadOffset: 8, PayloadLength: 20},
		},
		{
			"sequence number", "32ff0018" + "0000abcd" + "12340000" + inner,
			Header{Type: TypeGPDU, TEID: 0xabcd, QFI: NoQFI, Seq: 0x1234, PayloadOffset: 12, PayloadLength: 20},
		},
		{
			"N-PDU number only", "31ff0018" + "00000001" + "0000ff00" + inner,
			Header{Type: TypeGPDU, TEID: 1, QFI: NoQFI, PayloadOffset: 12, PayloadLength: 20},
		},
		{
			"uplink PDU Session Container, QFI 9", "34ff001c" + "00000001" + "00000085" + "01100900" + inner,
			Header{Type: TypeGPDU, TEID: 1, QFI: 9, PDUType: PDUTypeUplink, PayloadOffset: 16, PayloadLength: 20},
		},
		{
			"downlink container with paging policy and reflective QoS", "34ff0020" + "00000001" + "00000085" + "0200c5a000000000" + inner,
			Header{Type: TypeGPDU, TEID: 1, QFI: 5, PDUType: PDUTypeDownlink, PayloadOffset: 20, PayloadLength: 20},
		},
		{
			"unknown header that needs no comprehension before the container",
			"34ff0020" + "00000001" + "00000020" + "01beef85" + "01103f00" + inner,
			Header{Type: TypeGPDU, TEID: 1, QFI: 63, PDUType: PDUTypeUplink, PayloadOffset: 20, PayloadLength: 20},
		},
		{
			"echo request", "3201000400000000" + "00070000",
			Header{Type: TypeEchoRequest, QFI: NoQFI, Seq: 7, PayloadOffset: 12},
		},
		{
			"octets behind the message", "30ff0002" + "00000001" + "aabb" + "ccdd",
			Header{Type: TypeGPDU, TEID: 1, QFI: NoQFI, PayloadOffset: 8, PayloadLength: 2},
		},
	} {
		t.Run(test.name, func(t *testing.T) {
			got, err := Parse(octets(t, test.message))
			if err != nil || got != test.want {
				t.Fatalf("got %+v, %v; want %+v", got, err, test.want)
			}
		})
	}
}

func TestParseRefuses(t *testing.T) {
	for _, test := range []struct {
		name, message string
		want          error
	}{
		{"nothing", "", ErrShort},
		{"seven octets", "30ff0000000000", ErrShort},
		{"length beyond the datagram", "30ff000200000001aa", ErrShort},
		{"flags without the optional part", "34ff000000000001", ErrShort},
		{"GTP version 2", "48200000000000010000", ErrVersion},
		{"GTP'", "20ff000000000001", ErrPrime},
		{"extension header of length 0", "34ff0008" + "00000001" + "00000085" + "00000000", ErrLength},
		{"extension header beyond the message", "34ff0008" + "00000001" + "00000085" + "02100900", ErrLength},
		{"chain that goes on after the end", "34ff0008" + "00000001" + "00000085" + "01100985", ErrLength},
		{"extension header that is needed and unknown", "34ff0008" + "00000001" + "00000084" + "01000000", ErrExtension},
	} {
		t.Run(test.name, func(t *testing.T) {
			if got, err := Parse(octets(t, test.message)); err != test.want {
				t.Fatalf("got %+v, %v; want %v", got, err, test.want)
			}
		})
	}
	header, _ := Parse(octets(t, "36ff0008"+"00000005"+"00030084"+"01000000"))
	if header.Unsupported != 0x84 || header.TEID != 5 || header.Seq != 3 {
		t.Errorf("ErrExtension leaves %+v, want extension 0x84, TEID 5 and sequence number 3", header)
	}
}
