/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/*
 * Packets of each slice at N3 ingress, at the TUN device and at N6: how many, how many bytes, how long they took.
 *
 * A packet is stamped at N3 under a keyed hash of its inner packet and looked up at the later points. The programs change
 * nothing and pass every packet on to the next filter. Where a device merges packets before the hook (GRO), the single
 * ones cannot be seen there.
 */
#include "flight.h"
#include "flows.h"
#include "gtpu.h"
#include "histogram.h"
#include "inner.h"
#include "layout.h"
#include "services.h"
#include "sharing.h"
#include "stats.h"

DECLARE_LICENSE;

#define N3_HEADERS 256 /* linear bytes wanted: link, outer IP, UDP, GTP-U, inner headers, payload words */
#define MAX_OFFSET 8192 /* no inner packet begins later: MAX_EXTENSIONS of 1,020 octets, and the headers before */

/*
 * Set before loading. Thresholds are compared with the upper half of a packet's hash, so all points choose the same
 * packets.
 */
const volatile struct {
	__u32 slices;
	__u32 report_up_to; /* 2^32 / k - 1 to report one packet in k as an event */
	__u32 report; /* are there packet events? */
	__u32 last; /* exit point where packets are last seen */
	__u32 flows; /* are there figures by flow? */
	__u32 by_conversation; /* may packets of one UE belong to several slices? */
	__u32 shared; /* does a point carry packets of several slices? */
} config SEC(".rodata.packets");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__type(key, __u32);
	__type(value, struct flow_stats);
	__uint(max_entries, FLOWS);
} flows SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, 1 << 20);
} packet_events SEC(".maps");

static __always_inline struct flow_stats *flow_stats_of(__u32 flow)
{
	return bpf_map_lookup_elem(&flows, &flow);
}

/* Who has sent a packet, by a keyed hash; where no point is shared, of one slice alone. See flows.h. */
static __always_inline __u64 sender_of(const struct inner *inner, __u32 slice)
{
	__u64 scope = config.shared ? 0 : (__u64)(slice + 1) << 48;
	struct siphash s;

	siphash_start(&s);
	if (config.by_conversation) {
		siphash_add(&s, scope | inner->talk);
		siphash_add(&s, inner->addresses[0]);
		if (inner->version == 6) {
#pragma unroll
			for (int i = 1; i < 4; i++)
				siphash_add(&s, inner->addresses[i]);
		}
	} else if (inner->version == 4) {
		siphash_add(&s, scope | inner->ue);
	} else {
		siphash_add(&s, scope);
		siphash_add(&s, inner->ue);
	}
	return siphash_end(&s);
}

static __always_inline bool chosen(__u64 hash, __u32 up_to)
{
	return (__u32)(hash >> 32) <= up_to;
}

/* Returns the flow's index. Of several slices none has more than half of the places. */
static __always_inline __u32 enter_flow(__u64 key, __u32 bytes)
{
	__u32 flow = flow_of(key, config.slices > 1 ? FLOWS / 2 : FLOWS);
	struct flow_stats *f = flow_stats_of(flow);

	if (f) {
		ADD(f->packets, 1);
		ADD(f->bytes, bytes);
	}
	return flow;
}

static __always_inline void leave_flow(__u32 flow, enum exit_point at, __u32 bytes, __u64 delay)
{
	struct flow_stats *f = flow_stats_of(flow);

	if (!f)
		return;
	record(f->delay[at], delay);
	if (at == config.last)
		ADD(f->carried_bytes, bytes);
}

/*
 * A slice's packet has come in at N3; a slice that is none of the node's counts what is nobody's. A function of its own,
 * and global: the verifier then looks at it once, and not on every way through the headers.
 */
__noinline int enter(__u32 slice, __u64 key, __u64 sender, __u64 hash, __u32 bytes)
{
	struct slice_stats *s = stats_of(slice);
	enum claim claim = CLAIM_HOLDS;
	bool counted;
	__u32 flow;
	__u64 now;

	if (!s)
		return 0;
	/* What the UPF may never let through steers nothing, once it has let through anything. */
	if (slice != config.slices)
		claim = sender_claim(sender, slice, SENDERS / (config.slices ?: 1));
	counted = claim == CLAIM_HOLDS || !READ_ONCE(s->timing.proven);
	if (counted) {
		ADD(s->n3.packets, 1);
		ADD(s->n3.bytes, bytes);
	} else {
		ADD(s->n3.unproven, 1);
	}
	if (slice == config.slices)
		return 0;
	flow = config.flows ? enter_flow(key, bytes) : FLOWS;
	if (claim == CLAIM_CROWDED || (config.flows && flow == FLOWS))
		ADD(s->n3.crowded, 1);
	if (!chosen(hash, READ_ONCE(s->timing.enter_up_to)))
		return 0;
	now = bpf_ktime_get_ns();
	flight_enter(slice, ADD(s->n3.timed, 1), hash, counted ? flow : flow | UNCOUNTED, now);
	if (counted)
		mark(&s->n3, now);
	return 0;
}

struct outer {
	struct tunnel tunnel;
	__u32 offset; /* of the inner packet in the buffer's linear part */
	__u32 left; /* as of `struct cursor` */
	__u32 beyond;
};

/*
 * From a frame at N3 to what its tunnel carries: an `enum gtpu_result`. A global function, as `enter` is: otherwise the
 * verifier would look at the inner packet once for each way through the outer headers, which takes it 0.7 s.
 */
__noinline int open_outer(struct __sk_buff *skb, struct outer *outer)
{
	struct udphdr udp;
	struct cursor c;
	bool whole;
	int result;

	if (!outer || !open_packet(skb, link_bytes(skb), N3_HEADERS, &c) ||
	    !open_udp(skb->protocol, &c, &udp, NULL, &whole) || udp.dest != bpf_htons(GTPU_PORT))
		return NOT_GTPU;
	if (!end_datagram(&c, &udp, whole))
		return GTPU_BROKEN;
	result = open_gtpu(&c, &outer->tunnel);
	outer->offset = c.pos - (void *)(long)skb->data;
	outer->left = c.left;
	outer->beyond = c.beyond;
	return result;
}

SEC("tc")
int n3_ingress(struct __sk_buff *skb)
{
	__u32 class = skb->tc_classid, slice = class & CLASS_GROUP ? config.slices : class & CLASS_SLICE;
	struct outer outer = {};
	struct inner inner = {};
	struct slice_stats *s;
	struct cursor c;
	int result = open_outer(skb, &outer);

	if (result == NOT_GTPU)
		return TC_ACT_UNSPEC;
	s = stats_of(slice);
	if (!s)
		return TC_ACT_UNSPEC;
	if (result == GTPU_OTHER) {
		ADD(s->n3.other, 1);
		return TC_ACT_UNSPEC;
	}
	if (result != GTPU_INNER || outer.offset > MAX_OFFSET) {
		ADD(s->n3.malformed, 1);
		return TC_ACT_UNSPEC;
	}
	c.pos = (void *)(long)skb->data + outer.offset;
	c.end = (void *)(long)skb->data_end;
	c.left = outer.left;
	c.beyond = outer.beyond;
	if (!read_inner(&c, &inner)) {
		ADD(s->n3.malformed, 1);
		return TC_ACT_UNSPEC;
	}
	if (class & CLASS_GROUP) {
		int owner = shared_slice(class & CLASS_SLICE, &outer.tunnel, &inner);

		slice = owner < 0 ? config.slices : owner;
	}
	enter(slice, flow_key(slice, outer.tunnel.teid, outer.tunnel.qfi), sender_of(&inner, slice), inner.hash, inner.bytes);
	return TC_ACT_UNSPEC;
}

static __always_inline bool report(__u32 slice, __u32 bytes, __u64 n3_ns, __u64 now)
{
	struct packet_event *event = bpf_ringbuf_reserve(&packet_events, sizeof(*event), 0);

	if (!event)
		return false;
	event->n3_ns = n3_ns;
	event->exit_ns = now;
	event->slice = slice;
	event->bytes = bytes;
	/* A reader looks when it likes. */
	bpf_ringbuf_submit(event, BPF_RB_NO_WAKEUP);
	return true;
}

/* A packet that left the UPF; `at` is a constant where this is inlined. */
static __always_inline void leave(struct __sk_buff *skb, enum exit_point at)
{
	__u32 class = skb->tc_classid;
	struct inner inner = {};
	struct slice_stats *s;
	struct cursor c;
	int slice = class & CLASS_SLICE;
	__u64 now, delay, found, sender = 0;

	if (skb->protocol != bpf_htons(ETH_P_IP) && skb->protocol != bpf_htons(ETH_P_IPV6))
		return;
	if (!open_packet(skb, link_bytes(skb), IP_HEADERS, &c) || !read_inner(&c, &inner))
		return;
	if (at == AT_N6 || slice == CLASS_SHARED) { /* other traffic passes here too */
		int owner;

		sender = sender_of(&inner, slice);
		owner = sender_slice(sender);
		slice = owner < 0 || (slice != CLASS_SHARED && slice != owner) ? (int)config.slices : owner;
	}
	s = stats_of(slice);
	if (!s)
		return;
	ADD(s->exit[at].packets, 1);
	ADD(s->exit[at].bytes, inner.bytes);
	if (slice == config.slices || !chosen(inner.hash, READ_ONCE(s->timing.leave_up_to)))
		return;
	found = flight_find(slice, inner.hash, &s->exit[at].next);
	if (!found) {
		ADD(s->exit[at].missed, 1);
		return;
	}
	now = bpf_ktime_get_ns();
	delay = delay_of(found, now);
	record(s->delay[at], delay);
	WRITE_ONCE(s->exit[at].last_left_ns, now - delay + (1 << UNIT_SHIFT)); /* rounded up: not before its mark */
	if (config.flows)
		leave_flow(found & FLOW_MASK, at, inner.bytes, delay);
	if (at != config.last)
		return;
	if (found & UNCOUNTED) {
		ADD(s->n3.packets, 1);
		ADD(s->n3.bytes, inner.bytes);
	}
	if (!READ_ONCE(s->timing.proven))
		WRITE_ONCE(s->timing.proven, 1);
	sender_prove(at == AT_N6 ? sender : sender_of(&inner, slice), slice, now);
	if (config.report && chosen(inner.hash, config.report_up_to) && !report(slice, inner.bytes, now - delay, now))
		ADD(s->exit[at].unreported, 1);
}

SEC("tc")
int tun_ingress(struct __sk_buff *skb)
{
	leave(skb, AT_TUN);
	return TC_ACT_UNSPEC;
}

SEC("tc")
int n6_exit(struct __sk_buff *skb)
{
	leave(skb, AT_N6);
	return TC_ACT_UNSPEC;
}

/* Which class of a shaper that slices share a packet goes to (tc-bpf(8), direct action). */
SEC("tc")
int shaper_class(struct __sk_buff *skb)
{
	struct inner inner = {};
	struct cursor c;
	int owner = -1;

	if ((skb->protocol == bpf_htons(ETH_P_IP) || skb->protocol == bpf_htons(ETH_P_IPV6)) &&
	    open_packet(skb, ETH_HLEN, IP_HEADERS, &c) && read_inner(&c, &inner))
		owner = sender_slice(sender_of(&inner, 0));
	skb->tc_classid = owner < 0 ? SHAPER_REST : SHAPER_FIRST + owner;
	return TC_ACT_OK;
}
