package main

import (
	"flag"
	"net/netip"
	"time"

	"slicepilot/userplane/internal/cli"
	"slicepilot/userplane/internal/gtpu"
	"slicepilot/userplane/internal/pfcp"
	"slicepilot/userplane/internal/sockaddr"
	"slicepilot/userplane/internal/upf"
	"slicepilot/userplane/internal/upf/tun"
)

// options are what the command line says.
type options struct {
	config        upf.Config
	statsInterval time.Duration
}

// maxBurn bounds the work per packet: beyond a second, one burst would take minutes.
const maxBurn = time.Second

// raw is the command line before it is checked.
type raw struct {
	nodeID, n4, n3, tun            string
	tunMTU, rcvbuf, sessions, port int
	burnNs                         int64
	statsInterval, heartbeat       time.Duration
	pools                          cli.Strings
}

func parseFlags(args []string) (options, error) {
	var r raw
	flags := flag.NewFlagSet("upf", flag.ContinueOnError)
	flags.StringVar(&r.nodeID, "node-id", "", "`address` in our Node ID and F-SEIDs (default: that of --n4)")
	flags.StringVar(&r.n4, "n4", "", "`address[:port]` to serve PFCP on (port 8805 if not given)")
	flags.StringVar(&r.n3, "n3", "", "`address[:port]` for GTP-U, one that peers can reach (port 2152 if not given)")
	flags.StringVar(&r.tun, "tun", "tun", "`name` of the TUN device to make")
	flags.IntVar(&r.tunMTU, "tun-mtu", 1400, "MTU of the TUN device in `bytes`")
	flags.Var(&r.pools, "ue-pool", "`prefix` of UE addresses to route to the TUN device; with host bits (10.60.0.254/24) the device gets that\n"+
		"address; may be given several times")
	flags.IntVar(&r.rcvbuf, "rcvbuf", 212992, "N3 receive buffer in `bytes` of kernel memory (a 1400-byte packet takes about 2300)")
	flags.Int64Var(&r.burnNs, "burn-ns", 0, "CPU time to spend on every packet, in `nanoseconds`")
	flags.DurationVar(&r.statsInterval, "stats-interval", 0, "print counters every `duration`; 0: never")
	flags.IntVar(&r.sessions, "max-sessions", 100_000, "how many PFCP sessions to accept")
	flags.DurationVar(&r.heartbeat, "heartbeat", 10*time.Second, "send PFCP heartbeats every `duration`; a peer that does not answer loses its sessions; 0: never")
	flags.IntVar(&r.port, "peer-port", pfcp.Port, "UDP `port` of the CP function for requests from here; 0: the one that it sends from")
	if err := cli.Parse(flags, args, help); err != nil {
		return options{}, err
	}
	return r.check()
}

func (r *raw) check() (options, error) {
	var o options
	var err error
	c := &o.config
	if c.N4, err = sockaddr.Parse(r.n4, pfcp.Port); err != nil {
		return o, cli.Usagef("--n4 %v", err)
	}
	if c.N3, err = sockaddr.Parse(r.n3, gtpu.Port); err != nil {
		return o, cli.Usagef("--n3 %v", err)
	}
	if c.N3.Addr().IsUnspecified() {
		return o, cli.Usagef("--n3 %s: expected one address that peers can reach, because it goes into F-TEIDs", r.n3)
	}
	if c.NodeID, err = r.checkNodeID(c.N4.Addr()); err != nil {
		return o, err
	}
	if c.UEPools, err = r.checkPools(); err != nil {
		return o, err
	}
	for _, number := range []struct {
		flag               string
		value, least, most int64
	}{
		{"--tun-mtu", int64(r.tunMTU), tun.MinMTU, tun.MaxMTU},
		{"--rcvbuf", int64(r.rcvbuf), 4096, 1 << 30},
		{"--burn-ns", r.burnNs, 0, int64(maxBurn)},
		{"--max-sessions", int64(r.sessions), 1, 1 << 24},
		{"--peer-port", int64(r.port), 0, 65535},
		{"--stats-interval", int64(r.statsInterval), 0, int64(time.Hour)},
		{"--heartbeat", int64(r.heartbeat), 0, int64(time.Hour)},
	} {
		if number.value < number.least || number.value > number.most {
			return o, cli.Usagef("%s %d: expected %d to %d", number.flag, number.value, number.least, number.most)
		}
	}
	if len(r.tun) == 0 || len(r.tun) > 15 {
		return o, cli.Usagef("--tun %q: expected a name of 1 to 15 characters", r.tun)
	}
	c.TUN, c.TUNMTU, c.ReceiveBuffer, c.MaxSessions = r.tun, r.tunMTU, r.rcvbuf, r.sessions
	c.Burn, c.Heartbeat, c.PeerPort = time.Duration(r.burnNs), r.heartbeat, uint16(r.port)
	o.statsInterval = r.statsInterval
	return o, nil
}

func (r *raw) checkNodeID(n4 netip.Addr) (netip.Addr, error) {
	if r.nodeID == "" {
		if n4.IsUnspecified() {
			return netip.Addr{}, cli.Usagef("--n4 %s without --node-id: expected one address that peers can reach, or with --node-id", r.n4)
		}
		return n4, nil
	}
	address, err := netip.ParseAddr(r.nodeID)
	if err != nil || address.Zone() != "" || address.IsUnspecified() {
		return netip.Addr{}, cli.Usagef("--node-id %q: expected an IPv4 or IPv6 address", r.nodeID)
	}
	return address.Unmap(), nil
}

func (r *raw) checkPools() ([]netip.Prefix, error) {
	var pools []netip.Prefix
	for _, text := range r.pools {
		pool, err := netip.ParsePrefix(text)
		if err != nil {
			return nil, cli.Usagef("--ue-pool %q: expected a prefix such as 10.60.0.0/24 or 2001:db8:60::/48", text)
		}
		pools = append(pools, pool)
	}
	return pools, nil
}
