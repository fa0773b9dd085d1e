/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/*
 * SipHash-1-3 (Aumasson and Bernstein, SipHash: a fast short-input PRF, 2012; rounds as the kernel's hsiphash) under a
 * secret that is drawn at every load: who does not know it can neither make two packets whose hashes are equal, nor
 * choose the place of a table or the sample that a packet falls into.
 *
 * Words are added in place of octets, without the length behind them: the first word says how many follow.
 */
#pragma once

#include "types.h"

const volatile struct {
	__u64 key[2];
} secret SEC(".rodata.secret"); /* set before loading; root alone can read it */

struct siphash {
	__u64 v0, v1, v2, v3;
};

static __always_inline __u64 rotated(__u64 word, int bits)
{
	return word << bits | word >> (64 - bits);
}

static __always_inline void siphash_round(struct siphash *s)
{
	s->v0 += s->v1;
	s->v1 = rotated(s->v1, 13) ^ s->v0;
	s->v0 = rotated(s->v0, 32);
	s->v2 += s->v3;
	s->v3 = rotated(s->v3, 16) ^ s->v2;
	s->v0 += s->v3;
	s->v3 = rotated(s->v3, 21) ^ s->v0;
	s->v2 += s->v1;
	s->v1 = rotated(s->v1, 17) ^ s->v2;
	s->v2 = rotated(s->v2, 32);
}

static __always_inline void siphash_start(struct siphash *s)
{
	s->v0 = secret.key[0] ^ 0x736f6d6570736575ULL;
	s->v1 = secret.key[1] ^ 0x646f72616e646f6dULL;
	s->v2 = secret.key[0] ^ 0x6c7967656e657261ULL;
	s->v3 = secret.key[1] ^ 0x7465646279746573ULL;
}

static __always_inline void siphash_add(struct siphash *s, __u64 word)
{
	s->v3 ^= word;
	siphash_round(s);
	s->v0 ^= word;
}

static __always_inline __u64 siphash_end(struct siphash *s)
{
	s->v2 ^= 0xff;
	siphash_round(s);
	siphash_round(s);
	siphash_round(s);
	return s->v0 ^ s->v1 ^ s->v2 ^ s->v3;
}
