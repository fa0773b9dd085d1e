/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/*
 * Slices that are no UPFs: a service takes requests at TCP or UDP ports and sends answers from them.
 *
 * A request is a packet with payload that comes for one of its ports, an answer one that leaves from there. Requests
 * wait by conversation: addresses, protocol, ports, all of which are compared, as clients choose most of them. The first
 * one that finds none waiting is timed, until the first answer, which is taken to answer all that came before it. That
 * is exact where a client waits for its answer before it asks again; of long and of pipelined requests it is the time of
 * the first packet of several, and `joined` counts the others. Where answers over UDP repeat the first octets of their
 * request (an identifier, as in DNS), these tell one request of a conversation from another.
 */
#pragma once

#include <linux/tcp.h>

#include "headers.h"
#include "histogram.h"
#include "inner.h"
#include "stats.h"

#define ANSWER_NS 10000000000ULL /* who has got none by then gets none: what leaves later answers something else */

/* Filled by user space (sharing.py). The key: number of the place (interface) from bit 16 on, port below it. */
struct port_owner {
	__u32 slice;
	__u32 echoed; /* first octets of a UDP payload that an answer repeats: 0, 2, 4, 8 */
};

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, __u32);
	__type(value, struct port_owner);
	__uint(max_entries, 4096);
} service_ports SEC(".maps");

/* A conversation, with the first octets of a request where answers repeat them; IPv4 in the first word. */
struct conversation {
	__u32 client[4];
	__u32 service[4];
	__u64 echo;
	__u32 ports;
	__u16 slice;
	__u8 protocol;
	__u8 version; /* of IP */
};

/* What waits for an answer; `since_ns` 0: nothing. */
struct waiting {
	__u64 since_ns;
	__u64 bytes;
};

struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__type(key, struct conversation);
	__type(value, struct waiting);
	__uint(max_entries, 65536); /* set before loading */
} requests SEC(".maps");

struct exchange {
	struct conversation of;
	__u32 bytes; /* of IP packets as they are on the wire, where one skb stands for several (GSO) */
};

static __always_inline __u64 echo_at(const struct cursor *c, __u32 octets)
{
	if (c->left < 8 || c->pos + 8 > c->end) { /* short messages, word by word */
		if (octets == 4 && c->left >= 4 && c->pos + 4 <= c->end)
			return half_at(c->pos);
		if (octets == 2 && c->left >= 2 && c->pos + 2 <= c->end)
			return *(__u16 *)c->pos;
		return 0;
	}
	return octets == 8 ? word_at(c->pos) : octets == 4 ? half_at(c->pos) : *(__u16 *)c->pos;
}

/*
 * Reads a packet of a service; false for all others and for those without payload. `answer`, a constant where this is
 * inlined: it leaves the service. Of a fragmented packet the first part counts. IPv6 extension headers are not walked,
 * UDP's own length and checksums not looked at, and packets that are longer than their header can say (BIG TCP, RFC 2675)
 * not read.
 */
static __always_inline bool read_exchange(struct __sk_buff *skb, bool answer, struct exchange *x)
{
	__u32 key, ports, headers, packet;
	struct port_owner *owner;
	struct cursor c;
	__u16 port;
	__u8 protocol;

	if (!open_packet(skb, link_bytes(skb), IP_HEADERS, &c))
		return false;
	if (skb->protocol == bpf_htons(ETH_P_IP)) {
		struct iphdr *ip = c.pos;

		if ((void *)(ip + 1) > c.end || ip->version != 4 || ip->ihl < 5 || ip->frag_off & bpf_htons(IPV4_OFFSET_MASK))
			return false;
		protocol = ip->protocol;
		packet = bpf_ntohs(ip->tot_len);
		headers = ip->ihl * 4;
		x->of.version = 4;
		x->of.client[0] = answer ? ip->daddr : ip->saddr;
		x->of.service[0] = answer ? ip->saddr : ip->daddr;
	} else if (skb->protocol == bpf_htons(ETH_P_IPV6)) {
		struct ipv6hdr *ip = c.pos;

		if ((void *)(ip + 1) > c.end || ip->version != 6)
			return false;
		x->of.version = 6;
		__builtin_memcpy(x->of.client, answer ? &ip->daddr : &ip->saddr, sizeof(x->of.client));
		__builtin_memcpy(x->of.service, answer ? &ip->saddr : &ip->daddr, sizeof(x->of.service));
		protocol = ip->nexthdr;
		packet = bpf_ntohs(ip->payload_len) + sizeof(*ip);
		headers = sizeof(*ip);
	} else {
		return false;
	}
	if (packet < headers || packet > c.left)
		return false;
	c.left = packet; /* a short frame is padded */
	if (!skip(&c, headers) || c.left < 8 || c.pos + 8 > c.end)
		return false;
	ports = half_at(c.pos);
	if (answer)
		ports = ports << 16 | ports >> 16;
	port = bpf_ntohs(ports >> 16); /* the service's, second as they are read from a request */
	if (protocol == IPPROTO_TCP) {
		struct tcphdr *tcp = c.pos;
		__u32 offset;

		if ((void *)(tcp + 1) > c.end)
			return false;
		offset = tcp->doff * 4;
		headers += offset;
		if (offset < sizeof(*tcp) || offset >= c.left)
			return false;
	} else if (protocol == IPPROTO_UDP) {
		headers += sizeof(struct udphdr);
		if (!skip(&c, sizeof(struct udphdr)) || !c.left)
			return false;
	} else {
		return false;
	}
	key = (skb->tc_classid & CLASS_SLICE) << 16 | port;
	owner = bpf_map_lookup_elem(&service_ports, &key);
	if (!owner)
		return false;
	x->of.slice = owner->slice;
	x->of.ports = ports;
	x->of.protocol = protocol;
	x->bytes = packet + (skb->gso_segs > 1 ? (skb->gso_segs - 1) * headers : 0);
	if (protocol == IPPROTO_UDP && owner->echoed)
		x->of.echo = echo_at(&c, owner->echoed);
	return true;
}

SEC("tc")
int service_request(struct __sk_buff *skb)
{
	struct waiting *w, first = {};
	struct exchange x = {};
	struct slice_stats *s;
	__u64 now, since;

	if (!read_exchange(skb, false, &x) || !(s = stats_of(x.of.slice)))
		return TC_ACT_UNSPEC;
	ADD(s->n3.packets, 1);
	ADD(s->n3.bytes, x.bytes);
	now = bpf_ktime_get_ns();
	w = bpf_map_lookup_elem(&requests, &x.of);
	if (!w) {
		first.since_ns = now;
		first.bytes = x.bytes;
		bpf_map_update_elem(&requests, &x.of, &first, BPF_ANY);
	} else {
		since = READ_ONCE(w->since_ns);
		if (since && now - since < ANSWER_NS) {
			ADD(w->bytes, x.bytes);
			ADD(s->n3.joined, 1);
			return TC_ACT_UNSPEC;
		}
		WRITE_ONCE(w->bytes, x.bytes);
		WRITE_ONCE(w->since_ns, now);
	}
	mark(&s->n3, now);
	return TC_ACT_UNSPEC;
}

SEC("tc")
int service_answer(struct __sk_buff *skb)
{
	struct exchange x = {};
	struct slice_stats *s;
	struct waiting *w;
	__u64 since, now;

	if (!read_exchange(skb, true, &x) || !(s = stats_of(x.of.slice)))
		return TC_ACT_UNSPEC;
	ADD(s->exit[AT_N6].packets, 1);
	ADD(s->exit[AT_N6].bytes, x.bytes);
	w = bpf_map_lookup_elem(&requests, &x.of);
	if (!w)
		return TC_ACT_UNSPEC;
	since = __sync_lock_test_and_set(&w->since_ns, 0);
	now = bpf_ktime_get_ns();
	if (!since || now - since >= ANSWER_NS)
		return TC_ACT_UNSPEC;
	ADD(s->exit[AT_N6].answered_bytes, READ_ONCE(w->bytes));
	record(s->delay[AT_N6], now - since);
	WRITE_ONCE(s->exit[AT_N6].last_left_ns, since + 1);
	return TC_ACT_UNSPEC;
}
