/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/*
 * What the programs write and a reader maps: layout.py mirrors these structs field by field.
 *
 * Counters are added to atomically and there is one copy of them. Per-CPU copies would save about 5 ns per addition,
 * but make a reader's work grow with the number of CPUs, and a slice's packets pass a point on one CPU at a time.
 * What different points write lies on different cache lines.
 */
#pragma once

#include "types.h"

#define MAX_SLICES 256
#define MAX_CPUS 1024
#define CACHE_LINE __attribute__((aligned(64)))

/* Delays: see histogram.h. */
#define BUCKETS 448
#define UNIT_SHIFT 6 /* they are counted in 64 ns */

/* Where a packet is seen after the UPF. */
enum exit_point { AT_TUN, AT_N6, EXIT_POINTS };

/* What a filter tells its program by its class (TCA_BPF_CLASSID, 16 bits, read as skb->tc_classid). */
#define CLASS_SLICE 0x0fff /* slice index, or: */
#define CLASS_SHARED 0x0fff /* the device carries every slice */
#define CLASS_GROUP 0x4000 /* on N3: CLASS_SLICE is not a slice, but a group of slices that share it (sharing.h) */
/* Where services are, CLASS_SLICE is the number of the place (services.h). */
#define CLASS_BARE_IP 0x8000 /* packets start with the IP header (TUN) */

/* Classes of a shaper that several slices share: that of all other packets, and those of slices from here. */
#define SHAPER_REST 1
#define SHAPER_FIRST 16

/*
 * `mark_ns`: when the first sampled packet of each of the last MARKS milliseconds with any arrived, in a ring by time.
 * With `last_left_ns` it shows since when packets wait inside the UPF, also while none comes out: see window.py.
 */
#define MARKS 8
#define MARK_SHIFT 20 /* 2^20 ns: about a millisecond */

struct n3_counters {
	__u64 packets;
	__u64 bytes; /* of inner IP packets, as everywhere */
	__u64 malformed; /* no GTP-U on its port, or an inner packet that makes no sense */
	__u64 other; /* GTP-U messages that carry no IP packet */
	__u64 timed; /* packets that were given a record */
	__u64 unproven; /* of senders none of whose packets has left, and not in `packets`: see flows.h */
	__u64 joined; /* requests of a service that came while an earlier one of theirs had no answer: services.h */
	__u64 crowded; /* no place for their sender, or their flow: flows.h */
	__u64 mark_ns[MARKS] CACHE_LINE;
} CACHE_LINE;

struct exit_counters {
	__u64 packets;
	__u64 bytes;
	__u64 missed; /* timed packets of the slice without a record from N3 */
	__u64 unreported; /* packet events that found the ring buffer full */
	__u64 last_left_ns; /* arrival at N3 of the last packet that was matched here */
	__u32 next; /* see flight_find */
	__u64 answered_bytes; /* requests of a service that have got an answer */
} CACHE_LINE;

/*
 * Which packets are timed: those whose hash's upper half is at most this, one in 2^32 / (up_to + 1). What enters may be
 * more than what is looked for where it leaves: see Sampling in window.py.
 */
struct timing {
	__u32 enter_up_to;
	__u32 leave_up_to;
	__u32 proven; /* has any of its packets left the UPF? */
} CACHE_LINE;

/* One per slice, and one behind them for packets that belong to none. */
struct slice_stats {
	struct n3_counters n3;
	struct timing timing;
	struct exit_counters exit[EXIT_POINTS];
	__u32 delay[EXIT_POINTS][BUCKETS] CACHE_LINE; /* counts, modulo 2^32 */
};

/* One per (slice, TEID, QFI); `carried` counts the packets that were matched at the last point. */
struct flow_stats {
	__u64 packets;
	__u64 bytes;
	__u64 carried_bytes CACHE_LINE;
	__u32 delay[EXIT_POINTS][BUCKETS] CACHE_LINE;
};

#define FLOWS 1024 /* a power of two; as an index: none */

/* The key of a flow: TEID 0..31, QFI 32..38 (64: none), slice 40..47. */
#define FLOW_VALID (1ULL << 63)
#define QFI_NONE 64

/* A sampled packet that left (ring buffer). */
struct packet_event {
	__u64 n3_ns;
	__u64 exit_ns;
	__u16 slice;
	__u16 bytes;
};

/* PFCP transactions told apart by the request's message type (TS 29.244, table 7.3-1). */
enum pfcp_kind {
	PFCP_HEARTBEAT,
	PFCP_ASSOCIATION, /* set-up, update, release */
	PFCP_ESTABLISHMENT,
	PFCP_MODIFICATION,
	PFCP_DELETION,
	PFCP_REPORT,
	PFCP_OTHER,
	PFCP_KINDS
};

struct pfcp_stats {
	__u64 requests;
	__u64 answers;
	__u64 retransmissions;
	__u64 orphans; /* answers to no request that was seen */
	__u32 latency[BUCKETS] CACHE_LINE;
};

struct pfcp_event {
	__u64 request_ns;
	__u64 answer_ns;
	__u16 slice;
	__u8 type; /* message type of the request */
	__u8 kind;
	__u32 sequence;
};

/* An address that a UPF takes PFCP at, at one of the places where N4 is watched; IPv4 in the first word. */
struct n4_address {
	__u16 place;
	__u16 version; /* of IP */
	__u32 address[4];
};

/* PFCP messages from and to such addresses, one per place. */
struct n4_counters {
	__u64 messages;
	__u64 unread; /* fragmented, or longer than N4_OCTETS */
	__u64 lost; /* found the ring buffer full */
} CACHE_LINE;

#define N4_OCTETS 4096

/* One of them with its octets (ring buffer): `length` are there. */
struct n4_message {
	__u64 seen_ns; /* since the machine was started, sleep included */
	__u64 unread; /* until now, as in n4_counters */
	__u64 lost;
	__u32 source[4];
	__u32 destination[4];
	__u16 source_port;
	__u16 destination_port;
	__u16 upf; /* what user space gave its address */
	__u16 length;
	__u8 version;
	__u8 sent; /* by the UPF */
	__u8 octets[N4_OCTETS];
};

/* One per slice. */
struct sched_stats {
	__u64 cpu_ns; /* of tasks that have been switched out */
	__u64 waits; /* waits on a run queue that are over */
	__u64 wait_ns; /* their total */
	__u64 waiting; /* tasks on a run queue now: see WAITER */
	__u32 wait[BUCKETS] CACHE_LINE;
};

/*
 * Tasks that wait, in one word so that a reader never sees one half changed: their number above bit 52, below it the
 * sum of when each began to wait, in 1024 ns since the programs were loaded.
 */
#define WAITER_SHIFT 52
#define WAIT_UNIT_SHIFT 10
#define WAITER(since_ns) ((1ULL << WAITER_SHIFT) + ((since_ns) >> WAIT_UNIT_SHIFT))

/*
 * What a CPU runs now, in one word for the same reason: since when, and in the low bits the slice; the number of slices
 * stands for idle, one more for other.
 */
#define RUNNING_SLICE 0x3ff

struct running {
	__u64 since_ns_and_slice;
	__u64 exec_start_ns; /* the task's sum_exec_runtime when it was switched in */
	__u64 idle_ns; /* in all, without the idle time that goes on */
} CACHE_LINE;
