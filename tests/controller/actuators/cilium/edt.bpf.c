/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/*
 * A model of Cilium's bandwidth manager: its map of rates in each of its layouts, and what its programs do with it.
 * Written after bpf/lib/edt.h (edt_set_aggregate, edt_sched_departure) of github.com/cilium/cilium, commit 0519e3e9.
 *
 * LAYOUT: 0 plain, 1 with priorities, 2 with directions; see controller/actuators/cilium/layout.py. 3 to 6 are what no
 * version has: another place of the rate, a name that is missing, a larger value, and flags that differ.
 *
 * Beside the original: the time of departure is also written into the packet, since no qdisc of this kernel keeps it
 * (sch_fq), and who receives has to; and packets are counted.
 */
#include <linux/bpf.h>
#include <linux/if_ether.h>
#include <linux/pkt_cls.h>

#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

#ifndef LAYOUT
#define LAYOUT 2
#endif

#define NSEC_PER_SEC 1000000000ULL
#define READ_ONCE(x) (*(volatile typeof(x) *)&(x))
#define WRITE_ONCE(x, v) (*(volatile typeof(x) *)&(x) = (v))
#define STAMP_AT (sizeof(struct ethhdr) + 20 + 8) /* the payload of UDP over IPv4 */

char _license[] SEC("license") = "Dual BSD/GPL";

struct edt_id {
#if LAYOUT == 2
	__u32 id;
	__u8 direction;
	__u8 pad[3];
#else
	__u64 id;
#endif
};

struct edt_info {
#if LAYOUT == 3
	__u64 t_last;
	__u64 bps;
	__u64 t_horizon_drop;
	__u64 pad[4];
#elif LAYOUT == 4
	__u64 rate;
	__u64 t_last;
	__u64 t_horizon_drop;
	__u64 pad[4];
#elif LAYOUT == 5
	__u64 bps;
	__u64 t_last;
	__u64 t_horizon_drop;
	__u64 pad[5];
#elif LAYOUT == 0 || LAYOUT == 6
	__u64 bps;
	__u64 t_last;
	__u64 t_horizon_drop;
	__u64 pad[4];
#else
	__u64 bps;
	__u64 t_last;
#if LAYOUT == 2
	union {
		__u64 t_horizon_drop;
		__u64 tokens;
	};
#else
	__u64 t_horizon_drop;
#endif
	__u32 prio;
	__u32 pad_32;
	__u64 pad[3];
#endif
};

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__type(key, struct edt_id);
	__type(value, struct edt_info);
	__uint(max_entries, 65535);
#if LAYOUT != 6
	__uint(map_flags, BPF_F_NO_PREALLOC);
#endif
} cilium_throttle SEC(".maps");

const volatile struct {
	__u32 endpoint;
	__u32 stamped; /* whether packets have room for a stamp */
} model SEC(".rodata.model");

struct counts {
	__u64 passed;
	__u64 paced;
	__u64 dropped;
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__uint(map_flags, BPF_F_MMAPABLE);
	__type(key, __u32);
	__type(value, struct counts);
} counted SEC(".maps");

SEC("tc")
int from_container(struct __sk_buff *skb)
{
	skb->queue_mapping = model.endpoint;
	return TC_ACT_UNSPEC;
}

#if LAYOUT < 3
SEC("tc")
int to_netdev(struct __sk_buff *skb)
{
	__u64 delay, now, t, t_next;
	struct edt_id aggregate = {};
	struct edt_info *info;
	struct counts *counts;
	__u32 zero = 0;

	counts = bpf_map_lookup_elem(&counted, &zero);
	if (!counts || skb->protocol != bpf_htons(ETH_P_IP))
		return TC_ACT_UNSPEC;
	aggregate.id = skb->queue_mapping;
	skb->queue_mapping = 0;
	if (!aggregate.id)
		return TC_ACT_UNSPEC;
	info = bpf_map_lookup_elem(&cilium_throttle, &aggregate);
	if (!info || !info->bps)
		return TC_ACT_UNSPEC;

	now = bpf_ktime_get_ns();
	t = skb->tstamp;
	if (t < now)
		t = now;
	delay = (__u64)skb->wire_len * NSEC_PER_SEC / info->bps;
	t_next = READ_ONCE(info->t_last) + delay;
	if (t_next <= t) {
		WRITE_ONCE(info->t_last, t);
		__sync_fetch_and_add(&counts->passed, 1);
		return TC_ACT_UNSPEC;
	}
	if (t_next - now >= info->t_horizon_drop) {
		__sync_fetch_and_add(&counts->dropped, 1);
		return TC_ACT_SHOT;
	}
	WRITE_ONCE(info->t_last, t_next);
	skb->tstamp = t_next;
	__sync_fetch_and_add(&counts->paced, 1);
	if (model.stamped)
		bpf_skb_store_bytes(skb, STAMP_AT, &t_next, sizeof(t_next), 0);
	return TC_ACT_UNSPEC;
}
#endif
