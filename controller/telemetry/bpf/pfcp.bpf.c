/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/*
 * PFCP (3GPP TS 29.244) on N4: how long requests take to be answered, by type of request.
 *
 * Seen at the interface, in both directions. An answer belongs to the request of the same peers with the same sequence
 * number (7.2.2.2) whose type it answers (table 7.3-1). Of several messages in one datagram (bundling, 5.5A) the first
 * is read.
 */
#include "headers.h"
#include "histogram.h"
#include "layout.h"
#include "pfcp.h"

DECLARE_LICENSE;

/* Heartbeat, PFD management, association set-up, update, release; node report, session set deletion and modification; session
 * establishment, modification, deletion, report. The answer's type is the next number. */
#define REQUESTS                                                                                                        \
	(BIT(1) | BIT(3) | BIT(5) | BIT(7) | BIT(9) | BIT(12) | BIT(14) | BIT(16) | BIT(50) | BIT(52) | BIT(54) | BIT(56))

/* A request this old was never answered; the number is in use anew. Three times what a sender tries with usual timers. */
#define GIVE_UP_NS 30000000000ULL

const volatile struct {
	__u32 report; /* are there events? */
} config SEC(".rodata.pfcp");

struct transaction {
	__u32 asker[4]; /* IPv4: in the first word */
	__u32 asked[4];
	__u32 sequence;
	__u16 slice;
	__u16 type;
	__be16 port; /* of who asked */
	__u16 version; /* of IP */
};

struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__type(key, struct transaction);
	__type(value, __u64);
	__uint(max_entries, 16384);
} requests SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__type(key, __u32);
	__type(value, struct pfcp_stats);
	__uint(max_entries, MAX_SLICES *PFCP_KINDS);
} transactions SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, 1 << 20);
} pfcp_events SEC(".maps");

static __always_inline enum pfcp_kind kind_of(__u8 request)
{
	switch (request) {
	case 1:
		return PFCP_HEARTBEAT;
	case 5:
	case 7:
	case 9:
		return PFCP_ASSOCIATION;
	case 50:
		return PFCP_ESTABLISHMENT;
	case 52:
		return PFCP_MODIFICATION;
	case 54:
		return PFCP_DELETION;
	case 56:
		return PFCP_REPORT;
	default:
		return PFCP_OTHER;
	}
}

static __always_inline void report(const struct transaction *t, __u64 asked_ns, __u64 now)
{
	struct pfcp_event *event = bpf_ringbuf_reserve(&pfcp_events, sizeof(*event), 0);

	if (!event)
		return;
	event->request_ns = asked_ns;
	event->answer_ns = now;
	event->slice = t->slice;
	event->type = t->type;
	event->kind = kind_of(t->type);
	event->sequence = t->sequence;
	bpf_ringbuf_submit(event, BPF_RB_NO_WAKEUP);
}

static __always_inline void on_request(struct transaction *t, struct pfcp_stats *s)
{
	__u64 now = bpf_ktime_get_ns(), *asked_ns = bpf_map_lookup_elem(&requests, t);

	ADD(s->requests, 1);
	if (asked_ns && now - *asked_ns < GIVE_UP_NS)
		ADD(s->retransmissions, 1); /* its latency counts from the first */
	else
		bpf_map_update_elem(&requests, t, &now, BPF_ANY);
}

static __always_inline void on_answer(struct transaction *t, struct pfcp_stats *s)
{
	__u64 now = bpf_ktime_get_ns(), *found = bpf_map_lookup_elem(&requests, t), asked_ns;

	if (!found) {
		ADD(s->orphans, 1);
		return;
	}
	asked_ns = *found;
	bpf_map_delete_elem(&requests, t);
	ADD(s->answers, 1);
	record(s->latency, now - asked_ns);
	if (config.report)
		report(t, asked_ns, now);
}

SEC("tc")
int n4_message(struct __sk_buff *skb)
{
	__u32 class = skb->tc_classid, index;
	struct transaction t = { .slice = class & CLASS_SLICE };
	struct endpoints who = {};
	struct pfcp_stats *s;
	struct udphdr udp;
	struct cursor c;
	bool request, whole;
	__u8 type;

	if (!open_packet(skb, class & CLASS_BARE_IP ? 0 : ETH_HLEN, PFCP_HEADERS, &c) ||
	    !open_udp(skb->protocol, &c, &udp, &who, &whole) || !end_datagram(&c, &udp, whole) ||
	    !read_pfcp(&c, &type, &t.sequence))
		return TC_ACT_UNSPEC;
	request = udp.dest == bpf_htons(PFCP_PORT) && type < 64 && REQUESTS & BIT(type);
	if (!request && !(udp.source == bpf_htons(PFCP_PORT) && type && type <= 64 && REQUESTS & BIT(type - 1)))
		return TC_ACT_UNSPEC;

	t.type = request ? type : type - 1;
	t.version = skb->protocol == bpf_htons(ETH_P_IP) ? 4 : 6;
	t.port = request ? udp.source : udp.dest;
	__builtin_memcpy(t.asker, request ? who.source : who.destination, sizeof(t.asker));
	__builtin_memcpy(t.asked, request ? who.destination : who.source, sizeof(t.asked));
	index = t.slice * PFCP_KINDS + kind_of(t.type);
	s = bpf_map_lookup_elem(&transactions, &index);
	if (!s)
		return TC_ACT_UNSPEC;
	if (request)
		on_request(&t, s);
	else
		on_answer(&t, s);
	return TC_ACT_UNSPEC;
}
