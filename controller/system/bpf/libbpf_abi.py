"""libbpf's functions and structures for ctypes: ``bpf/libbpf.h``, ``bpf/bpf.h``, ``linux/bpf.h``."""

from __future__ import annotations

import ctypes
from ctypes import POINTER, c_char_p, c_int, c_size_t, c_uint32, c_uint64, c_void_p
from typing import Any

BPF_STATS_RUN_TIME = 0
BPF_PROG_QUERY, BPF_TCX_INGRESS, BPF_TCX_EGRESS, BPF_F_BEFORE = 16, 46, 47, 1 << 3
MOST_PROGRAMS = 64  # of a hook: BPF_MPROG_MAX (linux/bpf_mprog.h)
LIBBPF_WARN = 0
PRINT = ctypes.CFUNCTYPE(c_int, c_int, c_char_p, c_void_p)

SIGNATURES: dict[str, tuple[Any, tuple[Any, ...]]] = {
    "libbpf_version_string": (c_char_p, ()),
    "libbpf_set_print": (c_void_p, (PRINT,)),
    "bpf_object__open_file": (c_void_p, (c_char_p, c_void_p)),
    "bpf_object__load": (c_int, (c_void_p,)),
    "bpf_object__close": (None, (c_void_p,)),
    "bpf_object__find_map_by_name": (c_void_p, (c_void_p, c_char_p)),
    "bpf_object__find_program_by_name": (c_void_p, (c_void_p, c_char_p)),
    "bpf_object__next_program": (c_void_p, (c_void_p, c_void_p)),
    "bpf_map__fd": (c_int, (c_void_p,)),
    "bpf_map__set_max_entries": (c_int, (c_void_p, c_uint32)),
    "bpf_map__max_entries": (c_uint32, (c_void_p,)),
    "bpf_map__value_size": (c_uint32, (c_void_p,)),
    "bpf_map__initial_value": (c_void_p, (c_void_p, POINTER(c_size_t))),
    "bpf_program__fd": (c_int, (c_void_p,)),
    "bpf_program__name": (c_char_p, (c_void_p,)),
    "bpf_program__section_name": (c_char_p, (c_void_p,)),
    "bpf_program__attach": (c_void_p, (c_void_p,)),
    "bpf_link__destroy": (c_int, (c_void_p,)),
    "bpf_map_update_elem": (c_int, (c_int, c_void_p, c_void_p, c_uint64)),
    "bpf_map_delete_elem": (c_int, (c_int, c_void_p)),
    "bpf_obj_get_info_by_fd": (c_int, (c_int, c_void_p, POINTER(c_uint32))),
    "bpf_link_detach": (c_int, (c_int,)),
    "bpf_link_create": (c_int, (c_int, c_int, c_int, c_void_p)),
    "bpf_prog_test_run_opts": (c_int, (c_int, c_void_p)),
    "bpf_prog_get_fd_by_id": (c_int, (c_uint32,)),
    "bpf_enable_stats": (c_int, (c_int,)),
}


class ProgramInfo(ctypes.Structure):
    """``struct bpf_prog_info`` (linux/bpf.h) up to ``run_cnt``; the kernel fills what fits."""

    _fields_ = (
        ("type", c_uint32), ("id", c_uint32), ("tag", ctypes.c_uint8 * 8), ("jited_prog_len", c_uint32),
        ("xlated_prog_len", c_uint32), ("jited_prog_insns", c_uint64), ("xlated_prog_insns", c_uint64),
        ("load_time", c_uint64), ("created_by_uid", c_uint32), ("nr_map_ids", c_uint32),
        ("map_ids", c_uint64), ("name", ctypes.c_char * 16), ("ifindex", c_uint32),
        ("gpl_compatible", c_uint32), ("netns_dev", c_uint64), ("netns_ino", c_uint64),
        ("nr_jited_ksyms", c_uint32), ("nr_jited_func_lens", c_uint32), ("jited_ksyms", c_uint64),
        ("jited_func_lens", c_uint64), ("btf_id", c_uint32), ("func_info_rec_size", c_uint32),
        ("func_info", c_uint64), ("nr_func_info", c_uint32), ("nr_line_info", c_uint32),
        ("line_info", c_uint64), ("jited_line_info", c_uint64), ("nr_jited_line_info", c_uint32),
        ("line_info_rec_size", c_uint32), ("jited_line_info_rec_size", c_uint32), ("nr_prog_tags", c_uint32),
        ("prog_tags", c_uint64), ("run_time_ns", c_uint64), ("run_cnt", c_uint64),
    )  # fmt: skip


class RunOptions(ctypes.Structure):
    """``struct bpf_test_run_opts`` (bpf/bpf.h)."""

    _fields_ = (
        ("sz", c_size_t), ("data_in", c_void_p), ("data_out", c_void_p), ("data_size_in", c_uint32),
        ("data_size_out", c_uint32), ("ctx_in", c_void_p), ("ctx_out", c_void_p), ("ctx_size_in", c_uint32),
        ("ctx_size_out", c_uint32), ("retval", c_uint32), ("repeat", c_int), ("duration", c_uint32),
        ("flags", c_uint32), ("cpu", c_uint32), ("batch_size", c_uint32),
    )  # fmt: skip


class LinkOptions(ctypes.Structure):
    """``struct bpf_link_create_opts`` (bpf/bpf.h)."""

    _fields_ = (("sz", c_size_t), ("flags", c_uint32), ("rest", c_uint32 * 9))


class Query(ctypes.Structure):
    """``query`` of ``union bpf_attr`` (linux/bpf.h); libbpf has ``revision`` only from 1.3 on."""

    _fields_ = (
        ("target_ifindex", c_uint32), ("attach_type", c_uint32), ("query_flags", c_uint32), ("attach_flags", c_uint32),
        ("prog_ids", c_uint64), ("count", c_uint32), ("pad", c_uint32), ("prog_attach_flags", c_uint64),
        ("link_ids", c_uint64), ("link_attach_flags", c_uint64), ("revision", c_uint64),
    )  # fmt: skip


class LinkInfo(ctypes.Structure):
    """``struct bpf_link_info`` (linux/bpf.h) of a TCX link."""

    _fields_ = (
        ("type", c_uint32), ("id", c_uint32), ("prog_id", c_uint32), ("pad", c_uint32), ("ifindex", c_uint32),
        ("attach_type", c_uint32), ("rest", c_uint64 * 6),
    )  # fmt: skip
