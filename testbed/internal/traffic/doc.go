// Package traffic makes and measures a testbed's user traffic: GTP-U from the radio side of N3 (Sender), and what of it
// arrives in the data network (Sink).
//
// A rate counts the octets of inner IP packets, header included: what a UE sends, and what a slice is sold as. The
// tunnel's 36 or 44 octets (IPv4, UDP, GTP-U without and with PDU Session Container) come on top.
//
// Every inner packet is UDP and starts its payload with a Marker, by which the sink tells flows apart, finds what was
// lost or reordered, and how long it took.
package traffic
