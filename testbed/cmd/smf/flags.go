package main

import (
	"flag"
	"net/netip"
	"slices"
	"time"

	"slicepilot/userplane/internal/cli"
	"slicepilot/userplane/internal/inet"
	"slicepilot/userplane/internal/pfcp"
)

const help = `smf is an N4 peer (PFCP, 3GPP TS 29.244) for testbeds: it sets up associations with any number of UPFs,
establishes, modifies and deletes sessions, answers and sends heartbeats, and sets everything up again when a UPF has
restarted. It has no other interface of an SMF.

With flags only, it associates, establishes the sessions and stays until --duration is over or SIGTERM:

  smf --n4 10.101.0.1:8805 --upf 10.101.0.2 \
      --session upf=10.101.0.2,ue=10.60.0.2,teid=1,n3=10.100.0.2,gnb=10.100.0.1,gnb-teid=1001,qfi=9,sst=1,sd=000001,dnn=internet

  Keys of --session: name, upf, ue, teid and n3 (uplink tunnel at the UPF; without teid the UPF chooses), gnb and
  gnb-teid (downlink tunnel), qfi (default 9), sst, sd, dnn (default internet), mbr-ul and mbr-dl (Mbit/s).

With --script FILE, or - for standard input, it reads one command a line and answers each with one line:

  {"op":"associate","upf":"10.101.0.2"}
  {"op":"establish","upf":"10.101.0.2","session":"a","ue":"10.60.0.2","teid":1,"n3":"10.100.0.2","gnb":"10.100.0.1",
   "gnb_teid":1001,"qfi":9,"sst":1,"sd":"000001","dnn":"internet","mbr_ul_mbps":50,"mbr_dl_mbps":50}
   (on one line)
  {"op":"modify","session":"a", ...} with any of: "mbr_ul_mbps", "mbr_dl_mbps", "gate_ul" and "gate_dl" (open, closed)
  {"op":"delete","session":"a"}    {"op":"release","upf":"10.101.0.2"}    {"op":"status"}
  {"op":"sleep","ms":100}    {"op":"quit"}

  Answers: "op", "id" (where the command had one), "ok", "cause" and "cause_text" (TS 29.244 clause 8.2.1), "rtt_us"
  (from before the first transmission to the answer read from the socket), "attempts" (transmissions), "error";
  establish adds "teid" and "n3".
  Lines with "event" report what no command caused: ready (first), restart, recovered, recovery_failed, context_lost,
  peer_lost, peer_back, associated, malformed.

At the end (SIGTERM, SIGINT, end of the script, quit) sessions are deleted and associations released.
Exit code: 0; 1 where an association or session asked for by flags could not be set up; 2 for bad input.
`

type options struct {
	listen    netip.AddrPort
	nodeID    string
	upfs      []netip.AddrPort
	sessions  []command
	script    string
	t1        time.Duration
	n1        int
	heartbeat time.Duration
	duration  time.Duration
}

func parseFlags(args []string) (options, error) {
	var o options
	var listen string
	var upfs, sessions cli.Strings
	flags := flag.NewFlagSet("smf", flag.ContinueOnError)
	flags.StringVar(&listen, "n4", "0.0.0.0:8805", "`ADDRESS:PORT` to send from; 0.0.0.0 or [::] for all addresses")
	flags.StringVar(&o.nodeID, "node-id", "", "Node `ID`: an IP address or a domain name (default: the address a UPF sees)")
	flags.Var(&upfs, "upf", "UPF to associate with, `ADDRESS[:PORT]`; may be repeated")
	flags.Var(&sessions, "session", "session to establish, as `KEY=VALUE,...`; may be repeated")
	flags.StringVar(&o.script, "script", "", "`FILE` of commands; - for standard input")
	flags.DurationVar(&o.t1, "t1", time.Second, "time until a request is sent again (timer T1)")
	flags.IntVar(&o.n1, "n1", 3, "how often a request is sent again (counter N1)")
	flags.DurationVar(&o.heartbeat, "heartbeat", time.Second, "time between heartbeats to each UPF; 0: send none")
	flags.DurationVar(&o.duration, "duration", 0, "how long to stay without a script; 0: until SIGTERM")
	flags.Bool("json", true, "print JSON lines, as it always does")
	if err := cli.Parse(flags, args, help); err != nil {
		return o, err
	}
	var err error
	if o.listen, err = netip.ParseAddrPort(listen); err != nil {
		return o, cli.Usagef("--n4: %q; expected ADDRESS:PORT", listen)
	}
	if o.t1 <= 0 || o.n1 < 0 || o.heartbeat < 0 || o.duration < 0 {
		return o, cli.Usagef("--t1 %v, --n1 %d, --heartbeat %v, --duration %v; expected t1 above 0, the others not below",
			o.t1, o.n1, o.heartbeat, o.duration)
	}
	for _, text := range upfs {
		upf, err := inet.Parse(text, pfcp.Port)
		if err != nil {
			return o, cli.Usagef("--upf: %v", err)
		}
		o.upfs = append(o.upfs, upf)
	}
	for i, text := range sessions {
		session, err := parseSession(text, i)
		if err != nil {
			return o, err
		}
		if !slices.Contains(o.upfs, session.peer) {
			return o, cli.Usagef("--session: upf: %s is not among the --upf; expected one of them", session.UPF)
		}
		o.sessions = append(o.sessions, session)
	}
	if len(o.upfs) == 0 && o.script == "" {
		return o, cli.Usagef("nothing to do; expected --upf, or --script, see --help")
	}
	return o, nil
}
