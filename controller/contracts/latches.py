"""Texts for operators: the reason of a trip of the guard, and how to end a latch."""

from __future__ import annotations

from datetime import UTC, datetime

RESUME = "slicepilot control resume"

NODE_LATCHED = f"latched: decisions late again and again; `{RESUME}` once they are not"
NODE_REMEDY = f"`{RESUME}` ends it, once `slicepilot explain --window 10s` shows decisions in time"
SEE_STATUS = f"`{RESUME}` ends that; look first: `slicepilot control status`"


def trip_text(
    floor: str,
    offered_mbps: float,
    carried_mbps: float,
    delay_p99_us: float,
    floor_mbps: float,
    time_ns: int,
    trips: int,
    on_trial: bool,
    latched: bool,
) -> str:
    """Which service floor a slice was below, the figures, and since when (``time_ns`` since 1970); one line."""
    at = datetime.fromtimestamp(time_ns // 1_000_000_000, UTC)
    below = f"carried {carried_mbps:.3g} of {offered_mbps:.3g} Mbit/s"
    below += f", floor {floor_mbps:.3g}" if floor == "rate" else f", p99 delay {delay_p99_us / 1e3:.3g} ms"
    times = "on trial" if on_trial else f"{trips} in a row"
    return f"{'latched' if latched else 'safe'} since {at:%H:%M:%S}Z ({times}): {below}"


def slice_remedy(time_ns: int) -> str:
    """How to end a slice's latch, and what to look at before; one line."""
    at = datetime.fromtimestamp(time_ns // 1_000_000_000, UTC)
    look = f"`slicepilot explain --at {at:%Y-%m-%dT%H:%M:%S}Z --window 10s`"
    return f"`{RESUME}` ends it; look first, {look}: does its own UPF drop the packets, or does it wait for a CPU?"
