package datapath

import (
	"net/netip"
	"runtime"
	"slices"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"slicepilot/userplane/internal/gtpu"
	"slicepilot/userplane/internal/pfcp"
	"slicepilot/userplane/internal/upf/netio"
	"slicepilot/userplane/internal/upf/own"
	"slicepilot/userplane/internal/upf/session"
)

// idlePlane is a data path whose threads do not run: a test plays them. It has one session, with TEID 1 and 10.60.0.1.
func idlePlane(t testing.TB, config Config) (*Plane, int) {
	t.Helper()
	n3, err := netio.Listen(netip.MustParseAddrPort("127.0.0.1:0"), 0)
	if err != nil {
		t.Fatal(err)
	}
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	config.N3, config.TUN, config.TUNMTU = n3, pair[0], 1500
	p := &Plane{
		TEIDs: session.NewTEIDTable(), Addresses: session.NewAddressTable(), config: config,
	}
	p.path = &path{socket: n3}
	if p.own, err = own.Watch(); err != nil {
		t.Fatal(err)
	}
	if p.uplink, err = newUplink(p); err != nil {
		t.Fatal(err)
	}
	if p.downlink, err = newDownlink(p); err != nil {
		t.Fatal(err)
	}
	p.uplink.burner, p.downlink.burner = NewBurner(config.Burn), NewBurner(config.Burn)
	t.Cleanup(func() {
		n3.Close()
		unix.Close(pair[0])
		unix.Close(pair[1])
		p.own.Close()
		p.uplink.waker.Close()
		p.downlink.waker.Close()
	})
	s := session.New(1)
	s.Install(rulesOfOneTerminal(t, n3.Local.Addr()))
	p.TEIDs.Put(1, s)
	p.Addresses.Put(session.AddressOf(terminal), s)
	return p, pair[1]
}

var (
	terminal = netip.MustParseAddr("10.60.0.1")
	server   = netip.MustParseAddr("10.103.0.2")
)

func rulesOfOneTerminal(t testing.TB, n3 netip.Addr) *session.Rules {
	t.Helper()
	spec := session.NewSpec()
	ue := netip.PrefixFrom(terminal, 32)
	uplink := pfcp.PDI{UE4: ue, Source: pfcp.Access, Tunnel: &pfcp.LocalTunnel{TEID: 1, IPv4: n3}}
	downlink := pfcp.PDI{UE4: ue, Source: pfcp.Core}
	spec.PDRs[1] = pfcp.PDR{ID: 1, PDI: uplink, FAR: 1, QERs: []uint32{1}}
	spec.PDRs[2] = pfcp.PDR{ID: 2, PDI: downlink, FAR: 2, QERs: []uint32{1}}
	spec.FARs[1] = pfcp.FAR{ID: 1, Action: pfcp.ActionForward, HasParameters: true, Destination: pfcp.Core}
	spec.FARs[2] = pfcp.FAR{
		ID: 2, Action: pfcp.ActionForward, HasParameters: true, Destination: pfcp.Access, Peer: pfcp.Tunnel{TEID: 2, Address: n3},
	}
	spec.QERs[1] = pfcp.QER{ID: 1, QFI: 9}
	rules, reject := spec.Compile(n3)
	if reject != nil {
		t.Fatal(reject)
	}
	return rules
}

func userPacket(src, dst netip.Addr, size int) []byte {
	p := make([]byte, size)
	p[0], p[2], p[3], p[8], p[9] = 0x45, byte(size>>8), byte(size), 64, 17
	copy(p[12:], src.AsSlice())
	copy(p[16:], dst.AsSlice())
	p[22], p[23] = 6000>>8, 6000&0xff // both ports, so that the packet fits either way
	p[20], p[21] = p[22], p[23]
	return p
}

// The path of a packet through both threads leaves no garbage.
func TestNoAllocationPerPacket(t *testing.T) {
	p, network := idlePlane(t, Config{})
	up := userPacket(terminal, server, 200)
	datagram := append(gtpu.AppendGPDU(nil, 1, gtpu.PDUTypeUplink, 9, len(up)), up...)
	from := netio.SockaddrOf(netip.MustParseAddrPort("127.0.0.1:2152"))
	drain := make([]byte, 2048)
	uplink := testing.AllocsPerRun(200, func() {
		p.uplink.datagram(datagram, &from)
		if n, errno := readPacket(network, drain); errno != 0 || n != len(up) {
			t.Fatalf("%d octets, %v", n, errno)
		}
	})
	slot := p.downlink.slots[0]
	down := userPacket(server, terminal, 200)
	downlink := testing.AllocsPerRun(200, func() {
		copy(slot[headroom:], down)
		p.downlink.packet(slot[:headroom+len(down)])
		if p.downlink.tx.Staged() != 1 {
			t.Fatal("nothing was staged")
		}
		p.downlink.send()
	})
	if uplink != 0 || downlink != 0 {
		t.Errorf("%v allocations on the uplink, %v on the downlink", uplink, downlink)
	}
	if got := p.uplink.counters.Read(); got.Packets != 201 {
		t.Errorf("%+v", got)
	}
	if got := p.downlink.counters.Read(); got.Packets != 201 {
		t.Errorf("%+v", got)
	}
}

// The work ends when less is left than reading the clock takes, which was measured once and may have been dear just then.
// The median counts: a host that takes the CPU away from a virtual machine makes single figures long.
func TestBurnIsCPUTime(t *testing.T) {
	for _, want := range []time.Duration{10 * time.Microsecond, 100 * time.Microsecond, time.Millisecond} {
		least, median := burnTimes(want, 101)
		if least < want*9/10-time.Microsecond || median > want*5/4+3*time.Microsecond {
			t.Errorf("%s of work took at least %s, in the median %s of CPU time", want, least, median)
		}
	}
	if _, median := burnTimes(0, 101); median > 2*time.Microsecond {
		t.Errorf("no work took %s", median)
	}
}

func burnTimes(want time.Duration, packets int) (least, median time.Duration) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	burner := NewBurner(want)
	times := make([]time.Duration, packets)
	for i := range times {
		start := threadCPUNs()
		burner.Burn()
		times[i] = time.Duration(threadCPUNs() - start)
	}
	slices.Sort(times)
	return times[0], times[packets/2]
}

// The work does not get shorter when others want the CPU too.
func TestBurnUnderContention(t *testing.T) {
	stop := make(chan struct{})
	defer close(stop)
	for range 2 * runtime.NumCPU() {
		go func() {
			for {
				select {
				case <-stop:
					return
				default:
				}
			}
		}()
	}
	const want = 2 * time.Millisecond
	if least, _ := burnTimes(want, 20); least < want-time.Microsecond {
		t.Errorf("%s of work took %s of CPU time", want, least)
	}
}
