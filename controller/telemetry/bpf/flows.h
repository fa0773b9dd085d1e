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
 * UE address -> slice, so that a packet is counted to its slice behind a shared uplink whether or not it was sampled.
 * Word: 48 bits of the address's hash, then slice + 1. When a neighbourhood is full the newest address takes its first
 * place.
 */
#define UES 16384

__u64 ue_slices[UES] SEC(".bss.ue_slices");

static __always_inline __u64 ue_hash(__u64 ue)
{
	ue *= 0x9e3779b97f4a7c15ULL;
	ue ^= ue >> 32;
	return ue * 0xd6e8feb86659fd93ULL;
}

#define UE_TAG(hash) ((hash) & ~0xffffULL)
#define UE_HOME(hash) ((__u32)((hash) >> 40))

static __always_inline void ue_learn(__u64 ue, __u32 slice)
{
	__u64 hash = ue_hash(ue), word = UE_TAG(hash) | (slice + 1);
	__u32 free = UE_HOME(hash) & (UES - 1);

#pragma unroll
	for (int i = PROBES - 1; i >= 0; i--) {
		__u32 index = (UE_HOME(hash) + i) & (UES - 1);
		__u64 seen = READ_ONCE(ue_slices[index]);

		if (seen == word)
			return;
		if (!seen || UE_TAG(seen) == UE_TAG(word))
			free = index;
	}
	WRITE_ONCE(ue_slices[free], word);
}

/* Slice of a UE's address; -1 when N3 has not seen it. */
static __always_inline int ue_slice(__u64 ue)
{
	__u64 hash = ue_hash(ue);

#pragma unroll
	for (int i = 0; i < PROBES; i++) {
		__u64 seen = READ_ONCE(ue_slices[(UE_HOME(hash) + i) & (UES - 1)]);

		if (UE_TAG(seen) == UE_TAG(hash) && seen)
			return (int)(seen & 0xffff) - 1;
	}
	return -1;
}
