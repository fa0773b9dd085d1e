/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/*
 * The usual way to time packets through a user plane: print a line where each packet enters and where it leaves, and
 * match the lines afterwards. Packets are identified by the same hash as in the probe, so that only the method differs.
 */
#include "gtpu.h"
#include "inner.h"
#include "layout.h"

DECLARE_LICENSE;

static __always_inline void print(const char *format, __u32 size, struct cursor *c)
{
	struct inner inner = {};

	if (read_inner(c, true, &inner))
		bpf_trace_printk(format, size, inner.hash, bpf_ktime_get_ns());
}

SEC("tc")
int trace_n3(struct __sk_buff *skb)
{
	static const char format[] = "n3 %llx %llu";
	struct tunnel tunnel;
	struct udphdr udp;
	struct cursor c;

	if (open_packet(skb, ETH_HLEN, 256, &c) && open_udp(skb->protocol, &c, &udp, NULL) &&
	    udp.dest == bpf_htons(GTPU_PORT) && open_gtpu(&c, &tunnel) == GTPU_INNER)
		print(format, sizeof(format), &c);
	return TC_ACT_UNSPEC;
}

SEC("tc")
int trace_n6(struct __sk_buff *skb)
{
	static const char format[] = "n6 %llx %llu";
	struct cursor c;

	if (skb->protocol == bpf_htons(ETH_P_IP) && open_packet(skb, ETH_HLEN, IP_HEADERS, &c))
		print(format, sizeof(format), &c);
	return TC_ACT_UNSPEC;
}
