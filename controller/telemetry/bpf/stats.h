/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/* What was counted of each slice: the one map that all packet programs write. */
#pragma once

#include "layout.h"

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__type(key, __u32);
	__type(value, struct slice_stats);
	__uint(max_entries, MAX_SLICES + 1);
} slices SEC(".maps");

static __always_inline struct slice_stats *stats_of(__u32 slice)
{
	return bpf_map_lookup_elem(&slices, &slice);
}

static __always_inline __u32 link_bytes(struct __sk_buff *skb)
{
	return skb->tc_classid & CLASS_BARE_IP ? 0 : ETH_HLEN;
}

/* Since when the packets of each of the last milliseconds have been inside: see layout.h. */
static __always_inline void mark(struct n3_counters *n3, __u64 now)
{
	__u64 *mark_ns = &n3->mark_ns[now >> MARK_SHIFT & (MARKS - 1)];

	if (READ_ONCE(*mark_ns) >> MARK_SHIFT != now >> MARK_SHIFT)
		WRITE_ONCE(*mark_ns, now);
}
