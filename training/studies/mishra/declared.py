"""Mishra and Pandey (2026): N3-to-N6 delay of three slices and PFCP latency under three loads."""

from __future__ import annotations

from slicepilot.data.reference import forwarding_delays, pfcp_latencies
from slicepilot.training.studies.study import Row, Study

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


def _rows() -> list[Row]:
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


STUDY = Study(
    name="mishra",
    title="Kernel-level latency of each slice's UPF",
    citation='A. D. Mishra, M. Pandey, "Kernel-Level Per-Slice UPF Latency Measurement in Containerised 5G Core '
    'Networks", arXiv:2605.28185, 2026',
    question="How the delay from N3 to N6 of an eMBB, a URLLC and an mMTC slice responds to load, and whether PFCP "
    "keeps inside the 2 ms that orchestrators assume.",
    rows=_rows(),
    findings=FINDINGS,
    orders={
        f"the {text}": [delay_key(load, name, statistic) for name in SLICES for load in LOADS]
        for statistic, text in {"p50": "median", "mean": "mean", "p99": "99th percentile"}.items()
    },
    simulate=simulate,
    measure=measure,
    release=read_release,
    pictures=pictures,
)
