/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/*
 * What the CPUs do for each slice: CPU time its tasks used, and how long they waited on a run queue, after a wake-up or
 * after they were preempted or throttled. The idle time of each CPU, too.
 */
#include "kernel.h"

#include "histogram.h"
#include "layout.h"
#include "types.h"

#include <bpf/bpf_tracing.h>

DECLARE_LICENSE;

#define TASK_RUNNING 0

const volatile struct {
	__u64 start_ns; /* now */
	__u32 slices;
	__u32 unified; /* the slices' groups are of cgroup v2, which need not have the cpu controller */
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
	__uint(max_entries, MAX_SLICES);
} slices SEC(".maps");

struct running running[MAX_CPUS] SEC(".bss.running");

/* Tasks on a run queue. Two that share a place are rare, and the later one wins. */
#define WAITING 32768

struct waiting {
	__u64 since_ns; /* 0: nobody */
	__u32 pid;
	__u32 slice;
} waiting[WAITING] SEC(".bss.waiting");

#define IDLE (config.slices)
#define OTHER (config.slices + 1)

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

	if (slice == IDLE)
		run->idle_ns += now - (run->since_ns_and_slice & ~(__u64)RUNNING_SLICE);
	if (slice >= IDLE)
		return;
	s = stats_of(slice);
	if (s)
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
	slice = next->pid ? slice_of(next) : IDLE;
	run->exec_start_ns = next->se.sum_exec_runtime;
	WRITE_ONCE(run->since_ns_and_slice, (now & ~(__u64)RUNNING_SLICE) | slice);
	return 0;
}
