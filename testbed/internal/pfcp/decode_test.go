package pfcp

import (
	"encoding/hex"
	"errors"
	"testing"

	"github.com/wmnsk/go-pfcp/message"
)

func octets(t testing.TB, text string) []byte {
	t.Helper()
	b, err := hex.DecodeString(text)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// A heartbeat request and a session deletion request, written out from TS 29.244 clauses 7.2.2, 7.4.2 and 7.5.6.
const (
	heartbeatText = "2001000c" + "00000700" + "00600004" + "e0000000"
	deletionText  = "2136000c" + "0102030405060708" + "00000900"
)

func TestDecode(t *testing.T) {
	m, err := Decode(octets(t, heartbeatText))
	heartbeat, ok := m.(*message.HeartbeatRequest)
	if err != nil || !ok || heartbeat.Sequence() != 7 || heartbeat.RecoveryTimeStamp == nil {
		t.Fatalf("got %v, %v", m, err)
	}
	m, err = Decode(append(octets(t, deletionText), 0xde, 0xad)) // octets behind the message do not count
	if err != nil || m.SEID() != 0x0102030405060708 || m.Sequence() != 9 {
		t.Fatalf("got %v, %v", m, err)
	}
	header, err := PeekHeader(octets(t, deletionText))
	if want := (Header{Type: 54, HasSEID: true, SEID: 0x0102030405060708, Seq: 9}); err != nil || header != want {
		t.Errorf("got %+v, %v; want %+v", header, err, want)
	}
}

func TestDecodeRefuses(t *testing.T) {
	for _, test := range []struct {
		name, message string
		want          error
	}{
		{"nothing", "", ErrShort},
		{"seven octets", "20010004000007", ErrShort},
		{"no room for the SEID", "2136000c0102030400000900", ErrShort},
		{"length beyond the datagram", "2001000d0000070000600004e0000000", ErrShort},
		{"length within the header", "2001000300000700", ErrShort},
		{"version 2", "4001000c0000070000600004e0000000", ErrVersion},
		{"message type 0", "2000000400000700", ErrType},
		{"message type 49", "2031000400000700", ErrType},
	} {
		if m, err := Decode(octets(t, test.message)); !errors.Is(err, test.want) {
			t.Errorf("%s: got %v, %v; want %v", test.name, m, err, test.want)
		}
	}
	if m, err := Decode(octets(t, "2001000c0000070000600008e0000000")); err == nil {
		t.Errorf("an element beyond the message was accepted: %v", m)
	}
}

// FuzzDecode holds that no datagram makes decoding panic, and that what rules are read from does not either.
func FuzzDecode(f *testing.F) {
	f.Add(octets(f, heartbeatText))
	f.Add(octets(f, deletionText))
	for _, m := range exampleMessages() {
		b, err := Encode(m)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(b)
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		m, err := Decode(b)
		if (m == nil) == (err == nil) {
			t.Fatalf("message %v, error %v", m, err)
		}
	})
}
