package own

import (
	"net/netip"
	"testing"

	"golang.org/x/sys/unix"

	"slicepilot/userplane/internal/upf/session"
)

func TestHas(t *testing.T) {
	a, err := Watch()
	if err != nil {
		t.Fatal(err)
	}
	defer a.Close()
	for text, want := range map[string]bool{
		"127.0.0.1": true, "127.9.8.7": true, "0.0.0.0": true, "0.1.2.3": true, "224.0.0.1": true, "239.255.255.250": true,
		"255.255.255.255": true, "::": true, "::1": true, "fe80::1": true, "febf::1": true, "ff02::1": true, "ff0e::1": true,
		"::ffff:127.0.0.1": true, "192.0.2.1": false, "198.51.100.255": false, "2001:db8:103::2": false, "fec0::1": false, "::2": false,
	} {
		if got := a.Has(session.AddressOf(netip.MustParseAddr(text))); got != want {
			t.Errorf("%s: %v, want %v", text, got, want)
		}
	}
}

// Routes of these types take packets in; networks of them are compared by their bits.
func TestRoutes(t *testing.T) {
	known := &table{}
	for _, text := range []string{"10.100.0.2/32", "10.9.0.0/16", "2001:db8:1::1/128", "2001:db8:2::/48", "2001:db8:3::8/125"} {
		known.add(netip.MustParsePrefix(text))
	}
	var a Addresses
	a.table.Store(known)
	for text, want := range map[string]bool{
		"10.100.0.2": true, "10.100.0.3": false, "10.9.255.1": true, "10.10.0.1": false, "2001:db8:1::1": true,
		"2001:db8:1::2": false, "2001:db8:2:ffff::1": true, "2001:db8:3::f": true, "2001:db8:3::10": false,
	} {
		if got := a.Has(session.AddressOf(netip.MustParseAddr(text))); got != want {
			t.Errorf("%s: %v, want %v", text, got, want)
		}
	}
}

func TestFollowEndsWithClose(t *testing.T) {
	a, err := Watch()
	if err != nil {
		t.Fatal(err)
	}
	ended := make(chan error)
	go func() { ended <- a.Follow() }()
	a.Close()
	if err := <-ended; err != nil {
		t.Error(err)
	}
	if _, err := a.changes.Read(make([]byte, 1)); err == nil || err == unix.EAGAIN {
		t.Errorf("the socket is open: %v", err)
	}
}
