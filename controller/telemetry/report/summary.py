"""Everything that was measured since the start, as plain values: what ``slicepilot probe --json`` prints."""

from __future__ import annotations

import math
from typing import Any

import numpy.typing as npt

from slicepilot.controller.system.cgroup_paths import awaited
from slicepilot.controller.telemetry import flows, layout
from slicepilot.controller.telemetry.histogram import quantiles_us
from slicepilot.controller.telemetry.pfcp import PfcpProbe
from slicepilot.controller.telemetry.source import KernelSource

LEVELS = {"p50": 0.5, "p90": 0.9, "p99": 0.99, "p999": 0.999}
POINTS = {"tun": layout.AT_TUN, "n6": layout.AT_N6}


def summary(source: KernelSource, pfcp: PfcpProbe | None, seconds: float) -> dict[str, Any]:
    """Totals, delays and latencies by slice, and by flow and PFCP message type below them.

    ``match_ratio`` is the share of timed packets recognised again among those that left; None before the first.
    Of a service ``n3`` has its requests and ``n6`` its answers, of which those are matched that came first.
    """
    cpu_ns = source.cpu_ns()
    slices = [_slice(source, index, cpu_ns[index], seconds) for index in range(len(source.packets.points))]
    for flow in flows.read(source.packets):
        slices[flow.slice]["flows"].append(_flow(flow))
    if pfcp is not None:
        for item, row in zip(slices, pfcp.transactions, strict=True):
            item["pfcp"] = {
                kind: _transactions(row[i]) for i, kind in enumerate(layout.PFCP_KINDS) if row[i]["requests"]
            }
    rest = source.packets.slices[-1]["exit"]
    other = {name: {"packets": int(rest[i]["packets"]), "bytes": int(rest[i]["bytes"])} for name, i in POINTS.items()}
    return {"seconds": seconds, "slices": slices, "other_traffic": other["n6"]}


def _slice(source: KernelSource, index: int, cpu_ns: float, seconds: float) -> dict[str, Any]:
    points, record = source.packets.points[index], source.packets.slices[index]
    n3, sched = record["n3"], source.sched.slices[index]
    result: dict[str, Any] = {
        "slice": points.name,
        "n3": {field: int(n3[field]) for field in ("packets", "bytes", "unproven", "crowded", "malformed", "other")},
    }
    result["n3"]["mbps"] = _mbps(result["n3"]["bytes"], seconds)
    for name, at in POINTS.items():
        if getattr(points, name) is not None:
            result[name] = _exit(record["exit"][at], record["delay"][at], seconds)
    last = result["n6" if points.n6 else "tun"]
    came, left = result["n3"]["packets"], last["packets"]
    if points.ports is not None:  # an answer has as many packets as it likes
        came, left = result["n3"]["bytes"], int(record["exit"][layout.AT_N6]["answered_bytes"])
    result["loss_ratio"] = max(0.0, 1 - left / came) if came else 0.0
    if points.cgroup is not None and not awaited(points.cgroup):
        result["cpu_mcpu"] = 1e3 * float(cpu_ns) / (1e9 * seconds)
        result["runqueue_delay_us"] = _quantiles(sched["wait"])
    return result | {"flows": []}


def _exit(counters: Any, delay: npt.NDArray[Any], seconds: float) -> dict[str, Any]:
    matched, missed = int(delay.sum()), int(counters["missed"])
    return {
        "packets": int(counters["packets"]),
        "bytes": int(counters["bytes"]),
        "mbps": _mbps(int(counters["bytes"]), seconds),
        "matched": matched,
        "missed": missed,
        "match_ratio": matched / (matched + missed) if matched + missed else None,
        "delay_us": _quantiles(delay),
    }


def _flow(flow: flows.Flow) -> dict[str, Any]:
    return {
        "teid": flow.teid,
        "qfi": flow.qfi,
        "packets": flow.packets,
        "bytes": flow.bytes,
        "carried_bytes": flow.carried_bytes,
        "delay_us": {name: _quantiles(flow.delay[at]) for name, at in POINTS.items() if flow.delay[at].any()},
    }


def _transactions(record: Any) -> dict[str, Any]:
    counts = {field: int(record[field]) for field in ("requests", "answers", "retransmissions", "orphans")}
    return counts | {"latency_us": _quantiles(record["latency"])}


def _quantiles(counts: npt.NDArray[Any]) -> dict[str, float | None]:
    quantiles = quantiles_us(counts, tuple(LEVELS.values())).tolist()
    return {name: None if math.isnan(value) else value for name, value in zip(LEVELS, quantiles, strict=True)}


def _mbps(amount_bytes: int, seconds: float) -> float:
    return 8e-6 * amount_bytes / seconds
