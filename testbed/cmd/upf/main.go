// Command upf is a reference User Plane Function for the testbed: GTP-U to and from a TUN device, controlled by PFCP.
package main

import (
	"flag"
	"fmt"
	"log"
	"net/netip"
	"os"
	"os/signal"
	"runtime"
	"runtime/debug"
	"strings"
	"syscall"
	"time"

	"slicepilot/userplane/internal/cli"
	"slicepilot/userplane/internal/gtpu"
	"slicepilot/userplane/internal/inet"
	"slicepilot/userplane/internal/pfcp"
	"slicepilot/userplane/internal/upf"
	"slicepilot/userplane/internal/upf/tun"
)

const help = `Usage: upf --n4 ADDR[:PORT] --n3 ADDR[:PORT] [flags]

A reference 5G User Plane Function (3GPP TS 23.501) for the testbed: GTP-U (TS 29.281) to and from a TUN device,
controlled over PFCP (TS 29.244) by any SMF. PFCP and GTP-U messages are those of github.com/wmnsk/go-pfcp and
github.com/wmnsk/go-gtp; packets go through read loops of its own, one for each direction, in order, with
bounded buffers. It needs CAP_NET_ADMIN and /dev/net/tun, and IP forwarding switched on in its network namespace.

What it does: PDRs by F-TEID (given or chosen here), UE IP address, QFI and SDF filter; FARs that drop and forward (to
the data network, or into a GTP-U tunnel); QERs with gates and QFI; Error Indications, Echo. Accepted and not acted on:
maximum bit rates, usage reporting (URR), buffering (BAR; packets that are to be buffered are dropped). Refused:
predefined rules, application detection, Ethernet and unstructured sessions, duplication, UE address allocation.

--burn-ns adds CPU work to every packet. It stands for what a production UPF does beside forwarding (deep packet
inspection, charging, ciphering) and is counted in CPU time of the thread: preemption does not shorten it.

On standard output, one JSON object per line: {"event":"ready",...} when it can carry traffic, {"event":"stats",...}
every --stats-interval and on SIGUSR1, {"event":"stopped",...} at the end. Logs go to standard error. SIGTERM and
SIGINT end it.

Example, a UPF for one slice:
  upf --n4 10.101.0.2 --n3 10.100.0.2 --tun tun --ue-pool 10.60.0.0/24
`

const (
	// goroutines that may run at the same time: uplink, downlink, N4, and one for everything that is rare.
	processors = 4
	// The collector has little to do (packets leave no garbage), and is to do it rarely.
	collectAtPercent = 800
)

func main() {
	cli.Exit("upf", run(os.Args[1:]))
}

func run(args []string) error {
	options, err := parseFlags(args)
	if err != nil {
		return err
	}
	runtime.GOMAXPROCS(processors)
	debug.SetGCPercent(collectAtPercent)
	options.config.Log = log.New(os.Stderr, "", log.Ldate|log.Ltime|log.Lmicroseconds)
	warnAboutForwarding(options.config)

	signals := make(chan os.Signal, 1)
	signal.Notify(signals, syscall.SIGTERM, syscall.SIGINT, syscall.SIGUSR1)
	u, err := upf.Start(options.config)
	if err != nil {
		return err
	}
	defer u.Stop()
	lines := cli.NewLines(os.Stdout)
	ready := map[string]any{
		"event": "ready", "n3": u.N3.Local.String(), "n4": u.N4.Local.String(), "tun": u.Device.Name, "pid": os.Getpid(),
		"burn_ns": int64(options.config.Burn), "rcvbuf_bytes": u.N3.ReceiveBuffer(),
	}
	if err := lines.Write(ready); err != nil {
		return err
	}
	failure := watch(u, lines, options.statsInterval, signals)
	if err := lines.Write(statsEvent{"stopped", u.Stats()}); err != nil && failure == nil {
		return err
	}
	return failure
}

// watch reports, on SIGUSR1 too, until another signal (nil) or until the UPF cannot go on.
func watch(u *upf.UPF, lines *cli.Lines, every time.Duration, signals <-chan os.Signal) error {
	var ticks <-chan time.Time
	if every > 0 {
		ticker := time.NewTicker(every)
		defer ticker.Stop()
		ticks = ticker.C
	}
	for {
		select {
		case received := <-signals:
			if received != syscall.SIGUSR1 {
				return nil
			}
		case err := <-u.Failed():
			return err
		case <-ticks:
		}
		if err := lines.Write(statsEvent{"stats", u.Stats()}); err != nil {
			return fmt.Errorf("standard output: %w", err)
		}
	}
}

// statsEvent is the line of the events "stats" and "stopped".
type statsEvent struct {
	Event string `json:"event"`
	upf.Stats
}

// warnAboutForwarding says what would make every packet disappear silently between the TUN device and the network.
func warnAboutForwarding(config upf.Config) {
	for _, pool := range config.UEPools {
		file := "/proc/sys/net/ipv4/ip_forward"
		if pool.Addr().Is6() {
			file = "/proc/sys/net/ipv6/conf/all/forwarding"
		}
		if value, err := os.ReadFile(file); err == nil && strings.HasPrefix(string(value), "0") {
			config.Log.Printf("%s is 0: packets of %s will not be forwarded", file, pool)
		}
	}
}

// options are what the command line says.
type options struct {
	config        upf.Config
	statsInterval time.Duration
}

// maxBurn bounds the work per packet: beyond a second, one burst would take minutes.
const maxBurn = time.Second

func parseFlags(args []string) (options, error) {
	var o options
	c := &o.config
	var nodeID, n4, n3 string
	var pools cli.Strings
	var port int
	var burnNs int64
	flags := flag.NewFlagSet("upf", flag.ContinueOnError)
	flags.StringVar(&nodeID, "node-id", "", "`address` in our Node ID and F-SEIDs (default: that of --n4)")
	flags.StringVar(&n4, "n4", "", "`address[:port]` to serve PFCP on (port 8805 if not given)")
	flags.StringVar(&n3, "n3", "", "`address[:port]` for GTP-U, one that peers can reach (port 2152 if not given)")
	flags.StringVar(&c.TUN, "tun", "tun", "`name` of the TUN device to make")
	flags.IntVar(&c.TUNMTU, "tun-mtu", 1400, "MTU of the TUN device in `bytes`")
	flags.Var(&pools, "ue-pool", "`prefix` of UE addresses to route to the TUN device; with host bits (10.60.0.254/24) the device gets that\n"+
		"address; may be given several times")
	flags.IntVar(&c.ReceiveBuffer, "rcvbuf", 212992, "N3 receive buffer in `bytes` of kernel memory (a 1400-byte packet takes about 2300)")
	flags.Int64Var(&burnNs, "burn-ns", 0, "CPU time to spend on every packet, in `nanoseconds`")
	flags.DurationVar(&o.statsInterval, "stats-interval", 0, "print counters every `duration`; 0: never")
	flags.IntVar(&c.MaxSessions, "max-sessions", 100_000, "how many PFCP sessions to accept")
	flags.DurationVar(&c.Heartbeat, "heartbeat", 10*time.Second, "send PFCP heartbeats every `duration`; a peer that leaves three unanswered loses its sessions; 0: never")
	flags.IntVar(&port, "peer-port", pfcp.Port, "UDP `port` of the CP function for requests from here; 0: the one that it sends from")
	if err := cli.Parse(flags, args, help); err != nil {
		return o, err
	}
	var err error
	if c.N4, err = inet.Parse(n4, pfcp.Port); err != nil {
		return o, cli.Usagef("--n4 %v", err)
	}
	if c.N3, err = inet.Parse(n3, gtpu.Port); err != nil {
		return o, cli.Usagef("--n3 %v", err)
	}
	if c.N3.Addr().IsUnspecified() {
		return o, cli.Usagef("--n3 %s: expected one address that peers can reach, because it goes into F-TEIDs", n3)
	}
	if c.NodeID, err = checkNodeID(nodeID, c.N4.Addr()); err != nil {
		return o, err
	}
	if c.UEPools, err = checkPools(pools); err != nil {
		return o, err
	}
	for _, number := range []struct {
		flag               string
		value, least, most int64
	}{
		{"--tun-mtu", int64(c.TUNMTU), tun.MinMTU, tun.MaxMTU},
		{"--rcvbuf", int64(c.ReceiveBuffer), 4096, 1 << 30},
		{"--burn-ns", burnNs, 0, int64(maxBurn)},
		{"--max-sessions", int64(c.MaxSessions), 1, 1 << 24},
		{"--peer-port", int64(port), 0, 65535},
		{"--stats-interval", int64(o.statsInterval), 0, int64(time.Hour)},
		{"--heartbeat", int64(c.Heartbeat), 0, int64(time.Hour)},
	} {
		if number.value < number.least || number.value > number.most {
			return o, cli.Usagef("%s %d: expected %d to %d", number.flag, number.value, number.least, number.most)
		}
	}
	if len(c.TUN) == 0 || len(c.TUN) > 15 {
		return o, cli.Usagef("--tun %q: expected a name of 1 to 15 characters", c.TUN)
	}
	c.Burn, c.PeerPort = time.Duration(burnNs), uint16(port)
	return o, nil
}

func checkNodeID(nodeID string, n4 netip.Addr) (netip.Addr, error) {
	if nodeID == "" {
		if n4.IsUnspecified() {
			return netip.Addr{}, cli.Usagef("--n4 %s without --node-id: expected one address that peers can reach, or with --node-id", n4)
		}
		return n4, nil
	}
	address, err := netip.ParseAddr(nodeID)
	if err != nil || address.Zone() != "" || address.IsUnspecified() {
		return netip.Addr{}, cli.Usagef("--node-id %q: expected an IPv4 or IPv6 address", nodeID)
	}
	return address.Unmap(), nil
}

func checkPools(texts []string) ([]netip.Prefix, error) {
	var pools []netip.Prefix
	for _, text := range texts {
		pool, err := netip.ParsePrefix(text)
		if err != nil {
			return nil, cli.Usagef("--ue-pool %q: expected a prefix such as 10.60.0.0/24 or 2001:db8:60::/48", text)
		}
		pools = append(pools, pool)
	}
	return pools, nil
}
