package datapath

import "sync/atomic"

// Reason is why a packet was dropped.
type Reason int

// Reasons, in the order of reasonNames.
const (
	NoSession   Reason = iota // no session owns the TEID or the address
	NoRule                    // no PDR of the session detects the packet
	ByRule                    // the FAR says DROP or BUFF, or there is none
	Gate                      // a QER's gate is closed
	NoTunnel                  // the FAR forwards to the access side, whose tunnel is not known (yet)
	Malformed                 // not GTP-U, not IP, or shorter than it says
	Extension                 // an extension header that has to be understood and is not
	WriteFailed               // the kernel refused the packet on its way out
	OwnAddress                // from a terminal to an address of this machine, which is no data network
	numReasons
)

var reasonNames = [numReasons]string{
	"no_session", "no_rule", "far_drop", "gate", "no_tunnel", "malformed", "extension_header", "write_failed",
	"own_address",
}

// Counters count one direction. They are written by its loop and read by anyone.
type Counters struct {
	packets, bytes atomic.Uint64
	dropped        [numReasons]atomic.Uint64
}

func (c *Counters) pass(size int) {
	c.packets.Add(1)
	c.bytes.Add(uint64(size))
}

func (c *Counters) drop(why Reason) { c.dropped[why].Add(1) }

// Direction is a reading of Counters. Packets and bytes are those of the terminals' own packets that were forwarded.
type Direction struct {
	Packets uint64            `json:"packets"`
	Bytes   uint64            `json:"bytes"`
	Dropped map[string]uint64 `json:"dropped"`
}

// Read returns the counts; every reason appears, also with 0.
func (c *Counters) Read() Direction {
	d := Direction{
		Packets: c.packets.Load(), Bytes: c.bytes.Load(), Dropped: make(map[string]uint64, numReasons),
	}
	for why, name := range reasonNames {
		d.Dropped[name] = c.dropped[why].Load()
	}
	return d
}
