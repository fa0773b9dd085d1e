/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/*
 * The map of rates of Cilium's bandwidth manager in each of its layouts, after bpf/lib/edt.h of github.com/cilium/cilium,
 * commit 0519e3e9.
 *
 * LAYOUT: 0 plain, 1 with priorities, 2 with directions; see controller/actuators/cilium/layout.py. 3 to 6 are what no
 * version has: the rate at another offset, a name that is missing, a larger value, and flags that differ.
 */
#include <linux/bpf.h>
#include <linux/pkt_cls.h>

#include <bpf/bpf_helpers.h>

#ifndef LAYOUT
#define LAYOUT 2
#endif

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

SEC("tc")
int to_netdev(struct __sk_buff *skb)
{
	return TC_ACT_UNSPEC;
}
