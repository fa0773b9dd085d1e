/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/*
 * A hash that tells an IP packet from others wherever it is seen on its way, and who sends it. UEs choose packets, so
 * the hash is keyed (siphash.h).
 *
 * Hashed: addresses, protocol, total length, fragment identification and offset, ports or the rest of the transport
 * header, and the first 32 bytes of the payload (36 where less than 8 follow). Left out is what a forwarder may change:
 * TTL, hop limit, DSCP and ECN, flow label, checksums. With DF set and an IP id of 0 the payload tells packets apart:
 * sequence numbers and time stamps of RTP, QUIC, TCP and the like lie in its first bytes.
 */
#pragma once

#include "headers.h"
#include "siphash.h"

#define IP_HEADERS 128 /* linear bytes wanted: link, IPv6, TCP, payload words */
#define PAYLOAD_WORDS 4

struct inner {
	__u64 hash;
	__u64 ue; /* who sent it: an IPv4 address, or the /64 prefix that a UE owns (TS 23.501, 5.8.2.2.3) */
	__u64 addresses[4]; /* source and destination; IPv4: both in the first */
	__u64 talk; /* what a conversation has beside them: ports 47..16, whether of a fragment 12, IP's version 11..8, protocol */
	__u32 bytes;
	__u32 version; /* of IP */
};

#define OF_FRAGMENT (1U << 12)

static __always_inline __u64 word_at(void *pos)
{
	return *(__u64 *)pos;
}

static __always_inline __u32 half_at(void *pos)
{
	return *(__u32 *)pos;
}

/* Ports, where the first bytes of the transport header are any. */
static __always_inline __u32 ports_at(__u8 protocol, const struct cursor *c)
{
	if ((protocol != IPPROTO_UDP && protocol != IPPROTO_TCP) || c->left < 4 || c->pos + 4 > c->end)
		return 0;
	return half_at(c->pos);
}

/* What stands before the payload, without its checksum. Short headers count as payload. */
static __always_inline void hash_transport(struct siphash *s, __u8 protocol, struct cursor *c)
{
	void *pos = c->pos;

	if (protocol == IPPROTO_UDP && c->left >= 8 && pos + 8 <= c->end) {
		siphash_add(s, half_at(pos)); /* ports; the length follows from the packet's */
		skip(c, 8);
	} else if (protocol == IPPROTO_TCP && c->left >= 20 && pos + 20 <= c->end) {
		siphash_add(s, word_at(pos)); /* ports, sequence number */
		siphash_add(s, word_at(pos + 8)); /* acknowledgement, offset, flags, window */
		skip(c, 20);
	} else if ((protocol == IPPROTO_ICMP || protocol == IPPROTO_ICMPV6) && c->left >= 8 && pos + 8 <= c->end) {
		siphash_add(s, (__u64)half_at(pos + 4) << 32 | *(__u16 *)pos); /* id, sequence; type, code */
		skip(c, 8);
	}
}

static __always_inline void hash_payload(struct siphash *s, struct cursor *c)
{
#pragma unroll
	for (int i = 0; i < PAYLOAD_WORDS; i++) {
		if (c->left < 8 || c->pos + 8 > c->end)
			break;
		siphash_add(s, word_at(c->pos));
		c->pos += 8;
		c->left -= 8;
	}
	if (c->left >= 4 && c->left < 8 && c->pos + 4 <= c->end)
		siphash_add(s, half_at(c->pos));
}

/*
 * Reads an IP packet; false when it is none or makes no sense. Its first octet tells the version, whatever a frame says.
 * IPv6 extension headers count as payload, and a jumbogram (RFC 2675) as its header.
 */
static __always_inline bool read_inner(struct cursor *c, struct inner *inner)
{
	__u8 protocol, version;
	bool fragment = false;
	struct siphash s;
	__u32 rest;

	if (c->pos + sizeof(struct iphdr) > c->end || c->left < sizeof(struct iphdr))
		return false;
	siphash_start(&s);
	version = *(__u8 *)c->pos >> 4;
	if (version == 4) {
		struct iphdr *ip = c->pos;
		__u32 header = ip->ihl * 4;

		inner->bytes = bpf_ntohs(ip->tot_len);
		if (header < sizeof(*ip) || inner->bytes < header || inner->bytes > c->left + c->beyond)
			return false;
		protocol = ip->frag_off & bpf_htons(IPV4_OFFSET_MASK) ? IPPROTO_RAW : ip->protocol;
		fragment = ip->frag_off & bpf_htons(IPV4_OFFSET_MASK | IPV4_MORE_FRAGMENTS);
		inner->talk = ip->protocol;
		inner->ue = 1ULL << 32 | ip->saddr;
		inner->addresses[0] = word_at(&ip->saddr);
		/* Fragment's identification, flags and offset; octets; version and length of the header; protocol. */
		siphash_add(&s, (__u64)half_at(&ip->id) << 32 | inner->bytes << 16 | *(__u8 *)ip << 8 | ip->protocol);
		siphash_add(&s, inner->addresses[0]);
		if (!skip(c, header))
			return false;
		rest = inner->bytes - header;
	} else if (version == 6) {
		struct ipv6hdr *ip = c->pos;

		if ((void *)(ip + 1) > c->end)
			return false;
		inner->bytes = bpf_ntohs(ip->payload_len) + sizeof(*ip);
		if (inner->bytes > c->left + c->beyond)
			return false;
		protocol = inner->talk = ip->nexthdr;
		inner->ue = word_at(&ip->saddr);
		inner->addresses[0] = inner->ue;
		inner->addresses[1] = word_at((void *)&ip->saddr + 8);
		inner->addresses[2] = word_at(&ip->daddr);
		inner->addresses[3] = word_at((void *)&ip->daddr + 8);
		siphash_add(&s, inner->bytes << 16 | 0x6000 | protocol);
#pragma unroll
		for (int i = 0; i < 4; i++)
			siphash_add(&s, inner->addresses[i]);
		if (!skip(c, sizeof(*ip)))
			return false;
		rest = inner->bytes - sizeof(*ip);
	} else {
		return false;
	}
	if (c->left > rest) /* a short frame is padded */
		c->left = rest;
	inner->version = version;
	inner->talk |= version << 8;
	if (fragment) /* of whose parts only the first has ports */
		inner->talk |= OF_FRAGMENT;
	else
		inner->talk |= (__u64)ports_at(protocol, c) << 16;
	hash_transport(&s, protocol, c);
	hash_payload(&s, c);
	inner->hash = siphash_end(&s);
	return true;
}
