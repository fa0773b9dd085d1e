/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/*
 * GTP-U (3GPP TS 29.281) as far as its inner packet, with the QFI of the PDU Session Container (TS 38.415, 5.5.2), of the
 * last one where there are several.
 *
 * Not read: the length in the header (5.1), as UDP and the inner packet say theirs, and whether an extension header of
 * another type has to be understood (5.2.1), which is the UPF's to decide. A chain of more than MAX_EXTENSIONS is taken
 * for malformed, and so is one that goes beyond the octets which the caller has brought into the linear part.
 */
#pragma once

#include "headers.h"
#include "layout.h"

#define GTPU_PORT 2152 /* TS 29.281, 4.4.2.3 */
#define GTPU_V1_MASK 0xf0 /* version and protocol type, TS 29.281, 5.1 */
#define GTPU_V1 0x30
#define GTPU_OPTIONAL 0x07 /* E, S, PN: any of them brings four more octets */
#define GTPU_EXTENSION 0x04
#define GTPU_G_PDU 255
#define PDU_SESSION_CONTAINER 0x85 /* TS 29.281, figure 5.2.1-3 */
#define QFI_MASK 0x3f
#define MAX_EXTENSIONS 6

struct gtpu {
	__u8 flags;
	__u8 type;
	__be16 length;
	__be32 teid;
};

struct tunnel {
	__u32 teid;
	__u32 qfi;
};

enum gtpu_result { NOT_GTPU, GTPU_OTHER, GTPU_BROKEN, GTPU_INNER };

/* From UDP's payload to the inner packet: GTPU_INNER when it is there. */
static __always_inline enum gtpu_result open_gtpu(struct cursor *c, struct tunnel *tunnel)
{
	struct gtpu *header = c->pos;
	__u8 *octets;
	__u8 next;

	if (!skip(c, sizeof(*header)) || (header->flags & GTPU_V1_MASK) != GTPU_V1)
		return GTPU_BROKEN;
	if (header->type != GTPU_G_PDU)
		return GTPU_OTHER;
	tunnel->teid = bpf_ntohl(header->teid);
	tunnel->qfi = QFI_NONE;
	next = header->flags & GTPU_OPTIONAL;
	if (!next)
		return GTPU_INNER;

	/* sequence number, N-PDU number, type of the first extension header */
	octets = c->pos;
	if (c->pos + 4 > c->end)
		return GTPU_BROKEN;
	next = next & GTPU_EXTENSION ? octets[3] : 0;
	if (!skip(c, 4))
		return GTPU_BROKEN;

	for (int i = 0; i < MAX_EXTENSIONS && next; i++) {
		__u32 bytes;

		octets = c->pos;
		if (c->pos + 4 > c->end)
			return GTPU_BROKEN;
		bytes = octets[0] * 4;
		if (!bytes)
			return GTPU_BROKEN;
		if (next == PDU_SESSION_CONTAINER)
			tunnel->qfi = octets[2] & QFI_MASK;
		if (!skip(c, bytes - 1)) /* to the last octet: the type of what follows */
			return GTPU_BROKEN;
		octets = c->pos;
		if (c->pos + 1 > c->end)
			return GTPU_BROKEN;
		next = octets[0];
		if (!skip(c, 1))
			return GTPU_BROKEN;
	}
	return next ? GTPU_BROKEN : GTPU_INNER;
}
