/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/*
 * A hash that tells an IP packet from others wherever it is seen on its way.
 *
 * Hashed: addresses, protocol, total length, fragment identification and offset, ports or the rest of the transport
 * header, and the first 32 bytes of the payload (36 where less than 8 follow). Left out is what a forwarder may change:
 * TTL, hop limit, DSCP and ECN, flow label, checksums. With DF set and an IP id of 0 the payload tells packets apart:
 * sequence numbers and time stamps of RTP, QUIC, TCP and the like lie in its first bytes.
 */
#pragma once

#include "headers.h"

#define IP_HEADERS 128 /* linear bytes wanted: link, IPv6, TCP, payload words */
#define PAYLOAD_WORDS 4

struct inner {
	__u64 hash;
	__u64 ue; /* who sent it: an IPv4 address, or the /64 prefix that a UE owns (TS 23.501, 5.8.2.2.3) */
	__u64 conversation; /* who talks with whom: addresses, protocol, ports */
	__u32 bytes;
	__u32 version; /* of IP */
};

static __always_inline __u64 mix(__u64 hash, __u64 word)
{
	hash = (hash ^ word) * 0x9e3779b97f4a7c15ULL;
	return hash ^ hash >> 29;
}

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
static __always_inline __u64 hash_transport(__u64 hash, __u8 protocol, struct cursor *c)
{
	void *pos = c->pos;

	if (protocol == IPPROTO_UDP && c->left >= 8 && pos + 8 <= c->end) {
		hash = mix(hash, half_at(pos)); /* ports; the length follows from the packet's */
		skip(c, 8);
	} else if (protocol == IPPROTO_TCP && c->left >= 20 && pos + 20 <= c->end) {
		hash = mix(hash, word_at(pos)); /* ports, sequence number */
		hash = mix(hash, word_at(pos + 8)); /* acknowledgement, offset, flags, window */
		skip(c, 20);
	} else if ((protocol == IPPROTO_ICMP || protocol == IPPROTO_ICMPV6) && c->left >= 8 && pos + 8 <= c->end) {
		hash = mix(hash, (__u64)half_at(pos + 4) << 32 | *(__u16 *)pos); /* id, sequence; type, code */
		skip(c, 8);
	}
	return hash;
}

static __always_inline __u64 hash_payload(__u64 hash, struct cursor *c)
{
#pragma unroll
	for (int i = 0; i < PAYLOAD_WORDS; i++) {
		if (c->left < 8 || c->pos + 8 > c->end)
			break;
		hash = mix(hash, word_at(c->pos));
		c->pos += 8;
		c->left -= 8;
	}
	if (c->left >= 4 && c->left < 8 && c->pos + 4 <= c->end)
		hash = mix(hash, half_at(c->pos));
	return hash;
}

/*
 * Reads an IP packet; false when it is none or makes no sense. Its first octet tells the version, whatever a frame says.
 * IPv6 extension headers count as payload, and a jumbogram (RFC 2675) as its header.
 */
static __always_inline bool read_inner(struct cursor *c, struct inner *inner)
{
	__u8 protocol, version;
	bool fragment = false;
	__u32 rest;
	__u64 hash;

	if (c->pos + sizeof(struct iphdr) > c->end || c->left < sizeof(struct iphdr))
		return false;
	version = *(__u8 *)c->pos >> 4;
	if (version == 4) {
		struct iphdr *ip = c->pos;
		__u32 header = ip->ihl * 4;

		inner->bytes = bpf_ntohs(ip->tot_len);
		if (header < sizeof(*ip) || inner->bytes < header || inner->bytes > c->left + c->beyond)
			return false;
		protocol = ip->frag_off & bpf_htons(IPV4_OFFSET_MASK) ? IPPROTO_RAW : ip->protocol;
		inner->ue = 1ULL << 32 | ip->saddr;
		hash = mix(inner->bytes << 8 | ip->protocol, word_at(&ip->saddr));
		inner->conversation = mix(ip->protocol, word_at(&ip->saddr));
		fragment = ip->frag_off & bpf_htons(IPV4_OFFSET_MASK | IPV4_MORE_FRAGMENTS);
		hash = mix(hash, half_at(&ip->id)); /* with flags and offset */
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
		protocol = ip->nexthdr;
		inner->ue = word_at(&ip->saddr);
		hash = mix(inner->bytes << 8 | protocol, inner->ue);
		hash = mix(hash, word_at((void *)&ip->saddr + 8));
		hash = mix(hash, word_at(&ip->daddr));
		hash = mix(hash, word_at((void *)&ip->daddr + 8));
		inner->conversation = mix(mix(protocol, inner->ue), word_at((void *)&ip->saddr + 8));
		inner->conversation = mix(inner->conversation, word_at(&ip->daddr));
		inner->conversation = mix(inner->conversation, word_at((void *)&ip->daddr + 8));
		if (!skip(c, sizeof(*ip)))
			return false;
		rest = inner->bytes - sizeof(*ip);
	} else {
		return false;
	}
	if (c->left > rest) /* a short frame is padded */
		c->left = rest;
	inner->version = version;
	if (!fragment) /* of whose parts only the first has ports */
		inner->conversation = mix(inner->conversation, ports_at(protocol, c));
	hash = hash_payload(hash_transport(hash, protocol, c), c);
	hash ^= hash >> 32;
	hash *= 0xd6e8feb86659fd93ULL;
	inner->hash = hash ^ hash >> 32;
	return true;
}
