/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/* What a slice's packets did since the last reading: rates, delay quantiles, loss, backlog. */
#pragma once

#include "histogram.h"
#include "layout.h"
#include "windows.h"

#define NEVER (~0ULL >> 1)
#define FORGET_NS 500000000ULL

#define OCTAVES (BUCKETS >> SUB_SHIFT)

/* The last reading of a slice. */
struct packet_reading {
	__u64 offered_bytes;
	__u64 carried_bytes;
	__u64 carried_packets;
	__u64 oldest_ns; /* arrival of the oldest packet inside, as far as known; NEVER: nothing inside */
	__u64 settled_ns; /* what arrived until then has left, or is given up */
	__u64 adapted_ns; /* when `adapt` last looked, and the packets until then */
	__u64 adapted_packets;
	/* Of a service: see offered_of_service. */
	__u64 answered_bytes;
	__u64 recent_answered; /* bytes of requests and of answers, the past fading */
	__u64 recent_answers;
	__s64 owed_bytes;
	__u32 delay[BUCKETS];
	/* What the last window added: to each bucket, to each octave of buckets. */
	__u32 added[BUCKETS];
	__u32 octave[OCTAVES];
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__type(key, __u32);
	__type(value, struct packet_reading);
	__uint(max_entries, MAX_SLICES);
} readings SEC(".maps");

static __always_inline struct packet_reading *reading_of(__u32 slice)
{
	return bpf_map_lookup_elem(&readings, &slice);
}

/* Reads a histogram; returns how many values are new. */
static __always_inline __u32 read_histogram(const __u32 *histogram, struct packet_reading *r)
{
	__u32 total = 0;

	for (__u32 octave = 0; octave < OCTAVES; octave++) {
		__u32 in_octave = 0;

		for (__u32 i = octave << SUB_SHIFT; i < (octave + 1) << SUB_SHIFT; i++) {
			__u32 now = READ_ONCE(histogram[i]);

			r->added[i] = now - r->delay[i];
			r->delay[i] = now;
			in_octave += r->added[i];
		}
		r->octave[octave] = in_octave;
		total += in_octave;
	}
	return total;
}

/*
 * The value that `percent` of the last window's `total` (not 0) do not exceed, interpolated inside its bucket. Not
 * static, so that the verifier checks it once and not where it is called.
 */
__noinline __u64 quantile_ns(__u32 slice, __u32 percent, __u32 total)
{
	struct packet_reading *r = reading_of(slice);
	__u64 target = (__u64)percent * total, below = 0, count, low;
	__u32 octave, i;

	if (!r)
		return 0;
	for (octave = 0; octave < OCTAVES - 1; octave++) {
		count = 100ULL * r->octave[octave];
		if (below + count >= target)
			break;
		below += count;
	}
	for (i = octave << SUB_SHIFT; i < BUCKETS - 1; i++) {
		count = 100ULL * r->added[i];
		if (below + count >= target)
			break;
		below += count;
	}
	count = 100ULL * r->added[i];
	low = lower_edge_ns(i);
	return count ? low + (lower_edge_ns(i + 1) - low) * (target - below) / count : low;
}

/*
 * All ones where a < b, both below 2^63. Choosing by masks and not by branches, here: the verifier would follow every
 * combination of branches through the loop below.
 */
static __always_inline __u64 if_less(__u64 a, __u64 b)
{
	__u64 mask = (__s64)(a - b) >> 63;

	asm volatile("" : "+r"(mask)); /* or the compiler makes branches of it again */
	return mask;
}

static __always_inline __u64 choose(__u64 mask, __u64 yes, __u64 no)
{
	return (yes & mask) | (no & ~mask);
}

/*
 * Age of the oldest packet inside the UPF, 0 when none is: a lower bound of its delay, which the delays of packets that
 * left do not show while nothing comes out.
 *
 * A mark later than the arrival of the packet that left last stands for a packet that is still inside, as long as
 * packets leave in the order in which they came. The oldest mark is kept from reading to reading, since the ring
 * forgets it. A packet that was dropped looks the same until a later one leaves; so when nothing has arrived for
 * FORGET_NS, nothing is taken to be inside.
 */
static __always_inline __u64 backlog_ns(const struct n3_counters *n3, __u64 last_left_ns, struct packet_reading *r, __u64 now)
{
	__u64 settled = choose(if_less(r->settled_ns, last_left_ns), last_left_ns, r->settled_ns);
	__u64 oldest = choose(if_less(settled, r->oldest_ns), r->oldest_ns, NEVER), newest = 0;

	for (int i = 0; i < MARKS; i++) {
		__u64 mark = READ_ONCE(n3->mark_ns[i]);

		newest = choose(if_less(newest, mark), mark, newest);
		oldest = choose(if_less(settled, mark) & if_less(mark, oldest), mark, oldest);
	}
	if (newest + FORGET_NS < now) {
		settled = choose(if_less(settled, newest), newest, settled);
		oldest = NEVER;
	}
	r->settled_ns = settled;
	r->oldest_ns = oldest;
	return oldest < now ? now - oldest : 0;
}

#define ADAPT_NS 250000000ULL

/* The threshold at which of so many packets per second about `limit` are timed, in halves of `up_to`. */
static __always_inline __u32 thinned(__u32 up_to, __u64 rate, __u64 limit)
{
	for (int i = 0; i < 16 && rate > limit; i++) {
		rate >>= 1;
		up_to >>= 1;
	}
	return up_to;
}

/*
 * Times fewer packets of a slice that has many: half, a quarter and so on of them still give every window its
 * quantiles, and the UPF keeps its CPU. More packets are given records first, and looked for a while later, when all
 * that came without one have left; so none is taken for missed.
 */
static __always_inline void adapt(struct slice_stats *s, struct packet_reading *r, __u32 most, __u64 limit, __u64 now)
{
	__u64 packets = READ_ONCE(s->n3.packets) + READ_ONCE(s->n3.unproven), rate;
	__u32 enter = s->timing.enter_up_to, fewer, more;

	if (now - r->adapted_ns < ADAPT_NS)
		return;
	rate = per_ns(packets - r->adapted_packets, 1000 * MILLION, now - r->adapted_ns);
	rate = rate * ((__u64)most + 1) >> 32;
	r->adapted_ns = now;
	r->adapted_packets = packets;
	fewer = thinned(most, rate, limit);
	more = thinned(most, rate + (rate >> 2), limit); /* not back and forth at a limit */
	if (fewer < enter) {
		WRITE_ONCE(s->timing.leave_up_to, fewer);
		WRITE_ONCE(s->timing.enter_up_to, fewer);
	} else {
		WRITE_ONCE(s->timing.leave_up_to, enter);
		if (more > enter)
			WRITE_ONCE(s->timing.enter_up_to, more);
	}
}

static __always_inline void put_rates(__u32 slice, __u32 slices, __u64 offered_bytes, __u64 carried_bytes, __u64 window_ns)
{
	__u64 lost = offered_bytes > carried_bytes ? offered_bytes - carried_bytes : 0;

	put(ROW_OFFERED_MBPS * slices + slice, per_ns(offered_bytes, 8000 * MILLION, window_ns));
	put(ROW_CARRIED_MBPS * slices + slice, per_ns(carried_bytes, 8000 * MILLION, window_ns));
	put(ROW_LOSS_RATIO * slices + slice, offered_bytes ? lost * MILLION / offered_bytes : 0);
}

#define FADE_SHIFT 8 /* a window counts for 1/256 less with each that follows */
#define MOST_GAIN (1ULL << 24) /* 65,536 bytes of answer for one of request, in 256ths */

/*
 * What a service is asked for, in bytes of answers: those that left, and those that the requests will get which came
 * and have no answer yet, as many as the others got by byte. An answer under way is counted when it is asked for, and
 * its bytes are then taken off as they leave.
 */
static __always_inline __u64 offered_of_service(struct packet_reading *r, __u64 requested, __u64 answered, __u64 answers)
{
	__u64 gain;
	__s64 offered;

	r->recent_answered += answered - (r->recent_answered >> FADE_SHIFT);
	r->recent_answers += answers - (r->recent_answers >> FADE_SHIFT);
	gain = r->recent_answered && r->recent_answers ? (r->recent_answers << 8) / r->recent_answered : 1 << 8;
	if (gain > MOST_GAIN)
		gain = MOST_GAIN;
	if (requested >= answered)
		offered = r->owed_bytes + answers + ((requested - answered) * gain >> 8);
	else
		offered = r->owed_bytes + answers - ((answered - requested) * gain >> 8);
	r->owed_bytes = offered < 0 ? offered : 0;
	return offered < 0 ? 0 : offered;
}

/* Returns the bytes that the link carried, with the Ethernet headers that its rate counts (net/sched: qdisc_pkt_len). */
static __always_inline __u64 measure_slice(__u32 slice, __u32 slices, const struct slice_stats *s, enum exit_point last,
					   struct packet_reading *r, __u64 now, __u64 window_ns)
{
	__u64 offered = READ_ONCE(s->n3.bytes), carried = READ_ONCE(s->exit[last].bytes);
	__u64 carried_bytes = carried - r->carried_bytes, packets = READ_ONCE(s->exit[last].packets);
	__u64 link_bytes = carried_bytes + ETH_HLEN * (packets - r->carried_packets);
	__u32 left = read_histogram(s->delay[last], r);
	__u64 p50_ns = left ? quantile_ns(slice, 50, left) : 0, p99_ns = left ? quantile_ns(slice, 99, left) : 0;
	__u64 age_ns = backlog_ns(&s->n3, READ_ONCE(s->exit[last].last_left_ns), r, now);
	__u64 answered = READ_ONCE(s->exit[last].answered_bytes), offered_bytes;

	offered_bytes = offered - r->offered_bytes;
	if (s->timing.service) {
		offered_bytes = offered_of_service(r, offered_bytes, answered - r->answered_bytes, carried_bytes);
		r->answered_bytes = answered;
	}
	put_rates(slice, slices, offered_bytes, carried_bytes, window_ns);
	r->offered_bytes = offered;
	r->carried_bytes = carried;
	r->carried_packets = packets;
	if (!left)
		p50_ns = age_ns;
	put(ROW_DELAY_P50_US * slices + slice, 1000 * p50_ns);
	put(ROW_DELAY_P99_US * slices + slice, 1000 * (p99_ns > age_ns ? p99_ns : age_ns));
	return link_bytes;
}

/* Reads what measure_slice reads. */
static __always_inline void rehearse_slice(const struct slice_stats *s, enum exit_point last, const struct packet_reading *r)
{
	__u64 sum = 0;

	for (int i = 0; i < BUCKETS; i += 16) /* 16 counts are a cache line */
		sum += READ_ONCE(s->delay[last][i]) + READ_ONCE(r->delay[i]) + READ_ONCE(r->added[i]);
	sum += READ_ONCE(s->n3.bytes) + READ_ONCE(s->n3.mark_ns[0]) + READ_ONCE(s->exit[last].bytes);
	asm volatile("" : : "r"(sum));
}
