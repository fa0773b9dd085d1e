// Package n4 is the control plane's end of N4: what an SMF does with PFCP (3GPP TS 29.244) towards its UPFs.
//
// One Endpoint (a UDP socket) serves any number of Peers (UPFs). A Peer holds the association and its Sessions, keeps
// heartbeats going, and sets everything up again when the UPF has restarted. Messages are built and read with
// github.com/wmnsk/go-pfcp; transport (retransmission, matching of answers, duplicates) is here, because the time from
// a request's first octet sent to its answer received is a result of this program.
//
// Clauses in comments are those of TS 29.244 Release 17 where no other document is named.
package n4
