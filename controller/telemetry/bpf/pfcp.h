/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/* The header of a PFCP message (3GPP TS 29.244, 7.2.2). */
#pragma once

#include "headers.h"

#define PFCP_PORT 8805 /* TS 29.244, 4.2.2 */
#define PFCP_HEADERS 128 /* linear bytes wanted */
#define PFCP_VERSION_MASK 0xe0
#define PFCP_VERSION 0x20
#define PFCP_FOLLOW_ON 0x04 /* another message comes behind this one in the datagram (bundling, 5.5A) */
#define PFCP_HAS_SEID 0x01

#define BIT(n) (1ULL << (n))

/* Type and sequence number of the message; false when it is no PFCP. */
static __always_inline bool read_pfcp(struct cursor *c, __u8 *type, __u32 *sequence)
{
	__u8 *octets = c->pos;

	if (c->pos + 8 > c->end || c->left < 8 || (octets[0] & PFCP_VERSION_MASK) != PFCP_VERSION)
		return false;
	*type = octets[1];
	if (octets[0] & PFCP_HAS_SEID) {
		if (c->pos + 16 > c->end || c->left < 16)
			return false;
		octets += 8;
	}
	*sequence = octets[4] << 16 | octets[5] << 8 | octets[6];
	return true;
}
