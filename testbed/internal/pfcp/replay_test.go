package pfcp

import (
	"net/netip"
	"testing"
	"time"
)

func TestReplay(t *testing.T) {
	const keep = 10 * time.Second
	now := time.Now()
	peer, other := netip.MustParseAddrPort("10.0.0.1:8805"), netip.MustParseAddrPort("10.0.0.2:8805")
	header := Header{Type: 52, Seq: 7}
	request, answer := []byte("request"), []byte("answer")
	replies := NewReplay(2, keep)
	replies.Remember(peer, header, request, answer, now)

	if got := replies.Answer(peer, header, request, now.Add(keep)); string(got) != "answer" {
		t.Errorf("a request sent again got %q", got)
	}
	for name, got := range map[string][]byte{
		"another peer":            replies.Answer(other, header, request, now),
		"another port":            replies.Answer(netip.AddrPortFrom(peer.Addr(), 9), header, request, now),
		"another sequence number": replies.Answer(peer, Header{Type: 52, Seq: 8}, request, now),
		"another message type":    replies.Answer(peer, Header{Type: 54, Seq: 7}, request, now),
		"other octets":            replies.Answer(peer, header, []byte("Request"), now),
		"too late":                replies.Answer(peer, header, request, now.Add(keep+1)),
	} {
		if got != nil {
			t.Errorf("%s got %q", name, got)
		}
	}

	for seq := uint32(8); seq < 10; seq++ {
		replies.Remember(peer, Header{Type: 52, Seq: seq}, request, answer, now)
	}
	if got := replies.Answer(peer, header, request, now); got != nil {
		t.Error("the oldest answer was kept beyond the limit")
	}
	if len(replies.entries) != 2 || len(replies.order) != 2 {
		t.Errorf("%d and %d entries, want 2", len(replies.entries), len(replies.order))
	}
	replies.Remember(other, header, request, answer, now)
	replies.Forget(peer.Addr())
	if replies.Answer(peer, Header{Type: 52, Seq: 9}, request, now) != nil || replies.Answer(other, header, request, now) == nil {
		t.Error("Forget takes the answers of one peer")
	}
	replies.Remember(other, Header{Type: 52, Seq: 11}, request, answer, now.Add(keep+1))
	if len(replies.entries) != 1 {
		t.Errorf("%d entries, want 1: those whose time is over go", len(replies.entries))
	}
}
