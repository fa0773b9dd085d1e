package gtpu

import (
	"bytes"
	"testing"
)

// FuzzParse holds that Parse stays inside the message and agrees with what is written.
func FuzzParse(f *testing.F) {
	for _, seed := range [][]byte{
		append(AppendGPDU(nil, 1, PDUTypeUplink, 9, 4), 1, 2, 3, 4), {0x30, 0xfe, 0, 0, 0, 0, 0, 7},
		{0x36, 0xff, 0, 12, 0, 0, 0, 1, 0, 1, 0, 0x20, 1, 0, 0, 0x85, 1, 0x10, 9, 0},
		{0x34, 0xff, 0, 8, 0, 0, 0, 1, 0, 0, 0, 0x84, 1, 0, 0, 0},
	} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		header, err := Parse(b)
		if err != nil {
			return
		}
		payload := header.Payload(b) // panics where it is not inside b
		if header.QFI < NoQFI || header.QFI > 63 {
			t.Fatalf("QFI %d", header.QFI)
		}
		if header.Type != TypeGPDU || header.QFI == NoQFI {
			return
		}
		again := append(AppendGPDU(nil, header.TEID, header.PDUType, uint8(header.QFI), len(payload)), payload...)
		second, err := Parse(again)
		if err != nil || second.TEID != header.TEID || second.QFI != header.QFI || second.PDUType != header.PDUType ||
			!bytes.Equal(second.Payload(again), payload) {
			t.Fatalf("%x was read as %+v; written again it is %+v, %v", b, header, second, err)
		}
	})
}

// FuzzSignalling holds that no message makes the decoders of path management panic.
func FuzzSignalling(f *testing.F) {
	f.Add([]byte{0x32, 1, 0, 4, 0, 0, 0, 0, 0, 7, 0, 0})
	f.Fuzz(func(t *testing.T, b []byte) {
		if answer, ok := EchoAnswer(b); ok {
			if header, err := Parse(answer); err != nil || header.Type != TypeEchoResponse {
				t.Fatalf("answer %x: %+v, %v", answer, header, err)
			}
		}
	})
}
