/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/*
 * PFCP (3GPP TS 29.244) on N4, copied for user space, which reads from it whose sessions a UPF has.
 *
 * Copied is what is addressed to a UPF as it comes in, and what a UPF sends as it goes out: on the loopback, where each
 * packet does both, once. What is in more than one fragment, or longer than a record, cannot be read and is counted.
 */
#include "layout.h"
#include "pfcp.h"

DECLARE_LICENSE;

/* Association set-up and release, and all of sessions, with the answers; heartbeats and the like tell of no session. */
#define WANTED (0xffULL << 50 | BIT(5) | BIT(6) | BIT(9) | BIT(10))

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__type(key, struct n4_address);
	__type(value, __u32);
	__uint(max_entries, 4096);
} n4_addresses SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__type(key, __u32);
	__type(value, struct n4_counters);
	__uint(max_entries, MAX_SLICES);
} n4_counters SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, 1 << 20);
} n4_messages SEC(".maps");

/* Where a record is put together; soft interrupts are off here, so that nobody else on this CPU comes between. */
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__type(key, __u32);
	__type(value, struct n4_message);
	__uint(max_entries, 1);
} n4_scratch SEC(".maps");

static __always_inline bool wanted(struct cursor *c)
{
	__u8 type, *octets = c->pos;
	__u32 sequence;

	if (!read_pfcp(c, &type, &sequence))
		return false;
	return octets[0] & PFCP_FOLLOW_ON || (type < 64 && WANTED & BIT(type));
}

/* `sent` is a constant where this is inlined. */
static __always_inline int copy(struct __sk_buff *skb, bool sent)
{
	__u32 class = skb->tc_classid, place = class & CLASS_SLICE, zero = 0, length, from, *upf;
	struct n4_address own = { .place = place };
	struct endpoints who = {};
	struct n4_counters *n;
	struct n4_message *m;
	struct udphdr udp;
	struct cursor c;
	bool whole;

	if (!open_packet(skb, class & CLASS_BARE_IP ? 0 : ETH_HLEN, PFCP_HEADERS, &c))
		return TC_ACT_UNSPEC;
	if (!open_udp(skb->protocol, &c, &udp, &who, &whole) || !end_datagram(&c, &udp, whole))
		return TC_ACT_UNSPEC;
	if (udp.source != bpf_htons(PFCP_PORT) && udp.dest != bpf_htons(PFCP_PORT))
		return TC_ACT_UNSPEC;
	own.version = skb->protocol == bpf_htons(ETH_P_IP) ? 4 : 6;
	__builtin_memcpy(own.address, sent ? who.source : who.destination, sizeof(own.address));
	upf = bpf_map_lookup_elem(&n4_addresses, &own);
	n = bpf_map_lookup_elem(&n4_counters, &place);
	m = bpf_map_lookup_elem(&n4_scratch, &zero);
	if (!upf || !n || !m || !wanted(&c))
		return TC_ACT_UNSPEC;
	ADD(n->messages, 1);
	if (!whole) {
		ADD(n->unread, 1);
		return TC_ACT_UNSPEC;
	}
	length = c.left;
	from = c.pos - (void *)(long)skb->data;
	barrier_var(length); /* the verifier wants to see the bounds of what is used below */
	if (length < 1 || length > N4_OCTETS || bpf_skb_load_bytes(skb, from, m->octets, length)) {
		ADD(n->unread, 1);
		return TC_ACT_UNSPEC;
	}
	m->seen_ns = bpf_ktime_get_boot_ns();
	m->unread = n->unread;
	m->lost = n->lost;
	__builtin_memcpy(m->source, who.source, sizeof(m->source));
	__builtin_memcpy(m->destination, who.destination, sizeof(m->destination));
	m->source_port = bpf_ntohs(udp.source);
	m->destination_port = bpf_ntohs(udp.dest);
	m->upf = *upf;
	m->length = length;
	m->version = own.version;
	m->sent = sent;
	if (bpf_ringbuf_output(&n4_messages, m, offsetof(struct n4_message, octets) + length, BPF_RB_NO_WAKEUP))
		ADD(n->lost, 1);
	return TC_ACT_UNSPEC;
}

SEC("tc")
int n4_received(struct __sk_buff *skb)
{
	return copy(skb, false);
}

SEC("tc")
int n4_sent(struct __sk_buff *skb)
{
	return copy(skb, true);
}
