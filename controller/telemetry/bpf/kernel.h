/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/*
 * The few kernel types that are read here. libbpf relocates every access to the running kernel's layout (CO-RE,
 * docs.kernel.org/bpf/libbpf), so only names and types count, not order or what is left out.
 */
#pragma once

#include <linux/types.h>

#include <bpf/bpf_core_read.h>

#pragma clang attribute push(__attribute__((preserve_access_index)), apply_to = record)

struct kernfs_node {
	__u64 id;
};

struct cgroup {
	struct kernfs_node *kn;
};

struct cgroup_subsys_state {
	struct cgroup *cgroup;
};

struct task_group {
	struct cgroup_subsys_state css;
};

struct css_set {
	struct cgroup *dfl_cgrp;
};

struct sched_entity {
	__u64 sum_exec_runtime;
};

struct task_struct {
	int pid;
	int on_cpu;
	unsigned int __state;
	struct sched_entity se;
	struct task_group *sched_task_group;
	struct css_set *cgroups;
};

/* Before Linux 5.14. */
struct task_struct___old {
	long state;
};

#pragma clang attribute pop
