"""Measurements of slices in the kernel: packets from N3 to N6, PFCP on N4, CPU time, run-queue delay.

Needs Linux 5.15 or later with BTF (CONFIG_DEBUG_INFO_BTF), root, libbpf 1.x, and the programs in ``bpf/``, compiled.
"""
