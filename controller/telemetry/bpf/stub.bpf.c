/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/*
 * Tells a program where it runs, for hooks that cannot (TCX): sets the class as a clsact filter's TCA_BPF_CLASSID
 * would, and jumps. One of these is loaded for each hook; what it jumps to is shared. Its name says to others, among
 * them a second slicepilot, that it passes every packet on.
 */
#include "types.h"

DECLARE_LICENSE;

const volatile struct {
	__u32 classid;
} config SEC(".rodata.stub");

struct {
	__uint(type, BPF_MAP_TYPE_PROG_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, __u32);
} target SEC(".maps");

SEC("tc")
int slicepilot_hook(struct __sk_buff *skb)
{
	skb->tc_classid = config.classid;
	bpf_tail_call(skb, &target, 0);
	return TC_ACT_UNSPEC;
}
