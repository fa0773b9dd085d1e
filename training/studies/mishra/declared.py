"""Mishra and Pandey (2026): N3-to-N6 delay of three slices and PFCP latency under three loads."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from slicepilot.data.reference import forwarding_delays, pfcp_latencies
from slicepilot.training.studies.study import Effort, Finding, Findings, Row, Source, Store

from .findings import ESTABLISHMENT_CAUSE, FINDINGS
from .pictures import pictures
from .release import read_release
from .samples import CONTROLLED, LOADS, SLICES, STATISTICS, TRANSACTIONS, delay_key, pfcp_key
from .simulated import simulate
from .testbed import measure

TOLERANCE = 0.25
MEDIUM_CAUSE = (
    "Under the medium load every slice of the study is quicker than under the light load; the simulator's path of a "
    "packet, which was fitted on the light and the heavy load, explains a part of it."
)


class Mishra:
    """Declares the study."""

    name = "mishra"
    title = "Kernel-level latency of each slice's UPF"
    citation = (
        'A. D. Mishra, M. Pandey, "Kernel-Level Per-Slice UPF Latency Measurement in Containerised 5G Core Networks", '
        "arXiv:2605.28185, 2026"
    )
    question = (
        "How the delay from N3 to N6 of an eMBB, a URLLC and an mMTC slice responds to load, and whether PFCP keeps "
        "inside the 2 ms that orchestrators assume."
    )

    def rows(self) -> Sequence[Row]:
        """Mean and quantiles of all cells, also while a controller acts, which the study has not."""
        printed = {pfcp_key(r.load, r.kind, s): getattr(r, s) for r in pfcp_latencies() for s in ("mean", "p99")}
        for row in forwarding_delays():
            printed |= {delay_key(row.load, row.slice, s): getattr(row, s) for s in ("mean", "p50", "p99")}
        result = []
        for player, text in (("", ""), (CONTROLLED, ", under control")):
            for load in LOADS:
                for statistic in STATISTICS:
                    for name in SLICES:
                        key = delay_key(load, name, statistic, player)
                        cause = MEDIUM_CAUSE if load == "medium" else ""
                        label = f"{load} load{text}, {name}, N3 to N6, {statistic}"
                        result.append(Row(key, label, "us", printed.get(key), TOLERANCE, cause))
                    for kind in TRANSACTIONS:
                        key = pfcp_key(load, kind, statistic, player)
                        cause = ESTABLISHMENT_CAUSE if kind == "establishment" else ""
                        label = f"{load} load{text}, PFCP session {kind}, {statistic}"
                        result.append(Row(key, label, "us", printed.get(key), TOLERANCE, cause))
        return result

    def findings(self) -> Sequence[Finding]:
        """The conclusions of the study."""
        return FINDINGS

    def orders(self) -> Mapping[str, Sequence[str]]:
        """Of the nine cells, by median, mean and tail."""
        cells = [(load, name) for name in SLICES for load in LOADS]
        names = {"p50": "median", "mean": "mean", "p99": "99th percentile"}
        return {f"the {text}": [delay_key(*cell, statistic) for cell in cells] for statistic, text in names.items()}

    def simulate(self, effort: Effort, store: Store) -> Findings:
        """All loads in the simulator, packet by packet."""
        return simulate(effort, store)

    def measure(self, effort: Effort, store: Store) -> Findings:
        """All loads on the testbed's UPFs, without and with a live controller."""
        return measure(effort, store)

    def release(self, folder: Path, effort: Effort) -> Findings:
        """The tables again, out of the study's own files."""
        return read_release(folder, effort)

    def pictures(self, sources: Mapping[Source, Findings]) -> Sequence[str]:
        """The study's figures, from each source that has them."""
        return pictures(sources)
