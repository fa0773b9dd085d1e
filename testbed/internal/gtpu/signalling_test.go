package gtpu

import (
	"bytes"
	"net/netip"
	"testing"
)

func TestEchoAnswer(t *testing.T) {
	got, ok := EchoAnswer(octets(t, "3201000400000000"+"00070000"))
	// Recovery (type 14) with value 0, clause 7.2.2.
	if want := octets(t, "3202000600000000"+"00070000"+"0e00"); !ok || !bytes.Equal(got, want) {
		t.Errorf("got %x, %v; want %x", got, ok, want)
	}
	if _, ok := EchoAnswer(octets(t, "3202000400000000"+"00070000")); ok {
		t.Error("an Echo Response was answered")
	}
}

func TestErrorIndication(t *testing.T) {
	for _, address := range []string{"10.100.0.2", "2001:db8::2"} {
		b := ErrorIndication(0x01020304, netip.MustParseAddr(address))
		header, err := Parse(b)
		if err != nil || header.Type != TypeErrorIndication || header.TEID != 0 {
			t.Fatalf("%x: header %+v, %v", b, header, err)
		}
		if want := octets(t, "10"+"01020304"+"85"); !bytes.HasPrefix(header.Payload(b), want) { // TEID Data I, GSN Address
			t.Errorf("payload %x does not begin with %x", header.Payload(b), want)
		}
	}
}
