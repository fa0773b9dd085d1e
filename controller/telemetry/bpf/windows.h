/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/*
 * What happened between the last two calls of the programs that measure, as a reader wants it: rows of slices, then
 * what concerns the node, all in millionths of the unit in the row's name.
 *
 * Worked out here and not by the reader, because a control loop asks every few milliseconds, when its caches are cold:
 * a system call touches less memory than the dozens of array operations that it replaces.
 */
#pragma once

#include "types.h"

enum row {
	ROW_OFFERED_MBPS,
	ROW_CARRIED_MBPS,
	ROW_DELAY_P50_US,
	ROW_DELAY_P99_US,
	ROW_LOSS_RATIO,
	ROW_CPU_USE_MCPU,
	ROW_RUNQUEUE_DELAY_US,
	ROWS,
};

enum node_row { NODE_CPU_IDLE_RATIO, NODE_UPLINK_USE_RATIO, NODE_ROWS };

#define MILLION 1000000ULL

/* `windows[row][slice]`, then one of each node_row; shared by the objects. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__type(key, __u32);
	__type(value, __u64);
	__uint(max_entries, 1); /* set before loading */
} windows SEC(".maps");

/* What the programs that measure are called with. */
struct measure_request {
	__u32 rehearse; /* read what a measurement reads, so that the next one finds it in the caches; change nothing */
};

static __always_inline void put(__u32 index, __u64 value)
{
	__u64 *place = bpf_map_lookup_elem(&windows, &index);

	if (place)
		*place = value;
}

/* amount * factor / ns, for a factor below 2^33, without overflow. */
static __always_inline __u64 per_ns(__u64 amount, __u64 factor, __u64 ns)
{
#pragma unroll
	for (int i = 0; i < 2; i++) { /* beyond two seconds a millionth less exact */
		if (ns >> 31) {
			ns >>= 10;
			amount >>= 10;
		}
	}
	return ns ? amount / ns * factor + amount % ns * factor / ns : 0;
}
