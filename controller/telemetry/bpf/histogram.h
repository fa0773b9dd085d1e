/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/*
 * Log-linear histogram of nanoseconds: 16 buckets per octave, so a bucket is at most 1/16 = 6.25% as wide as its lower
 * edge from 1.024 us on; below that buckets are 64 ns wide. The last bucket ends at 2^37 ns (137 s) and takes all
 * above.
 */
#pragma once

#include "layout.h"

#define SUB_SHIFT 4

static __always_inline __u32 bucket_of(__u64 ns)
{
	__u64 units = ns >> UNIT_SHIFT;
	__u32 v, octave = 0;

	if (units < 1 << SUB_SHIFT)
		return units;
	if (units >> 31)
		return BUCKETS - 1;
	v = units;
	if (v >> 16) {
		octave = 16;
		v >>= 16;
	}
	if (v >> 8) {
		octave += 8;
		v >>= 8;
	}
	if (v >> 4) {
		octave += 4;
		v >>= 4;
	}
	if (v >> 2) {
		octave += 2;
		v >>= 2;
	}
	octave += v >> 1;
	octave -= SUB_SHIFT;
	/* What is left of the units: 16..31, the leading bit and the four below it. */
	return (octave << SUB_SHIFT) + ((__u32)units >> (octave & 31));
}

static __always_inline void record(__u32 *histogram, __u64 ns)
{
	__u64 bucket = bucket_of(ns);

	asm volatile("" : "+r"(bucket)); /* or the compiler proves the check away, and the verifier cannot */
	if (bucket < BUCKETS)
		ADD(histogram[bucket], 1);
}
