/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/*
 * Which slice a packet belongs to where several slices come by one N3: by its tunnel first, which the UPF's control
 * plane has set up and a UE cannot choose, else by the pool that the UE's address is from. Filled by user space
 * (sharing.py). Numbers of TEIDs and pools hold within a UPF: `group` tells UPFs apart.
 */
#pragma once

#include "gtpu.h"
#include "inner.h"
#include "layout.h"

/* What a tunnel or a pool leads to: a slice, or with this bit an anchor whose slices are told by QFI. */
#define SHARE_BY_QFI (1U << 31)

struct tunnel_key {
	__u32 group;
	__u32 teid;
};

struct pool_key {
	__u32 bits; /* of group and address */
	__u32 group;
	__u8 address[16]; /* IPv4: mapped into IPv6 (RFC 4291, 2.5.5.2) */
};

struct qfi_key {
	__u32 anchor;
	__u32 qfi;
};

#define POOL_KEY_BITS (8 * (sizeof(struct pool_key) - sizeof(__u32)))

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, struct tunnel_key);
	__type(value, __u32);
	__uint(max_entries, 65536);
} shared_tunnels SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_LPM_TRIE);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, struct pool_key);
	__type(value, __u32);
	__uint(max_entries, 4096);
} shared_pools SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, struct qfi_key);
	__type(value, __u32);
	__uint(max_entries, 16384);
} shared_qfis SEC(".maps");

/* The slice of a packet at an N3 that several share; -1: of none of them. */
static __always_inline int shared_slice(__u32 group, const struct tunnel *tunnel, const struct inner *inner)
{
	struct tunnel_key by_tunnel = { .group = group, .teid = tunnel->teid };
	__u32 *found = bpf_map_lookup_elem(&shared_tunnels, &by_tunnel);

	if (!found) {
		struct pool_key by_pool = { .bits = POOL_KEY_BITS, .group = group };

		if (inner->version == 4) {
			__u32 address = (__u32)inner->ue;

			by_pool.address[10] = by_pool.address[11] = 0xff;
			__builtin_memcpy(by_pool.address + 12, &address, sizeof(address));
		} else {
			__builtin_memcpy(by_pool.address, &inner->ue, sizeof(inner->ue));
		}
		found = bpf_map_lookup_elem(&shared_pools, &by_pool);
	}
	if (found && *found & SHARE_BY_QFI) {
		struct qfi_key by_qfi = { .anchor = *found & ~SHARE_BY_QFI, .qfi = tunnel->qfi };

		found = bpf_map_lookup_elem(&shared_qfis, &by_qfi);
	}
	return found ? (int)*found : -1;
}
