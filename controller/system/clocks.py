"""Checks that this process reads the same clocks as the kernel's programs and other processes."""

from __future__ import annotations

from pathlib import Path

from slicepilot.configs import ConfigError

OFFSETS = Path("/proc/self/timens_offsets")


def check_clocks(offsets: Path = OFFSETS) -> None:
    """Refuse a time namespace with clocks of its own (time_namespaces(7)).

    There BPF programs stamp packets by another CLOCK_MONOTONIC (bpf-helpers(7), ``bpf_ktime_get_ns``), and the start
    times that identify processes (proc_pid_stat(5)) are other numbers than in journals, locks and names of
    filters, so that a controller that lives would be taken for dead. Another program in such a namespace, as a UPF, is
    no
    matter: nothing is read from its clocks.

    Raises:
        ConfigError: CLOCK_MONOTONIC or CLOCK_BOOTTIME are not the machine's.
    """
    try:
        lines = offsets.read_text().splitlines()
    except OSError:  # a kernel without time namespaces (before Linux 5.6, or CONFIG_TIME_NS)
        return
    moved = {clock: 1e-9 * int(ns) + int(s) for clock, s, ns in map(str.split, lines)}
    if any(moved.values()):
        report = ", ".join(f"{clock} {by:+.10g} s" for clock, by in moved.items())
        raise ConfigError(f"time namespace = {report}; expected the machine's own clocks (nsenter --time --target 1)")
