"""Explanations (`slicepilot.controller.record.explain`) for people, in lines of at most 80 columns."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from typing import Any

from slicepilot.configs.text import name_in_cells
from slicepilot.env.knobs import KNOB_FIELDS

from .cpu_time import CPU_TIME_NOT_MEASURED

WIDTH, NAME, COLUMN = 80, 11, 8
_SETTINGS = {"wanted": 7, "allowed": 8, "applied": 8}  # and how wide their columns are
_KNOBS = {"cpu_limit_mcpu": ("CPU limit", "mCPU"), "nice": ("nice", ""), "egress_mbps": ("egress", "Mbit/s")}
# Field, title, unit, and factor from the field's unit to that.
_SEEN = (
    ("offered_mbps", "offered", "Mbit/s", 1.0),
    ("carried_mbps", "carried", "Mbit/s", 1.0),
    ("loss_ratio", "loss", "%", 100.0),
    ("delay_p50_us", "p50", "us", 1.0),
    ("delay_p99_us", "p99", "us", 1.0),
    ("cpu_use_mcpu", "CPU use", "mCPU", 1.0),
    ("throttled_ratio", "throttl", "%", 100.0),
    ("runqueue_delay_us", "waits", "us", 1.0),
)
_STAGES = ("wakeup", "observe", "infer", "guard", "apply", "total")


def tick_lines(explanation: dict[str, Any]) -> list[str]:
    """`explain_tick` in words and tables."""
    node, stages = explanation["node"], explanation["stages_us"]
    shares = f"CPUs {node['cpu_idle_ratio']:.0%} idle, uplink {node['uplink_use_ratio']:.0%} used"
    return [
        *_wrap(f"tick {explanation['sequence']} at {explanation['time']}, {_run_of(explanation)}"),
        *_wrap(f"mode {explanation['mode']}, level {explanation['level']}{_flags(explanation)}"),
        f"node: {shares}, measured {1e3 * node['age_s']:.1f} ms before",
        "",
        *_seen_lines("seen", {row["slice"]: row["seen"] if row["valid"] else None for row in explanation["slices"]}),
        "loss: packets under way count as lost until they leave",
        "",
        *_knob_lines(explanation["slices"], explanation["mode"]),
        "",
        *_guard_lines(explanation, explanation["mode"] == "shadow"),
        "",
        *_change_lines(explanation["changes"]),
        "",
        *_heading("took", [(stage, "us") for stage in _STAGES]),
        _line("", [f"{stages[stage]:.0f}" for stage in _STAGES]),
        f"knobs ready {_of_budget(stages['ready'], explanation)}",
    ]


def window_lines(explanation: dict[str, Any]) -> list[str]:
    """One run of `explain_window` in words and tables."""
    stages = explanation["stages_us"]
    lost = f"{explanation['lost_ticks']} lost, {explanation['missed_ticks']} missed"
    return [
        *_wrap(
            f"{explanation['ticks']} ticks from {explanation['from']} to {explanation['to']}, {_run_of(explanation)}"
        ),
        *_wrap(
            f"mode {_counted(explanation['modes'])}; level {_counted(explanation['levels'])}; {lost}"
            + (f"; {_counted(explanation['flags'])}" if explanation["flags"] else "")
        ),
        "",
        *_seen_lines(
            "seen, mean", {row["slice"]: row["mean"] if row["valid_ticks"] else None for row in explanation["slices"]}
        ),
        "means over ticks, also of p50 and p99; loss: of all that was offered",
        "",
        *_window_guard_lines(explanation["reasons"]),
        "",
        "how often each knob changed",
        *_knob_lines([{"slice": row["slice"], "knobs": row["changes"]} for row in explanation["slices"]], ""),
        "",
        *_heading("took", [(stage, "us") for stage in _STAGES]),
        *(_line(name, [f"{stages[stage][name]:.0f}" for stage in _STAGES]) for name in ("p50", "p99", "max")),
        f"knobs ready {_of_budget(stages['ready']['p99'], explanation)} in 99 % of ticks",
    ]


def _seen_lines(title: str, seen: Mapping[str, Mapping[str, float | None] | None]) -> list[str]:
    """The telemetry of each slice (None: not measured) as a table, and what is missing in it."""
    lines = _heading(title, [(heading, unit) for _, heading, unit, _ in _SEEN])
    for name, figures in seen.items():
        if figures is None:
            lines.append(f"{name_in_cells(name):<{NAME}}not measured")
        else:
            lines.append(_line(name, [_figure(figures[field], scale) for field, _, _, scale in _SEEN]))
    if any(figures is not None and figures["cpu_use_mcpu"] is None for figures in seen.values()):
        lines += _wrap(CPU_TIME_NOT_MEASURED)
    return lines


def setting(value: float | str | None) -> str:
    """A knob's value: ``none`` without a limit."""
    if value is None or isinstance(value, str):
        return value or "none"
    value += 0.0  # no minus before zero
    return f"{value:.4g}" if abs(value) < 1000 else f"{value:.0f}" if abs(value) < 1e6 else f"{value:.0e}"


def _run_of(explanation: dict[str, Any]) -> str:
    bundle = f" (bundle {explanation['bundle'][:12]})" if explanation["bundle"] else ""
    return f"agent {explanation['agent']}{bundle}, run {explanation['run_id']}"


def _flags(explanation: dict[str, Any]) -> str:
    words = {
        "late": "ready too late: not applied",
        "unusable": "the policy gave no decision",
        "apply_error": "a knob could not be set",
        "paused": "paused",
    }
    flags = [words[flag] for flag in explanation["flags"] if flag in words]
    missed = explanation["missed_ticks"]
    flags += [f"{missed} ticks missed before it"] if missed else []
    return "".join(f"; {flag}" for flag in flags)


def _knob_lines(slices: Sequence[dict[str, Any]], mode: str) -> list[str]:
    titles = [f"{title}, {unit}" if unit else title for title, unit in (_KNOBS[knob] for knob in KNOB_FIELDS)]
    width = sum(_SETTINGS.values())
    lines = [
        f"{'knobs':<{NAME}}" + "".join(f"{title:>{width}}" for title in titles),
        f"{'':<{NAME}}" + "".join(f"{stage:>{width}}" for _ in titles for stage, width in _SETTINGS.items()),
    ]
    for row in slices:
        knobs = [row["knobs"][knob] for knob in KNOB_FIELDS]
        values = [f"{setting(knob[stage]):>{width}}" for knob in knobs for stage, width in _SETTINGS.items()]
        lines.append(f"{name_in_cells(row['slice']):<{NAME}}" + "".join(values))
    if mode == "shadow":
        lines.append("shadow: applied is what others have set")
    return lines


def _guard_lines(explanation: dict[str, Any], shadow: bool) -> list[str]:
    whys = [("node", reason) for reason in explanation["node"]["reasons"]]
    whys += [(row["slice"], reason) for row in explanation["slices"] for reason in row["reasons"]]
    if not whys:
        return ["guard: no intervention"]
    lines = ["guard (shadow: nothing of this is set)" if shadow else "guard"]
    for name, reason in whys:
        lines += _wrap(f"  {name_in_cells(name)}: {reason['reason']} ({reason['severity']}): {reason['meaning']}")
    return lines


def _change_lines(changes: Sequence[dict[str, Any]] | None) -> list[str]:
    if changes is None:
        return ["the tick before is not recorded"]
    if not changes:
        return ["no change since the tick before"]
    lines = ["changed since the tick before"]
    for change in changes:
        knob, unit = _KNOBS[change["knob"]]
        move = f"{setting(change['before'])} -> {setting(change['after'])}"
        lines += _wrap(f"  {name_in_cells(change['slice'])}: {change['decision']} {knob} {move} {unit}".rstrip())
    return lines


def _window_guard_lines(reasons: Sequence[dict[str, Any]]) -> list[str]:
    if not reasons:
        return ["guard: no intervention"]
    lines = ["guard, in how many ticks"]
    for reason in reasons:
        where = {"node": reason["node"]} if reason["node"] else {}
        ticks = ", ".join(f"{name_in_cells(name)} {count}" for name, count in (where | reason["slices"]).items())
        lines += _wrap(f"  {reason['reason']} ({reason['severity']}): {ticks}: {reason['meaning']}")
    return lines


def _heading(title: str, columns: Sequence[tuple[str, str]]) -> list[str]:
    return [_line(title, [column for column, _ in columns]), _line("", [unit for _, unit in columns])]


def _line(name: str, values: Sequence[str]) -> str:
    return (f"{name_in_cells(name):<{NAME}}" + "".join(f"{value:>{COLUMN}}" for value in values)).rstrip()


def _figure(value: float | None, scale: float) -> str:
    if value is None:
        return "-"
    value *= scale
    return f"{value:.1f}" if abs(value) < 1e4 else f"{value:.0f}" if abs(value) < 1e7 else f"{value:.1e}"


def _of_budget(ready_us: float, explanation: dict[str, Any]) -> str:
    budget_us = explanation["budget_us"]
    return f"after {ready_us:.0f} us of {budget_us:.0f} us budget ({ready_us / budget_us:.0%})"


def _counted(counts: dict[str, int]) -> str:
    return ", ".join(f"{name} {count}" for name, count in counts.items())


def _wrap(text: str) -> list[str]:
    return textwrap.wrap(text, WIDTH, subsequent_indent="    ", replace_whitespace=False)
