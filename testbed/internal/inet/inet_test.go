package inet

import "testing"

func TestParse(t *testing.T) {
	for text, want := range map[string]string{
		"10.0.0.1": "10.0.0.1:8805", "10.0.0.1:99": "10.0.0.1:99", "2001:db8::1": "[2001:db8::1]:8805",
		"[2001:db8::1]:99": "[2001:db8::1]:99", "[2001:db8::1]": "[2001:db8::1]:8805",
	} {
		if got, err := Parse(text, 8805); err != nil || got.String() != want {
			t.Errorf("%s: %s, %v", text, got, err)
		}
	}
	for _, text := range []string{"", "upf", "10.0.0.1:0", "10.0.0.1:x", "10.0.0.256", "fe80::1%lo"} {
		if got, err := Parse(text, 8805); err == nil {
			t.Errorf("%q became %s", text, got)
		}
	}
}
