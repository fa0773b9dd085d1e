/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/*
 * Earliest departure time: gives each packet that leaves a device the time at which it may, and leaves the waiting to
 * sch_fq, which must be the device's root qdisc (Documentation/networking/timestamping.rst, SO_TXTIME; tc-fq(8)).
 *
 * The schedule of Cilium's bandwidth manager (bpf/lib/edt.h): departures one packet time apart at the rate, none earlier
 * than now, and what would leave beyond the horizon is dropped. CPUs that send at once may overwrite each other's
 * schedule; that costs a packet time, a lock would cost every packet.
 */
#include "../../telemetry/bpf/types.h"

DECLARE_LICENSE;

#define NSEC_PER_SEC 1000000000ULL
#define HORIZON_NS (2 * NSEC_PER_SEC)

/* Shared with the controller through mmap; see slicepilot.controller.actuators.edt. */
struct edt {
	__u64 bytes_per_s; /* 0: nothing is paced */
	__u64 last_ns; /* departure of the newest packet */
	__u64 dropped; /* packets beyond the horizon */
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct edt);
} edt SEC(".maps");

SEC("tc")
int pace(struct __sk_buff *skb)
{
	__u32 only = 0;
	struct edt *state = bpf_map_lookup_elem(&edt, &only);
	__u64 rate, now, next;

	if (!state)
		return TC_ACT_UNSPEC;
	rate = state->bytes_per_s;
	if (!rate)
		return TC_ACT_UNSPEC;
	now = bpf_ktime_get_ns();
	next = state->last_ns + skb->wire_len * NSEC_PER_SEC / rate;
	if (next <= now) {
		state->last_ns = now;
		return TC_ACT_UNSPEC;
	}
	if (next - now >= HORIZON_NS) {
		ADD(state->dropped, 1);
		return TC_ACT_SHOT;
	}
	state->last_ns = next;
	skb->tstamp = next;
	return TC_ACT_UNSPEC;
}
