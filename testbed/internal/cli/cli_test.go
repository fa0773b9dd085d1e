package cli

import (
	"errors"
	"strings"
	"testing"
)

type target struct {
	Rate float64 `json:"rate_mbps"`
	TEID uint32  `json:"teid"`
	Kind string  `json:"kind"`
}

var targetKeys = map[string]Key{"rate": {"rate_mbps", Number}, "teid": {"teid", Integer}, "kind": {"kind", Text}}

func TestDecodeKeyValues(t *testing.T) {
	var got target
	if err := DecodeKeyValues("--flow", "rate=4.5,teid=0x10,kind=video", targetKeys, &got); err != nil {
		t.Fatal(err)
	}
	if want := (target{4.5, 16, "video"}); got != want {
		t.Errorf("got %+v, want %+v", got, want)
	}
}

func TestDecodeKeyValuesNamesWhatIsWrong(t *testing.T) {
	for text, wants := range map[string]string{
		"rate":             "kind, rate, teid",
		"speed=4":          "kind, rate, teid",
		"rate=fast":        "a number",
		"rate=NaN":         "a number",
		"teid=-1":          "whole number",
		"teid=4294967296":  "teid",
		"rate=1,rate=2":    "twice",
		"rate=1,,kind=cbr": `""`,
	} {
		err := DecodeKeyValues("--flow", text, targetKeys, &target{})
		var usage *UsageError
		if !errors.As(err, &usage) || !strings.Contains(err.Error(), wants) || !strings.Contains(err.Error(), "--flow") {
			t.Errorf("%q: got %v, want a usage error that mentions --flow and %q", text, err, wants)
		}
	}
}
