package n4

import (
	"bytes"
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

// What a modification says of gates and rates, octet by octet from the figures of TS 29.244: IE type and length
// in two octets each (clause 8.1.1), then what the comment's clause says.
func TestModificationsAsTheSpecificationWritesThem(t *testing.T) {
	yes, rate, none := true, 1.0, 0.0
	const (
		qerID    = "006d" + "0004" + "00000001"                  // QER ID, 8.2.75
		qfi      = "007c" + "0001" + "09"                        // QFI, 8.2.89
		upClosed = "0019" + "0001" + "04"                        // Gate Status, 8.2.7: UL Gate in bits 4 and 3
		dnClosed = "0019" + "0001" + "01"                        // DL Gate in bits 2 and 1
		open     = "0019" + "0001" + "00"                        //
		upOnly   = "001a" + "000a" + "00000003e8" + "00ee6b2800" // MBR, 8.2.8: UL in octets 5 to 9, kbit/s
		nobody   = "001a" + "000a" + "00ee6b2800" + "00ee6b2800" // no limit is a limit beyond any link
	)
	limited := rules{SessionSpec: testSpec()}
	limited.MBRUplinkMbps = 1
	for name, test := range map[string]struct {
		before rules
		change Change
		want   string
	}{
		"closing uplink":   {rules{SessionSpec: testSpec()}, Change{CloseUplink: &yes}, "000e" + "0012" + qerID + upClosed + qfi},
		"closing downlink": {rules{SessionSpec: testSpec()}, Change{CloseDownlink: &yes}, "000e" + "0012" + qerID + dnClosed + qfi},
		"limiting uplink":  {rules{SessionSpec: testSpec()}, Change{MBRUplinkMbps: &rate}, "000e" + "0020" + qerID + open + upOnly + qfi},
		// Without MBR in it the UPF keeps the old limit (table 7.5.4.5-1).
		"lifting": {limited, Change{MBRUplinkMbps: &none, MBRDownlinkMbps: &none}, "000e" + "0020" + qerID + open + nobody + qfi},
	} {
		after := test.before.with(test.change)
		got, err := after.change(test.change).Marshal()
		if err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(got, octets(t, test.want)) {
			t.Errorf("%s:\n got %x\nwant %s", name, got, test.want)
		}
	}
}
