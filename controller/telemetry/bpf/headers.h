/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/*
 * From a frame to its IP packet, and from an outer IP packet to the payload of UDP.
 *
 * Outer packets of more than one fragment: the first one is read, it holds all that is needed; the others are passed
 * over. Of IPv6 extension headers before an outer UDP header only a Fragment header is walked (RFC 8200, 4.5; GTP-U and
 * PFCP peers send no others), and jumbograms (RFC 2675) are not read. A packet that is longer than what there is of it
 * is none, as to the kernel. Checksums are not looked at.
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
#define IPV6_OFFSET_MASK 0xfff8 /* RFC 8200, 4.5 */
#define IPV6_MORE_FRAGMENTS 1

struct ipv6_fragment {
	__u8 next;
	__u8 reserved;
	__be16 offset_and_more;
	__be32 id;
};

/*
 * The part of a packet that is still to be read. `left` counts bytes to the end of what it is in, by what that says, not
 * to the end of its linear part; `beyond` those that other fragments of it bring.
 */
struct cursor {
	void *pos;
	void *end;
	__u32 left;
	__u32 beyond;
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
	c->beyond = 0;
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

/* From here on only what an IP packet says is its own is left; false when that is more than there is. */
static __always_inline bool end_packet(struct cursor *c, __u32 bytes)
{
	if (bytes > c->left)
		return false;
	c->left = bytes;
	return true;
}

/*
 * From the outer IP header to UDP's payload; `who` is filled where it is asked for, `whole` says whether the datagram
 * came in one piece. False: not UDP, or not the first fragment.
 */
static __always_inline bool open_udp(__be16 protocol, struct cursor *c, struct udphdr *udp, struct endpoints *who,
				     bool *whole)
{
	if (protocol == bpf_htons(ETH_P_IP)) {
		struct iphdr *ip = c->pos;
		__u32 header;

		if ((void *)(ip + 1) > c->end || ip->version != 4)
			return false;
		header = ip->ihl * 4;
		if (ip->protocol != IPPROTO_UDP || header < sizeof(*ip) || ip->frag_off & bpf_htons(IPV4_OFFSET_MASK) ||
		    !end_packet(c, bpf_ntohs(ip->tot_len)))
			return false;
		*whole = !(ip->frag_off & bpf_htons(IPV4_MORE_FRAGMENTS));
		if (who) {
			who->source[0] = ip->saddr;
			who->destination[0] = ip->daddr;
		}
		if (!skip(c, header))
			return false;
	} else if (protocol == bpf_htons(ETH_P_IPV6)) {
		struct ipv6hdr *ip = c->pos;
		__u8 next;

		if ((void *)(ip + 1) > c->end || ip->version != 6 ||
		    !end_packet(c, bpf_ntohs(ip->payload_len) + sizeof(*ip)))
			return false;
		next = ip->nexthdr;
		if (who) {
			__builtin_memcpy(who->source, &ip->saddr, sizeof(who->source));
			__builtin_memcpy(who->destination, &ip->daddr, sizeof(who->destination));
		}
		if (!skip(c, sizeof(*ip)))
			return false;
		*whole = true;
		if (next == IPPROTO_FRAGMENT) {
			struct ipv6_fragment *fragment = c->pos;

			if ((void *)(fragment + 1) > c->end || fragment->offset_and_more & bpf_htons(IPV6_OFFSET_MASK))
				return false;
			next = fragment->next;
			*whole = !(fragment->offset_and_more & bpf_htons(IPV6_MORE_FRAGMENTS));
			if (!skip(c, sizeof(*fragment)))
				return false;
		}
		if (next != IPPROTO_UDP)
			return false;
	} else {
		return false;
	}
	if (c->pos + sizeof(*udp) > c->end)
		return false;
	__builtin_memcpy(udp, c->pos, sizeof(*udp));
	return skip(c, sizeof(*udp));
}

/*
 * From here on only what a datagram says is its own is left: also of one of which only the first part is there, as a UE
 * may say of its packets' length what it likes. False when a whole one says more than there is, or less than nothing
 * (RFC 768): the kernel drops it.
 */
static __always_inline bool end_datagram(struct cursor *c, const struct udphdr *udp, bool whole)
{
	__u32 bytes = bpf_ntohs(udp->len);

	if (bytes < sizeof(*udp))
		return false;
	bytes -= sizeof(*udp);
	if (bytes <= c->left)
		c->left = bytes;
	else if (whole)
		return false;
	else
		c->beyond = bytes - c->left;
	return true;
}
