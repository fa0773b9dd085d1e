// Command upf is a reference User Plane Function for the testbed: GTP-U to and from a TUN device, controlled by PFCP.
package main

import (
	"fmt"
	"log"
	"os"
	"os/signal"
	"runtime"
	"runtime/debug"
	"syscall"
	"time"

	"slicepilot/userplane/internal/cli"
	"slicepilot/userplane/internal/upf"
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
	if err := lines.Write(readyEvent(u, options.config)); err != nil {
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

// ready is the line of the event of that name.
type ready struct {
	Event  string `json:"event"`
	N3     string `json:"n3"`
	N4     string `json:"n4"`
	TUN    string `json:"tun"`
	PID    int    `json:"pid"`
	BurnNs int64  `json:"burn_ns"`
	RcvBuf int    `json:"rcvbuf_bytes"`
}

func readyEvent(u *upf.UPF, config upf.Config) ready {
	return ready{
		Event: "ready", N3: u.N3.Local.String(), N4: u.N4.Local.String(), TUN: u.Device.Name, PID: os.Getpid(),
		BurnNs: int64(config.Burn), RcvBuf: u.N3.ReceiveBuffer(),
	}
}

// warnAboutForwarding says what would make every packet disappear silently between the TUN device and the network.
func warnAboutForwarding(config upf.Config) {
	files := map[bool]string{true: "/proc/sys/net/ipv4/ip_forward", false: "/proc/sys/net/ipv6/conf/all/forwarding"}
	warned := map[bool]bool{}
	for _, pool := range config.UEPools {
		file := files[pool.Addr().Is4()]
		value, err := os.ReadFile(file)
		if err == nil && len(value) > 0 && value[0] == '0' && !warned[pool.Addr().Is4()] {
			warned[pool.Addr().Is4()] = true
			config.Log.Printf("%s is 0: packets of %s will not be forwarded", file, pool)
		}
	}
}
