"""The figures of Mishra and Pandey (2026): cumulative distributions by slice and by PFCP transaction."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from slicepilot.training.reports.page import COLOURS, DASHES, INK, figure, panel
from slicepilot.training.studies.study import Findings, Source

from .findings import BUDGET_US
from .samples import CONTROLLED, CURVE, LOADS, SLICES, TRANSACTIONS

WIDE_IN, HIGH_IN = 8.0, 6.4


def pictures(sources: Mapping[Source, Findings]) -> list[str]:
    """HTML figures of each source, with the runs under control as thin lines."""
    result = []
    for source, findings in sources.items():
        curves = findings.material.get("curves", {})
        cells = [f"pfcp/{kind}" for kind in TRANSACTIONS]
        for label, names in (("delay", list(SLICES)), ("pfcp", cells)):
            shown = [name for name in names if any(f"{load}/{name}" in curves for load in LOADS)]
            if shown:
                result.append(_panels(curves, shown, f"{source}-{label}", source))
    return result


def _panels(curves: Mapping[str, Any], names: Sequence[str], label: str, source: str) -> str:
    """A panel for each slice or transaction and a curve for each load, on a shared logarithmic axis of microseconds."""
    with figure(HIGH_IN, rows=len(names), width_in=WIDE_IN) as (drawn, axes):
        for axis, name in zip(axes, names, strict=True):
            for at, load in enumerate(LOADS):
                for player, width in (("", 1.6), (CONTROLLED, 0.7)):
                    if (curve := curves.get(f"{player}{load}/{name}")) is not None:
                        text = f"{load}{', under control' if player else ''}"
                        axis.plot(curve, CURVE, color=COLOURS[at], linestyle=DASHES[at], linewidth=width, label=text)
            axis.set_xscale("log")
            axis.set_ylim(0.0, 1.02)
            axis.set_title(name.removeprefix("pfcp/"))
            if name.startswith("pfcp/"):
                axis.axvline(BUDGET_US, color=INK, linewidth=0.8)
        axes[0].legend(ncols=2, loc="lower right")
        axes[-1].set_xlabel("us")
        what = "PFCP latency, with a line at 2 ms" if "pfcp" in label else "Delay from N3 to N6"
        return panel(drawn, label, f"{what}, {source}: share of all that took up to so long, by load.")
