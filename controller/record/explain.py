"""Explains a tick, or a window of ticks, as plain values that are also their JSON.

A knob without a limit is null, a wanted value that was not a number ``"nan"``.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from slicepilot.controller.contracts.modes import Level, Mode
from slicepilot.controller.contracts.reasons import MEANINGS, Reason, reasons_in
from slicepilot.env.knobs import KNOB_FIELDS
from slicepilot.env.telemetry import NODE_FIELDS, SLICE_FIELDS

from .columns import DECISIONS, FLAGS, slice_names
from .cpu_time import CPU_TIME_FIELDS, without_cpu_time
from .moments import rfc3339
from .reader import Moment, Stretch
from .ring import STAGES_NS, Records

QUANTILES = {"p50": 0.5, "p99": 0.99, "max": 1.0}


def explain_tick(moment: Moment) -> dict[str, Any]:
    """The telemetry of a tick, the wanted, allowed and applied knobs, the reasons, and the times it took.

    ``stages_us`` has the stages, their ``total`` (without the wait for the tick, ``wakeup``) and what was ``ready``
    within the budget: observe, infer and guard. ``changes`` are the allowed or applied knobs that differ from the tick
    before, null where that is not recorded.
    """
    record, before, description = moment.record, moment.before, moment.description
    names = slice_names(description)
    return {
        **_run(description),
        "time": rfc3339(int(record["time_ns"])),
        "time_ns": int(record["time_ns"]),
        "sequence": int(record["sequence"]),
        "mode": Mode(record["mode"]).label,
        "level": Level(record["level"]).label,
        "flags": _flags(int(record["flags"]), int(record["node_reasons"])),
        "missed_ticks": None if before is None else int(record["missed"]) - int(before["missed"]),
        "node": {
            **{name: float(value) for name, value in zip(NODE_FIELDS, record["node"], strict=True)},
            "age_s": float(record["age_s"]),
            "reasons": _reasons(int(record["node_reasons"])),
        },
        "slices": [_slice(record, s, name, description) for s, name in enumerate(names)],
        "changes": None if before is None else _changes(record, before, names),
        "stages_us": _stages(record),
        "budget_us": 1e6 * description["budget_s"],
    }


def explain_window(stretches: Sequence[Stretch]) -> list[dict[str, Any]]:
    """Each run's ticks in a window: what they were, why the guard stepped in and how often, what changed, what it took.

    ``lost_ticks`` are missing from the records, ``missed_ticks`` were skipped by the loop.
    """
    runs: dict[tuple[Any, ...], list[Stretch]] = {}
    for stretch in stretches:
        if len(stretch.records):
            runs.setdefault((stretch.key, slice_names(stretch.description)), []).append(stretch)
    return [
        _window(parts[-1].description, names, np.concatenate([part.records for part in parts]))
        for (_, names), parts in runs.items()
    ]


def _run(description: dict[str, Any]) -> dict[str, Any]:
    bundle = description["bundle"]
    return {"run_id": description["run_id"], "agent": description["agent"], "bundle": bundle and bundle["digest"]}


def _slice(record: Any, s: int, name: str, description: dict[str, Any]) -> dict[str, Any]:
    seen: dict[str, Any] = dict(zip(SLICE_FIELDS, record["slices"][:, s].tolist(), strict=True))
    if without_cpu_time(description, name, record["mode"], record["reasons"][s]):
        seen |= dict.fromkeys(CPU_TIME_FIELDS)
    return {
        "slice": name,
        "valid": bool(record["valid"][s]),
        "seen": seen,
        "knobs": {
            knob: {stage: _setting(record[stage][k, s]) for stage in DECISIONS} for k, knob in enumerate(KNOB_FIELDS)
        },
        "reasons": _reasons(int(record["reasons"][s])),
    }


def _changes(record: Any, before: Any, names: Sequence[str]) -> list[dict[str, Any]]:
    return [
        {
            "slice": names[s],
            "knob": KNOB_FIELDS[k],
            "decision": stage,
            "before": _setting(before[stage][k, s]),
            "after": _setting(record[stage][k, s]),
        }
        for stage in ("allowed", "applied")
        for s, k in np.argwhere((record[stage] != before[stage]).T).tolist()
    ]


def _window(description: dict[str, Any], names: Sequence[str], records: Records) -> dict[str, Any]:
    lasting = int(records["sequence"][-1]) - int(records["sequence"][0]) + 1
    return {
        **_run(description),
        "from": rfc3339(int(records["time_ns"][0])),
        "to": rfc3339(int(records["time_ns"][-1])),
        "ticks": len(records),
        "lost_ticks": lasting - len(records),
        "missed_ticks": int(records["missed"][-1]) - int(records["missed"][0]),
        "modes": _counts(Mode(mode).label for mode in records["mode"].tolist()),
        "levels": _counts(Level(level).label for level in records["level"].tolist()),
        "flags": _counts(
            flag
            for flags, why in zip(records["flags"].tolist(), records["node_reasons"].tolist(), strict=True)
            for flag in _flags(flags, why)
        ),
        "reasons": _reason_counts(records, names),
        "slices": [_slice_window(records, s, name, description) for s, name in enumerate(names)],
        "stages_us": _stage_quantiles(records),
        "budget_us": 1e6 * description["budget_s"],
    }


def _slice_window(records: Records, s: int, name: str, description: dict[str, Any]) -> dict[str, Any]:
    valid = records["valid"][:, s] != 0
    figures = records["slices"][valid, :, s].astype(np.float64)
    means = _means(figures)
    blind = without_cpu_time(description, name, records["mode"][valid], records["reasons"][valid, s])
    if blind.any():
        means |= {field: _means(figures[~blind])[field] for field in CPU_TIME_FIELDS}
    worst = float(np.quantile(figures[:, SLICE_FIELDS.index("delay_p99_us")], 0.99)) if len(figures) else None
    return {
        "slice": name,
        "valid_ticks": int(valid.sum()),
        "mean": means,
        "delay_p99_us_worst_percent": worst,
        "changes": {
            knob: {stage: _moves(records[stage][:, k, s]) for stage in DECISIONS} for k, knob in enumerate(KNOB_FIELDS)
        },
    }


def _means(figures: npt.NDArray[np.float64]) -> dict[str, float | None]:
    """Over ticks, None where there are none; the loss is that of the window, in which packets under way at a tick have
    left at a later one."""
    if not len(figures):
        return dict.fromkeys(SLICE_FIELDS)
    means = dict(zip(SLICE_FIELDS, figures.mean(axis=0).tolist(), strict=True))
    offered, carried = means["offered_mbps"], means["carried_mbps"]
    return means | {"loss_ratio": max(0.0, 1.0 - carried / offered) if offered else 0.0}


def _reason_counts(records: Records, names: Sequence[str]) -> list[dict[str, Any]]:
    """Number of ticks in which the node or a slice had each reason."""
    counts = []
    for reason in Reason:
        node = int((records["node_reasons"] & reason.bit != 0).sum())
        per_slice = (records["reasons"] & reason.bit != 0).sum(axis=0).tolist()
        slices = {name: count for name, count in zip(names, per_slice, strict=True) if count}
        if node or slices:
            counts.append(_reason(reason) | {"node": node, "slices": slices})
    return counts


def _stage_quantiles(records: Records) -> dict[str, dict[str, float]]:
    stages = {stage.removesuffix("_ns"): records[stage].astype(np.float64) / 1e3 for stage in STAGES_NS}
    stages["ready"] = stages["observe"] + stages["infer"] + stages["guard"]
    stages["total"] = stages["ready"] + stages["apply"]
    return {
        stage: {name: float(np.quantile(values, q)) for name, q in QUANTILES.items()}
        for stage, values in stages.items()
    }


def _stages(record: Any) -> dict[str, float]:
    return {stage: quantiles["max"] for stage, quantiles in _stage_quantiles(np.asarray([record])).items()}


def _reasons(mask: int) -> list[dict[str, Any]]:
    return [_reason(reason) for reason in reasons_in(mask)]


def _reason(reason: Reason) -> dict[str, Any]:
    meaning = MEANINGS[reason]
    return {"reason": reason.label, "severity": meaning.severity.label, "meaning": meaning.text}


def _flags(flags: int, node_reasons: int) -> list[str]:
    """Names of flags, with ``paused``, which is among the node's reasons."""
    return [name for name, bit in FLAGS.items() if flags & bit] + ["paused"] * bool(node_reasons & Reason.PAUSED.bit)


def _counts(labels: Iterable[str]) -> dict[str, int]:
    return dict(Counter(labels).most_common())


def _moves(values: npt.NDArray[Any]) -> int:
    """How often a knob changed; a wanted value that stays NaN does not."""
    both = np.isnan(values[1:]) & np.isnan(values[:-1])
    return int(((values[1:] != values[:-1]) & ~both).sum())


def _setting(value: Any) -> float | str | None:
    number = float(value)
    return "nan" if np.isnan(number) else None if np.isinf(number) else number
