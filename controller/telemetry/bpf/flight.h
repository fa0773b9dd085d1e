/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/*
 * Packets between N3 and the last point, one ring a slice: N3 writes records one after the other, a later point reads
 * on from where it was. Packets leave in about the order in which they came, so the next record is the right one, and
 * as eight lie in a cache line, only every eighth has to be fetched from the CPU that wrote it: a fetch takes longer
 * than all the rest (220 ns of 360 were measured with a hash table in its place).
 *
 * A packet whose record is not among the next few, because others were dropped or overtaken, is found by hash: records
 * with equal low bits of the hash are chained, the youngest first. A record is overwritten after PLACES younger ones;
 * its packet is missed if it is inside for longer. No locks: two CPUs that chain at the same moment may lose one from
 * the chain, not from the ring.
 */
#pragma once

#include "layout.h"

#define PLACES 16384 /* a power of two up to 2^16: 164 ms at 100,000 packets a second */
#define AHEAD 8 /* records looked at before the chain */
#define STEPS 8 /* links followed: more than PLACES hashes share but rarely */

/*
 * A record: time 63..33 in units of 64 ns (wraps after 137 s), tag 32..12, whether it was not counted at N3 11, flow
 * 10..0 (FLOWS: none). 0: none yet.
 */
#define TIME_SHIFT 33
#define TAG_MASK 0x1fffff000ULL
#define UNCOUNTED (1U << 11)
#define FLOW_MASK 0x7ff

struct flight {
	__u64 record[PLACES];
	__u16 older[PLACES]; /* place of the next older one of the chain */
	__u16 youngest[PLACES]; /* by the low bits of the hash */
} CACHE_LINE;

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__type(key, __u32);
	__type(value, struct flight);
	__uint(max_entries, MAX_SLICES);
} flights SEC(".maps");

static __always_inline __u64 tag_of(__u64 hash)
{
	return hash >> 20 & TAG_MASK;
}

static __always_inline __u32 place_of(__u32 n)
{
	return n & (PLACES - 1);
}

/* `number` counts the packets that enter, from 0; `flow`: with UNCOUNTED or without. */
static __always_inline void flight_enter(__u32 slice, __u32 number, __u64 hash, __u32 flow, __u64 now)
{
	struct flight *f = bpf_map_lookup_elem(&flights, &slice);
	__u32 place = place_of(number);

	if (!f)
		return;
	WRITE_ONCE(f->record[place], now >> UNIT_SHIFT << TIME_SHIFT | tag_of(hash) | flow);
	WRITE_ONCE(f->older[place], f->youngest[place_of(hash)]);
	WRITE_ONCE(f->youngest[place_of(hash)], place);
}

/*
 * The record of a packet; 0 when there is none. `next`: the place behind the last one that this point found, its own to
 * keep.
 */
static __always_inline __u64 flight_find(__u32 slice, __u64 hash, __u32 *next)
{
	struct flight *f = bpf_map_lookup_elem(&flights, &slice);
	__u32 from = READ_ONCE(*next), place;
	__u64 tag = tag_of(hash), word;

	if (!f)
		return 0;
#pragma unroll
	for (int i = 0; i < AHEAD; i++) {
		word = READ_ONCE(f->record[place_of(from + i)]);
		if (((word ^ tag) & TAG_MASK) == 0 && word) {
			WRITE_ONCE(*next, from + i + 1);
			return word;
		}
	}
	place = place_of(READ_ONCE(f->youngest[place_of(hash)]));
#pragma unroll
	for (int i = 0; i < STEPS; i++) {
		word = READ_ONCE(f->record[place]);
		if (((word ^ tag) & TAG_MASK) == 0 && word) {
			/* On from here, unless it is one that was overtaken. */
			if (place_of(place - from) < PLACES / 2)
				WRITE_ONCE(*next, place + 1);
			return word;
		}
		place = place_of(READ_ONCE(f->older[place]));
	}
	return 0;
}

static __always_inline __u64 delay_of(__u64 record, __u64 now)
{
	return ((now >> UNIT_SHIFT << TIME_SHIFT) - (record & ~0ULL << TIME_SHIFT)) >> TIME_SHIFT << UNIT_SHIFT;
}
