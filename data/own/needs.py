"""Columns that a table needs to become episodes for offline learning."""

from __future__ import annotations

from collections.abc import Collection

RATES = ("offered_mbps", "carried_mbps")
DELAYS = (
    "delay_p99_us", "delay_max_us", "delay_us", "delay_mean_us", "delay_p50_us", "latency_p99_ms", "latency_ms",
)  # fmt: skip
KNOBS = ("cpu_limit_mcpu", "nice", "egress_mbps")
TIMES = ("time_s", "sent_ns", "received_ns")


def lacking(names: Collection[str]) -> list[str]:
    """Missing columns of a table with these columns; rates may come from packets with a delay and a period."""
    has = set(names)
    packets = {"packet_bytes", "delay_us"} <= has
    result = [] if packets else [name for name in RATES if name not in has]
    if not has & set(DELAYS):
        result.append("delay_p99_us (or delay_us, latency_ms)")
    if not has & set(KNOBS):
        result.append(f"a knob ({', '.join(KNOBS)}; knobs: none says that none was set)")
    if not has & set(TIMES):
        result.append("times")
    return result
