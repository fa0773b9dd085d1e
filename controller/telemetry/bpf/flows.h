/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/*
 * Which flow a packet belongs to, and which slice a UE address belongs to: learned at N3, in open-addressed tables of
 * words without locks. A reader may clear a word of `flow_keys` to free an idle flow (and finds a flow twice when that
 * made a hole before it).
 */
#pragma once

#include "layout.h"

#define PROBES 4

__u64 flow_keys[FLOWS] SEC(".bss.flow_keys");

static __always_inline __u64 flow_key(__u32 slice, __u32 teid, __u32 qfi)
{
	return FLOW_VALID | (__u64)slice << 40 | (__u64)qfi << 32 | teid;
}

static __always_inline __u32 flow_of(__u64 key)
{
	__u64 home = key * 0x9e3779b97f4a7c15ULL >> 48;

#pragma unroll
	for (int i = 0; i < PROBES; i++) {
		__u32 index = (home + i) & (FLOWS - 1);
		__u64 seen = READ_ONCE(flow_keys[index]);

		if (!seen)
			seen = __sync_val_compare_and_swap(&flow_keys[index], 0, key) ?: key;
		if (seen == key)
			return index;
	}
	return FLOWS;
}

/*
 * Sender -> slice, so that a packet is counted to its slice behind a shared uplink whether or not it was sampled. A
 * sender is a UE's address; where slices are told by QFI and a UE may have several, it is who talks with whom.
 * Word: 48 bits of the sender's hash, then slice + 1. When a neighbourhood is full the newest sender takes its first
 * place.
 */
#define SENDERS 16384

__u64 sender_slices[SENDERS] SEC(".bss.sender_slices");

static __always_inline __u64 sender_hash(__u64 sender)
{
	sender *= 0x9e3779b97f4a7c15ULL;
	sender ^= sender >> 32;
	return sender * 0xd6e8feb86659fd93ULL;
}

#define SENDER_TAG(hash) ((hash) & ~0xffffULL)
#define SENDER_HOME(hash) ((__u32)((hash) >> 40))

static __always_inline void sender_learn(__u64 sender, __u32 slice)
{
	__u64 hash = sender_hash(sender), word = SENDER_TAG(hash) | (slice + 1);
	__u32 free = SENDER_HOME(hash) & (SENDERS - 1);

#pragma unroll
	for (int i = PROBES - 1; i >= 0; i--) {
		__u32 index = (SENDER_HOME(hash) + i) & (SENDERS - 1);
		__u64 seen = READ_ONCE(sender_slices[index]);

		if (seen == word)
			return;
		if (!seen || SENDER_TAG(seen) == SENDER_TAG(word))
			free = index;
	}
	WRITE_ONCE(sender_slices[free], word);
}

/* Slice of a sender; -1 when N3 has not seen it. */
static __always_inline int sender_slice(__u64 sender)
{
	__u64 hash = sender_hash(sender);

#pragma unroll
	for (int i = 0; i < PROBES; i++) {
		__u64 seen = READ_ONCE(sender_slices[(SENDER_HOME(hash) + i) & (SENDERS - 1)]);

		if (SENDER_TAG(seen) == SENDER_TAG(hash) && seen)
			return (int)(seen & 0xffff) - 1;
	}
	return -1;
}
