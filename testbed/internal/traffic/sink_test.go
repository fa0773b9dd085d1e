package traffic

import (
	"bytes"
	"net"
	"net/netip"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

func newTestSink(t *testing.T, address string, maxFlows int) (*Sink, *net.UDPConn) {
	t.Helper()
	listen := netip.AddrPortFrom(netip.MustParseAddr(address), uint16(freePort(t, netip.AddrPortFrom(netip.MustParseAddr(address), 1).String())))
	sink, err := NewSink(SinkOptions{Listen: []netip.AddrPort{listen}, ReceiveBuffer: 1 << 20, MaxFlows: maxFlows})
	if err != nil {
		t.Fatal(err)
	}
	conn, err := net.DialUDP("udp", nil, net.UDPAddrFromAddrPort(listen))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	return sink, conn
}

func marked(flow uint32, sequence uint64, sentNs int64, payload int) []byte {
	b := make([]byte, payload)
	(&Marker{Run: 1, Flow: flow, Sequence: sequence, SentNs: sentNs}).Put(b)
	return b
}

// await waits until a sink has seen so many packets, and closes it.
func await(sink *Sink, packets uint64) SinkReport {
	deadline := time.Now().Add(3 * time.Second)
	for time.Now().Before(deadline) {
		now := sink.Snapshot()
		seen := now.foreign + now.refused
		for _, a := range now.flows {
			seen += a.Packets + a.Duplicates
		}
		if seen >= packets {
			break
		}
		time.Sleep(time.Millisecond)
	}
	sink.Close()
	last := sink.Snapshot()
	return last.Total()
}

func TestSinkKeepsAccount(t *testing.T) {
	for address, headers := range map[string]uint64{"127.0.0.1": 28, "::1": 48} {
		sink, conn := newTestSink(t, address, 2)
		for _, b := range [][]byte{
			marked(1, 0, Monotonic(), 1000), marked(1, 2, Monotonic(), 1000), marked(1, 1, Monotonic(), 1000),
			marked(1, 1, Monotonic(), 1000), marked(1, 5, Monotonic(), 1000),
			marked(2, 0, Monotonic()-50_000_000, 100), marked(3, 0, Monotonic(), 100), []byte("something else"),
		} {
			if _, err := conn.Write(b); err != nil {
				t.Fatal(err)
			}
		}
		report := await(sink, 8)
		if report.ForeignPackets != 1 || report.RefusedPackets != 1 || len(report.Flows) != 2 {
			t.Fatalf("%s: %+v", address, report)
		}
		one, two := report.Flows[0], report.Flows[1]
		if one.Flow != 1 || one.Packets != 4 || one.Lost != 2 || one.Reordered != 1 || one.Duplicates != 1 || one.Bytes != 4*(1000+headers) {
			t.Errorf("%s: %+v", address, one)
		}
		if one.DelayP50us < 0 || one.DelayMaxus > 40_000 || two.DelayP50us < 50_000 || two.DelayP50us > 90_000 {
			t.Errorf("%s: delays %+v and, of a packet 50 ms old, %+v", address, one, two)
		}
	}
}

func TestSinkOnATakenAddress(t *testing.T) {
	conn, taken := farEnd(t, "127.0.0.1")
	defer conn.Close()
	if sink, err := NewSink(SinkOptions{Listen: []netip.AddrPort{taken}, ReceiveBuffer: 1 << 16, MaxFlows: 1}); err == nil {
		sink.Close()
		t.Error("two sockets at one address")
	}
}

func TestParseControl(t *testing.T) {
	b := make([]byte, controlLen)
	stamp := (*unix.Cmsghdr)(unsafe.Pointer(&b[0]))
	stamp.Level, stamp.Type = unix.SOL_SOCKET, unix.SCM_TIMESTAMPNS
	stamp.SetLen(unix.CmsgLen(16))
	*(*[2]int64)(unsafe.Pointer(&b[unix.CmsgLen(0)])) = [2]int64{7, 89}
	second := unix.CmsgSpace(16)
	drops := (*unix.Cmsghdr)(unsafe.Pointer(&b[second]))
	drops.Level, drops.Type = unix.SOL_SOCKET, unix.SO_RXQ_OVFL
	drops.SetLen(unix.CmsgLen(4))
	*(*uint32)(unsafe.Pointer(&b[second+unix.CmsgLen(0)])) = 42
	end := second + unix.CmsgSpace(4)
	if at, dropped := parseControl(b[:end]); at != 7_000_000_089 || dropped != 42 {
		t.Errorf("%d ns, %d drops", at, dropped)
	}
	for n := range end {
		parseControl(b[:n]) // cut short anywhere, it stays inside
	}
	stamp.SetLen(1)
	if at, _ := parseControl(b); at != 0 {
		t.Error("a control message shorter than its header was read")
	}
}

// FuzzSinkPacket holds that what a sink reads of a packet, and of what the kernel says with it, stays inside both.
func FuzzSinkPacket(f *testing.F) {
	marked := make([]byte, MarkerLen+8)
	(&Marker{Run: 1, Flow: 2, Sequence: 3, SentNs: 4}).Put(marked)
	f.Add(marked, []byte{})
	control := make([]byte, unix.CmsgSpace(16))
	header := (*unix.Cmsghdr)(unsafe.Pointer(&control[0]))
	header.Level, header.Type = unix.SOL_SOCKET, unix.SCM_TIMESTAMPNS
	header.SetLen(unix.CmsgLen(16))
	f.Add(marked[:MarkerLen-1], control)
	f.Fuzz(func(t *testing.T, packet, control []byte) {
		parseControl(control)
		marker, ok := ParseMarker(packet)
		if !ok {
			return
		}
		again := make([]byte, MarkerLen)
		marker.Put(again)
		if !bytes.Equal(again, packet[:MarkerLen]) {
			t.Fatalf("%x was read as %+v, which is written as %x", packet, marker, again)
		}
	})
}
