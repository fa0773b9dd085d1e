/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/*
 * Which flow a packet belongs to, and which slice a UE address belongs to: learned at N3, in open-addressed tables of
 * words without locks. A reader may clear a word of `flow_keys` to free an idle flow (and finds a flow twice when that
 * made a hole before it); it then counts `flows_of` anew.
 *
 * Places are limited and a slice may ask for any number of them, so none can take those of the others.
 */
#pragma once

#include "layout.h"
#include "siphash.h"

#define PROBES 4

__u64 flow_keys[FLOWS] SEC(".bss.flow_keys");
__u32 flows_of[MAX_SLICES] SEC(".bss.flows_of"); /* places by slice */

static __always_inline __u64 flow_key(__u32 slice, __u32 teid, __u32 qfi)
{
	return FLOW_VALID | (__u64)slice << 40 | (__u64)qfi << 32 | teid;
}

/*
 * Where to look first: multiply-shift hashing (Dietzfelbinger et al., 1997) by a secret, so that nobody can choose flows
 * that take all places which are near another's. Once alone it sends the consecutive tunnels of an SMF to places at
 * equal distances, which by one secret in ten are too near each other for a third of the table; so twice, with a fold
 * between. Keys are compared as a whole, so this need not be more.
 */
static __always_inline __u64 flow_home(__u64 key)
{
	__u64 factor = secret.key[0] | 1, product = key * factor;

	return (product ^ product >> 32) * factor >> 48;
}

/* Index of a flow, FLOWS where there is no place: near its home, or for a slice that has `most` of them. */
static __always_inline __u32 flow_of(__u64 key, __u32 most)
{
	__u64 home = flow_home(key);
	__u32 *count = &flows_of[key >> 40 & (MAX_SLICES - 1)];

#pragma unroll
	for (int i = 0; i < PROBES; i++) {
		__u32 index = (home + i) & (FLOWS - 1);
		__u64 seen = READ_ONCE(flow_keys[index]);

		if (!seen) {
			if (READ_ONCE(*count) >= most)
				break;
			seen = __sync_val_compare_and_swap(&flow_keys[index], 0, key);
			if (!seen) {
				ADD(*count, 1);
				return index;
			}
		}
		if (seen == key)
			return index;
	}
	return FLOWS;
}

/*
 * Sender -> slice, so that a packet is counted to its slice behind a shared uplink whether or not it was sampled. A
 * sender is a UE's address; where slices are told by QFI and a UE may have several, it is who talks with whom. Where no
 * point is shared, each slice has its own senders: two UPFs may give out the same addresses.
 *
 * Anybody can write anybody's address into a packet. So a claim to a sender holds only when a packet of it has left the
 * UPF, which checks (TS 23.501, 5.8.2). It gives way to another slice, or another sender, when that has not been so for
 * some 10 seconds; one that does not hold yet, after some 0.2 s, which is long enough for a packet to pass. It cannot
 * prolong that: who claims what others send holds nothing up for longer.
 *
 * A slice that has senders without number which its UPF lets through could hold every place. So where all are held, one
 * of a slice that has more than its part of them goes to one that has less.
 *
 * Senders are known by 64 bits of a keyed hash (packets.bpf.c): with an unkeyed hash a UE of another slice could find,
 * within seconds, a conversation of its own that is taken for somebody else's.
 *
 * Word: 48 bits of the sender's hash, whether it holds, when it was made (in units of 2^27 ns, modulo 64) or last
 * renewed (in units of 2^33 ns), and slice + 1.
 */
#define SENDERS 16384
#define SENDER_PROBES 8 /* of 5000 senders one in 3800 finds all taken, with 4 one in 200 */

__u64 sender_slices[SENDERS] SEC(".bss.sender_slices");
__u32 senders_of[MAX_SLICES] SEC(".bss.senders_of"); /* places by slice */

#define SENDER_SLICE 0x1ffULL
#define SENDER_UNITS (63ULL << 9)
#define SENDER_HOLDS (1ULL << 15)
#define SENDER_MADE(now) (((now) >> 27 & 63) << 9)
#define SENDER_RENEWED(now) (((now) >> 33 & 63) << 9)
#define STALE_UNITS 2
#define SENDER_TAG(hash) ((hash) & ~0xffffULL)
#define SENDER_HOME(hash) ((__u32)((hash) >> 40))

/* Whether somebody else may have the place of a word. */
static __always_inline bool sender_yields(__u64 word)
{
	__u64 now = bpf_ktime_get_ns(), unit = word & SENDER_HOLDS ? SENDER_RENEWED(now) : SENDER_MADE(now);

	return ((unit - (word & SENDER_UNITS)) & SENDER_UNITS) >> 9 >= STALE_UNITS;
}

enum claim { CLAIM_WAITS, CLAIM_HOLDS, CLAIM_CROWDED };

static __always_inline __u32 *senders_with(__u64 word)
{
	return &senders_of[((word & SENDER_SLICE) - 1) & (MAX_SLICES - 1)];
}

/*
 * Claims a sender for a slice, of which each has `part` of the places. CLAIM_CROWDED: there is none for it. No word is
 * ever cleared, so there is nothing behind a gap.
 */
static __always_inline enum claim sender_claim(__u64 sender, __u32 slice, __u32 part)
{
	__u64 tag = SENDER_TAG(sender), word, before = 0;
	__u32 home = SENDER_HOME(sender), place = SENDERS, others = SENDERS;
	bool poor = READ_ONCE(*senders_with(slice + 1)) < part;

#pragma unroll
	for (int i = 0; i < SENDER_PROBES; i++) {
		__u32 index = (home + i) & (SENDERS - 1);
		__u64 seen = READ_ONCE(sender_slices[index]);

		if (!seen) {
			place = index;
			break;
		}
		if (SENDER_TAG(seen) == tag) {
			if ((seen & SENDER_SLICE) == slice + 1)
				return seen & SENDER_HOLDS ? CLAIM_HOLDS : CLAIM_WAITS;
			if (!sender_yields(seen))
				return CLAIM_WAITS;
			place = index;
			break;
		}
		if (place == SENDERS && sender_yields(seen))
			place = index;
		if (poor && others == SENDERS && READ_ONCE(*senders_with(seen)) > part)
			others = index;
	}
	if (place == SENDERS)
		place = others;
	if (place == SENDERS)
		return CLAIM_CROWDED;
	before = READ_ONCE(sender_slices[place]);
	word = tag | SENDER_MADE(bpf_ktime_get_ns()) | (slice + 1);
	if (__sync_val_compare_and_swap(&sender_slices[place], before, word) == before) {
		ADD(*senders_with(word), 1);
		if (before)
			ADD(*senders_with(before), -1);
	}
	return CLAIM_WAITS;
}

/* A packet of a sender has left by its slice. */
static __always_inline void sender_prove(__u64 sender, __u32 slice, __u64 now)
{
	__u64 word = SENDER_TAG(sender) | SENDER_HOLDS | SENDER_RENEWED(now) | (slice + 1);

#pragma unroll
	for (int i = 0; i < SENDER_PROBES; i++) {
		__u32 index = (SENDER_HOME(sender) + i) & (SENDERS - 1);
		__u64 seen = READ_ONCE(sender_slices[index]);

		if (((seen ^ word) & ~(SENDER_HOLDS | SENDER_UNITS)) == 0) {
			if (seen != word)
				WRITE_ONCE(sender_slices[index], word);
			return;
		}
	}
}

/* Slice of a sender; -1 when N3 has not seen it. */
static __always_inline int sender_slice(__u64 sender)
{
#pragma unroll
	for (int i = 0; i < SENDER_PROBES; i++) {
		__u64 seen = READ_ONCE(sender_slices[(SENDER_HOME(sender) + i) & (SENDERS - 1)]);

		if (SENDER_TAG(seen) == SENDER_TAG(sender) && seen)
			return (int)(seen & SENDER_SLICE) - 1;
	}
	return -1;
}
