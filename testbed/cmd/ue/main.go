// Command ue is a terminal with an IP stack, and users on it who load from a web server. See --help.
package main

import (
	"flag"
	"net"
	"net/netip"
	"net/url"
	"os"
	"sync"
	"time"

	"slicepilot/userplane/internal/cli"
	"slicepilot/userplane/internal/gtpu"
	"slicepilot/userplane/internal/inet"
	"slicepilot/userplane/internal/ue"
	"slicepilot/userplane/internal/upf/tun"
)

const help = `ue is a terminal with an IP stack: a TUN device whose packets go through a GTP-U tunnel (3GPP TS 29.281) to a UPF and
back. On it, --users load --url by HTTP again and again, each on a new TCP connection, --pause apart, as curl in a loop
does. What they send is requests and acknowledgements. The server may be any; this program is one with --serve, which
answers GET /OCTETS?rate=BITS with so many octets, at so many bits a second at most (rate: as fast as TCP goes).

  ue --serve 10.103.0.2:8080
  ue --from 10.100.0.1 --to 10.100.0.2 --teid 1 --qfi 9 --ue 10.60.0.2 --url http://10.103.0.2:8080/10000000 --pause 50ms

It prints {"event":"ready"}, and {"event":"report",...} at the end, which is SIGTERM, SIGINT or --duration: answers,
octets, failures and packets each way. With --start-on-stdin, users start at the first line on standard input. It needs
CAP_NET_ADMIN and /dev/net/tun, but for --serve. Exit code: 0; 1 where a socket or the device could not be made; 2 for
bad input.
`

type options struct {
	serve    netip.AddrPort
	tunnel   ue.Tunnel
	url      string
	users    int
	pause    time.Duration
	duration time.Duration
	onStdin  bool
}

func parseFlags(args []string) (options, error) {
	var o options
	var serve, from, to, address string
	var teid, downlink, qfi uint
	flags := flag.NewFlagSet("ue", flag.ContinueOnError)
	flags.StringVar(&serve, "serve", "", "`ADDRESS:PORT` to answer requests at; then there is no terminal")
	flags.StringVar(&from, "from", "", "`ADDRESS[:PORT]` of the gNB on N3 (port 2152 if not given)")
	flags.StringVar(&to, "to", "", "`ADDRESS[:PORT]` of the UPF on N3 (port 2152 if not given)")
	flags.UintVar(&teid, "teid", 0, "`TEID` towards the UPF")
	flags.UintVar(&downlink, "gnb-teid", 0, "`TEID` towards the gNB; 0: the same")
	flags.UintVar(&qfi, "qfi", 9, "QoS flow identifier")
	flags.StringVar(&address, "ue", "", "`ADDRESS` of the terminal")
	flags.StringVar(&o.tunnel.Device, "tun", "ue", "`NAME` of the TUN device to make")
	flags.IntVar(&o.tunnel.MTU, "tun-mtu", 1400, "MTU of the TUN device in `BYTES`")
	flags.StringVar(&o.url, "url", "", "`URL` to load, http and an address")
	flags.IntVar(&o.users, "users", 1, "how many load at once")
	flags.DurationVar(&o.pause, "pause", 50*time.Millisecond, "time between an answer and the next request")
	flags.DurationVar(&o.duration, "duration", 0, "how long; 0: until SIGTERM")
	flags.BoolVar(&o.onStdin, "start-on-stdin", false, "start at the first line on standard input")
	flags.Bool("json", true, "print JSON lines, as it always does")
	if err := cli.Parse(flags, args, help); err != nil {
		return o, err
	}
	var err error
	if serve != "" {
		if o.serve, err = netip.ParseAddrPort(serve); err != nil {
			return o, cli.Usagef("--serve: %q; expected ADDRESS:PORT", serve)
		}
		return o, nil
	}
	if o.tunnel.From, err = inet.Parse(from, gtpu.Port); err != nil {
		return o, cli.Usagef("--from: %v", err)
	}
	if o.tunnel.To, err = inet.Parse(to, gtpu.Port); err != nil {
		return o, cli.Usagef("--to: %v", err)
	}
	if o.tunnel.UE, err = netip.ParseAddr(address); err != nil {
		return o, cli.Usagef("--ue: %q; expected an address", address)
	}
	if target, err := url.Parse(o.url); err != nil || target.Scheme != "http" || target.Host == "" {
		return o, cli.Usagef("--url: %q; expected http://ADDRESS:PORT/...", o.url)
	}
	if downlink == 0 {
		downlink = teid
	}
	switch {
	case teid > 1<<32-1 || downlink > 1<<32-1:
		return o, cli.Usagef("--teid %d, --gnb-teid %d; expected 0 to %d", teid, downlink, 1<<32-1)
	case qfi > 63:
		return o, cli.Usagef("--qfi: %d; expected 0 to 63", qfi)
	case o.tunnel.MTU < tun.MinMTU || o.tunnel.MTU > tun.MaxMTU:
		return o, cli.Usagef("--tun-mtu: %d; expected %d to %d", o.tunnel.MTU, tun.MinMTU, tun.MaxMTU)
	case o.users < 1 || o.users > 1024:
		return o, cli.Usagef("--users: %d; expected 1 to 1024", o.users)
	case o.pause < 0 || o.duration < 0:
		return o, cli.Usagef("--pause %v, --duration %v; expected from 0", o.pause, o.duration)
	}
	o.tunnel.TEID, o.tunnel.DownlinkTEID, o.tunnel.QFI = uint32(teid), uint32(downlink), uint8(qfi)
	return o, nil
}

func main() { cli.Exit("ue", run(os.Args[1:])) }

func run(args []string) error {
	o, err := parseFlags(args)
	if err != nil {
		return err
	}
	ctx, stop := cli.Until(o.duration)
	defer stop()
	lines := cli.NewLines(os.Stdout)
	ready := map[string]any{"event": "ready", "pid": os.Getpid()}
	if o.serve.IsValid() {
		listener, err := net.Listen("tcp", o.serve.String())
		if err != nil {
			return err
		}
		if err := lines.Write(ready); err != nil {
			return err
		}
		return ue.Serve(ctx, listener)
	}
	link, err := ue.Open(o.tunnel)
	if err != nil {
		return err
	}
	if err := lines.Write(ready); err != nil {
		return err
	}
	if o.onStdin {
		if err := cli.AwaitLine(ctx); err != nil {
			return err
		}
	}
	user := &ue.User{URL: o.url, From: o.tunnel.UE, Device: o.tunnel.Device, Pause: o.pause}
	var users sync.WaitGroup
	for range o.users {
		users.Add(1)
		go func() {
			defer users.Done()
			user.Run(ctx)
		}()
	}
	users.Wait()
	// First, so that no packet leaves that the report does not count.
	if err := link.Close(); err != nil {
		return err
	}
	return lines.Write(struct {
		Event string `json:"event"`
		ue.Count
		ue.Packets
	}{"report", user.Count(), link.Packets()})
}
