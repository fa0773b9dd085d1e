/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/* Helpers and kernel interfaces that every program here uses. */
#pragma once

#include <stdbool.h>

#include <linux/bpf.h>
#include <linux/pkt_cls.h>
#include <linux/types.h>

#include <bpf/bpf_helpers.h>
#include <bpf/bpf_endian.h>

#define ADD(counter, value) __sync_fetch_and_add(&(counter), (value))
#define READ_ONCE(x) (*(volatile typeof(x) *)&(x))
#define WRITE_ONCE(x, value) (*(volatile typeof(x) *)&(x) = (value))

/*
 * The sources may be used under either licence of the line at their top. The kernel lets a program use GPL-only helpers
 * (reading kernel structures, ring buffers) when the licence it declares is one that it counts as compatible with the
 * GPL (include/linux/license.h): "GPL" is what GPL-2.0-only is called there.
 */
#define DECLARE_LICENSE char LICENSE[] SEC("license") = "GPL"
