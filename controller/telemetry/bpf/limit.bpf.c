/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/*
 * Policing and early drop before a qdisc, by class, for kernels without act_police and sch_red. A packet's class is the
 * low half of its priority, as for HTB (SO_PRIORITY; net/sched/sch_htb.c).
 *
 * Both keep a virtual schedule: when a server of the class's rate would have sent all that was admitted so far. A
 * policer drops what would have to wait longer than the bucket's depth (the generic cell rate algorithm, ITU-T I.371
 * annex A). Early drop takes the wait as the queue of a shaper behind it, and drops while the moving average of that
 * is beyond a threshold (random early detection, Floyd and Jacobson, 1993, with minimum = maximum and certainty).
 *
 * A class is that of one queue; packets of a class that two CPUs send at once may be counted twice or not at all.
 */
#include "types.h"

DECLARE_LICENSE;

#define CLASSES 1024
#define AVERAGE_SHIFT 9 /* of the moving average: 1/512 a packet */
#define NS_PER_S 1000000000ULL

struct limit {
	__u64 bytes_per_s; /* 0: all passes */
	__u64 depth_ns;	   /* of the bucket */
	__u64 early_ns;	   /* mean wait from which all is dropped; 0: a policer */
	__u64 due_ns;	   /* when all that was admitted would have been sent */
	__u64 mean;	   /* wait in ns, times 2^AVERAGE_SHIFT */
	__u64 passed;
	__u64 dropped;
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, CLASSES);
	__type(key, __u32);
	__type(value, struct limit);
} limits SEC(".maps");

SEC("tc")
int slicepilot_limit(struct __sk_buff *skb)
{
	__u32 class = skb->priority & 0xffff;
	struct limit *limit = bpf_map_lookup_elem(&limits, &class);
	__u64 now, wait;
	bool drop;

	if (!limit || !limit->bytes_per_s)
		return TC_ACT_UNSPEC;
	now = bpf_ktime_get_ns();
	wait = limit->due_ns > now ? limit->due_ns - now : 0;
	limit->mean += wait - (limit->mean >> AVERAGE_SHIFT);
	if (limit->early_ns)
		drop = (limit->mean >> AVERAGE_SHIFT) >= limit->early_ns;
	else
		drop = wait > limit->depth_ns;
	if (drop) {
		limit->dropped++;
		return TC_ACT_SHOT;
	}
	limit->due_ns = now + wait + skb->len * NS_PER_S / limit->bytes_per_s;
	limit->passed++;
	return TC_ACT_UNSPEC;
}
