/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/*
 * From a frame to its IP packet, and from an outer IP packet to the payload of UDP.
 *
 * Outer packets of more than one fragment: the first one is read, it holds all that is needed; the others are passed
 * over. IPv6 extension headers before an outer UDP header are not walked (GTP-U and PFCP peers send none).
 */
#pragma once

#include <linux/if_ether.h>
#include <linux/in.h>
#include <linux/in6.h>
#include <linux/ip.h>
#include <linux/ipv6.h>
#include <linux/udp.h>

#include "types.h"

#define IPV4_OFFSET_MASK 0x1fff
#define IPV4_MORE_FRAGMENTS 0x2000

/* The part of a packet that is still to be read; `left` counts bytes to the end of the packet, not of its linear part. */
struct cursor {
	void *pos;
	void *end;
	__u32 left;
};

/*
 * Opens a frame at its network header. `want` bytes are brought into the linear part of the buffer where they are not
 * already there: bpf_skb_pull_data copies, so it is called only then.
 */
static __always_inline bool open_packet(struct __sk_buff *skb, __u32 link_bytes, __u32 want, struct cursor *c)
{
	void *data = (void *)(long)skb->data;
	void *end = (void *)(long)skb->data_end;

	if (data + want > end && skb->len > (__u32)(end - data)) {
		if (bpf_skb_pull_data(skb, skb->len < want ? skb->len : want))
			return false;
		data = (void *)(long)skb->data;
		end = (void *)(long)skb->data_end;
	}
	c->pos = data + link_bytes;
	c->end = end;
	c->left = skb->len - link_bytes;
	return c->pos < end;
}

/* Steps over `bytes`, at most 2^16; they must be there for the caller to read. */
static __always_inline bool skip(struct cursor *c, __u32 bytes)
{
	if (c->pos + bytes > c->end || bytes > c->left)
		return false;
	c->pos += bytes;
	c->left -= bytes;
	return true;
}

/* Who talks to whom, IPv4 addresses in the first word. */
struct endpoints {
	__u32 source[4];
	__u32 destination[4];
};

/*
 * From the outer IP header to UDP's payload; `who` is filled where it is asked for. False: not UDP, or not the first
 * fragment.
 */
static __always_inline bool open_udp(__be16 protocol, struct cursor *c, struct udphdr *udp, struct endpoints *who)
{
	if (protocol == bpf_htons(ETH_P_IP)) {
		struct iphdr *ip = c->pos;
		__u32 header;

		if ((void *)(ip + 1) > c->end)
			return false;
		header = ip->ihl * 4;
		if (ip->protocol != IPPROTO_UDP || header < sizeof(*ip) || ip->frag_off & bpf_htons(IPV4_OFFSET_MASK))
			return false;
		if (who) {
			who->source[0] = ip->saddr;
			who->destination[0] = ip->daddr;
		}
		if (!skip(c, header))
			return false;
	} else if (protocol == bpf_htons(ETH_P_IPV6)) {
		struct ipv6hdr *ip = c->pos;

		if ((void *)(ip + 1) > c->end || ip->nexthdr != IPPROTO_UDP)
			return false;
		if (who) {
			__builtin_memcpy(who->source, &ip->saddr, sizeof(who->source));
			__builtin_memcpy(who->destination, &ip->daddr, sizeof(who->destination));
		}
		if (!skip(c, sizeof(*ip)))
			return false;
	} else {
		return false;
	}
	if (c->pos + sizeof(*udp) > c->end)
		return false;
	__builtin_memcpy(udp, c->pos, sizeof(*udp));
	return skip(c, sizeof(*udp));
}
