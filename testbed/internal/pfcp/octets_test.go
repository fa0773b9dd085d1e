package pfcp

import (
	"encoding/hex"
	"testing"

	"github.com/wmnsk/go-pfcp/ie"
)

// Update QERs (IE type 14) written by hand from the figures of TS 29.244: QER ID (8.2.75), Gate Status (8.2.7: UL Gate in
// bits 4 and 3, DL Gate in bits 2 and 1; 2 and 3 are taken for closed), MBR (8.2.8), which is not acted on.
func TestQERAsTheSpecificationWritesIt(t *testing.T) {
	const id = "006d" + "0004" + "00000001"
	before := QER{ID: 1, QFI: 9}
	for name, test := range map[string]struct {
		body string
		want QER
	}{
		"open":            {"0019" + "0001" + "00", before},
		"uplink closed":   {"0019" + "0001" + "04", QER{1, true, false, 9}},
		"downlink closed": {"0019" + "0001" + "01", QER{1, false, true, 9}},
		"future values":   {"0019" + "0001" + "0b", QER{1, true, true, 9}},
		"spare bits":      {"0019" + "0001" + "f0", before},
		"rates":           {"001a" + "000a" + "00000003e8" + "ffffffffff", before},
		"nothing":         {"", before},
	} {
		if got, reject := before.Update(updateQER(t, id+test.body)); reject != nil || got != test.want {
			t.Errorf("%s: %+v, %v; want %+v", name, got, reject, test.want)
		}
	}
	for name, body := range map[string]string{
		"gate without an octet": "0019" + "0000",
		"QFI without an octet":  "007c" + "0000",
	} {
		if got, reject := before.Update(updateQER(t, id+body)); reject == nil || reject.Cause != ie.CauseInvalidLength {
			t.Errorf("%s: %+v, %v", name, got, reject)
		}
	}
}

func updateQER(t *testing.T, body string) *ie.IE {
	t.Helper()
	octets, err := hex.DecodeString(body)
	if err != nil {
		t.Fatal(err)
	}
	group, err := ie.Parse(append([]byte{0, 14, 0, byte(len(octets))}, octets...))
	if err != nil {
		t.Fatal(err)
	}
	return group
}
