/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/*
 * What the CPUs do for each slice: CPU time its tasks used, and how long they waited on a run queue, after a wake-up or
 * after they were preempted or throttled. Idle time of the CPUs that count, too.
 */
#include "kernel.h"

#include "histogram.h"
#include "layout.h"
#include "types.h"
#include "windows.h"

#include <bpf/bpf_tracing.h>

DECLARE_LICENSE;

#define TASK_RUNNING 0

const volatile struct {
	__u64 start_ns; /* now */
	__u32 slices;
	__u32 unified; /* the slices' groups are of cgroup v2, which need not have the cpu controller */
	__u32 cpus; /* numbers of CPUs are below this */
} config SEC(".rodata.sched");

/* Which slice a cgroup belongs to, by its kernfs id (the inode number of its folder). */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__type(key, __u64);
	__type(value, __u32);
	__uint(max_entries, 16384);
} groups SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__type(key, __u32);
	__type(value, struct sched_stats);
	__uint(max_entries, MAX_SLICES + 1);
} slices SEC(".maps");

struct reading {
	__u64 open_ns; /* age of the runs that go on, now */
	__u64 used_ns; /* as `cpu_ns`, with the runs that went on then */
	__u64 waits;
	__u64 wait_ns;
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__type(key, __u32);
	__type(value, struct reading);
	__uint(max_entries, MAX_SLICES + 1);
} readings SEC(".maps");

struct running running[MAX_CPUS] SEC(".bss.running");

/*
 * CPUs whose idle time counts, a bit each; user space says which: those that are online and that the slices may use. Any
 * other says nothing of what is left for them.
 */
__u64 counted[MAX_CPUS / 64] SEC(".bss.counted");

/* Tasks on a run queue. Two that share a place are rare, and the later one wins. */
#define WAITING 32768

struct waiting {
	__u64 since_ns; /* 0: nobody */
	__u32 pid;
	__u32 slice;
} waiting[WAITING] SEC(".bss.waiting");

#define IDLE (config.slices)
#define OTHER (config.slices + 1)
#define IDLE_UNCOUNTED (config.slices + 2)

static __always_inline bool counts(__u32 cpu)
{
	return READ_ONCE(counted[cpu / 64 & (MAX_CPUS / 64 - 1)]) >> (cpu & 63) & 1;
}

static __always_inline struct sched_stats *stats_of(__u32 slice)
{
	return bpf_map_lookup_elem(&slices, &slice);
}

/* Slice of a task, or OTHER. */
static __always_inline __u32 slice_of(struct task_struct *task)
{
	__u64 id = config.unified ? task->cgroups->dfl_cgrp->kn->id : task->sched_task_group->css.cgroup->kn->id;
	__u32 *slice = bpf_map_lookup_elem(&groups, &id);

	return slice ? *slice : OTHER;
}

static __always_inline bool runnable(struct task_struct *task)
{
	if (bpf_core_field_exists(task->__state))
		return task->__state == TASK_RUNNING;
	return ((struct task_struct___old *)task)->state == TASK_RUNNING;
}

static __always_inline struct waiting *place_of(struct task_struct *task)
{
	return &waiting[(__u32)task->pid & (WAITING - 1)];
}

/* Frees a place; returns the statistics of its slice, NULL when nobody waited there. */
static __always_inline struct sched_stats *leave_queue(struct waiting *w, __u64 *since)
{
	struct sched_stats *s;

	*since = w->since_ns;
	if (!*since)
		return NULL;
	w->since_ns = 0;
	s = stats_of(w->slice);
	if (!s)
		return NULL;
	ADD(s->waiting, -WAITER(*since - config.start_ns));
	return s;
}

static __always_inline void end_wait(struct task_struct *task, __u64 now)
{
	struct waiting *w = place_of(task);
	struct sched_stats *s;
	__u64 since;

	if (w->pid != task->pid)
		return;
	s = leave_queue(w, &since);
	if (!s)
		return;
	ADD(s->waits, 1);
	ADD(s->wait_ns, now - since);
	record(s->wait, now - since);
}

static __always_inline void begin_wait(struct task_struct *task, __u32 slice, __u64 now)
{
	struct waiting *w = place_of(task);
	struct sched_stats *s = stats_of(slice);
	__u64 since;

	if (!s || (w->since_ns && w->pid == task->pid)) /* it waits already: woken twice */
		return;
	leave_queue(w, &since);
	w->pid = task->pid;
	w->slice = slice;
	w->since_ns = now;
	ADD(s->waiting, WAITER(now - config.start_ns));
}

static __always_inline int on_wakeup(struct task_struct *task)
{
	__u32 slice;

	if (task->on_cpu) /* it was about to sleep and runs on */
		return 0;
	slice = slice_of(task);
	if (slice != OTHER)
		begin_wait(task, slice, bpf_ktime_get_ns());
	return 0;
}

SEC("tp_btf/sched_wakeup")
int BPF_PROG(wakeup, struct task_struct *task)
{
	return on_wakeup(task);
}

SEC("tp_btf/sched_wakeup_new")
int BPF_PROG(wakeup_new, struct task_struct *task)
{
	return on_wakeup(task);
}

/*
 * What the CPU did since the last switch. A task's own clock leaves out interrupts and stolen time where the kernel
 * tells them apart, as its cgroup's account does.
 */
static __always_inline void charge(struct running *run, __u32 slice, struct task_struct *prev, __u64 now)
{
	struct sched_stats *s;

	if (slice > IDLE)
		return;
	s = stats_of(slice);
	if (!s)
		return;
	if (slice == IDLE)
		ADD(s->cpu_ns, now - (run->since_ns_and_slice & ~(__u64)RUNNING_SLICE));
	else
		ADD(s->cpu_ns, prev->se.sum_exec_runtime - run->exec_start_ns);
}

SEC("tp_btf/sched_switch")
int BPF_PROG(sched_switch, bool preempted, struct task_struct *prev, struct task_struct *next)
{
	__u32 cpu = bpf_get_smp_processor_id() & (MAX_CPUS - 1);
	struct running *run = &running[cpu];
	__u32 slice = run->since_ns_and_slice & RUNNING_SLICE;
	__u64 now = bpf_ktime_get_ns();

	charge(run, slice, prev, now);
	if (slice < config.slices && prev->pid && (preempted || runnable(prev)))
		begin_wait(prev, slice, now);

	if (next->pid)
		end_wait(next, now);
	slice = next->pid ? slice_of(next) : counts(cpu) ? IDLE : IDLE_UNCOUNTED;
	run->exec_start_ns = next->se.sum_exec_runtime;
	WRITE_ONCE(run->since_ns_and_slice, (now & ~(__u64)RUNNING_SLICE) | slice);
	return 0;
}

/*
 * A CPU that idles when it begins to count, or ceases to: what it has idled until now has counted, or has not. Returns
 * what it does then.
 */
static __always_inline __u64 recount(struct running *run, __u64 word, bool counting, __u64 now)
{
	__u64 since = word & ~(__u64)RUNNING_SLICE, next = (now & ~(__u64)RUNNING_SLICE) | (counting ? IDLE : IDLE_UNCOUNTED);
	struct sched_stats *s = stats_of(IDLE);

	if (__sync_val_compare_and_swap(&run->since_ns_and_slice, word, next) != word) /* it runs something by now */
		return OTHER;
	if (s && !counting && since < now)
		ADD(s->cpu_ns, now - since);
	return next;
}

/* Returns how many CPUs count. */
static __always_inline __u32 add_open_runs(__u64 now)
{
	__u32 cpus = 0;

	for (__u32 cpu = 0; cpu < MAX_CPUS && cpu < config.cpus; cpu++) {
		__u64 word = READ_ONCE(running[cpu].since_ns_and_slice), since;
		__u32 slice = word & RUNNING_SLICE;
		struct reading *r;
		bool counting = counts(cpu);

		cpus += counting;
		if (slice == (counting ? IDLE_UNCOUNTED : IDLE)) {
			word = recount(&running[cpu], word, counting, now);
			slice = word & RUNNING_SLICE;
		}
		since = word & ~(__u64)RUNNING_SLICE;
		r = bpf_map_lookup_elem(&readings, &slice);
		if (r && since < now)
			r->open_ns += now - since;
	}
	return cpus;
}

/*
 * A run that goes on counts by the clock until it ends and its own account is known, which may be a little less: never
 * count back.
 */
static __always_inline __u64 take_use(const struct sched_stats *s, struct reading *r)
{
	__u64 before = r->used_ns, used = READ_ONCE(s->cpu_ns) + r->open_ns;

	if (used < before)
		used = before;
	r->used_ns = used;
	r->open_ns = 0;
	return used - before;
}

/* Mean of the waits that ended or go on, in ns. */
static __always_inline __u64 take_wait(const struct sched_stats *s, struct reading *r, __u64 now)
{
	__u64 waiting = READ_ONCE(s->waiting), tasks = waiting >> WAITER_SHIFT;
	__u64 ended = READ_ONCE(s->waits), ended_ns = READ_ONCE(s->wait_ns);
	/* sum over tasks of now - since, in the units and the bits of the sum; below 0 for one that has just begun */
	__s64 age = (tasks * ((now - config.start_ns) >> WAIT_UNIT_SHIFT) - waiting) << (64 - WAITER_SHIFT);
	__u64 count = ended - r->waits + tasks, total_ns = ended_ns - r->wait_ns;

	if (age > 0)
		total_ns += (__u64)age >> (64 - WAITER_SHIFT) << WAIT_UNIT_SHIFT;
	r->waits = ended;
	r->wait_ns = ended_ns;
	return count ? total_ns / count : 0;
}

__u64 measured_ns; /* end of the last window */
__u32 counted_cpus; /* in this one */

/* Not static: the verifier checks it once, and not for each slice. */
__noinline int measure_one(__u32 slice, __u64 now)
{
	struct reading *r = bpf_map_lookup_elem(&readings, &slice);
	struct sched_stats *s = stats_of(slice);
	__u64 window_ns = now - measured_ns, use;

	if (!r || !s)
		return 1;
	use = take_use(s, r);
	if (slice == IDLE) {
		put(ROWS * config.slices + NODE_CPU_IDLE_RATIO, per_ns(use, MILLION, window_ns * counted_cpus));
		return 0;
	}
	put(ROW_CPU_USE_MCPU * config.slices + slice, per_ns(use, 1000 * MILLION, window_ns));
	put(ROW_RUNQUEUE_DELAY_US * config.slices + slice, 1000 * take_wait(s, r, now));
	return 0;
}

__noinline int rehearse_one(__u32 slice)
{
	struct reading *r = bpf_map_lookup_elem(&readings, &slice);
	struct sched_stats *s = stats_of(slice);

	if (!r || !s)
		return 1;
	return READ_ONCE(r->used_ns) + READ_ONCE(s->cpu_ns);
}

SEC("syscall")
int measure_cpus(struct measure_request *request)
{
	__u64 now = bpf_ktime_get_ns();
	__u32 rehearse = request->rehearse;

	if (!rehearse)
		counted_cpus = add_open_runs(now);
	for (__u32 slice = 0; slice <= MAX_SLICES && slice <= config.slices; slice++) {
		if (rehearse)
			rehearse_one(slice);
		else
			measure_one(slice, now);
	}
	if (!rehearse)
		measured_ns = now;
	return 0;
}
