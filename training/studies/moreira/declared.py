"""Moreira et al. (2026): a sensor's packets beside noisy neighbours of four kinds, at a high and a low QFI."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from slicepilot.training.studies.study import Effort, Finding, Findings, Row, Source, Store

from .findings import FINDINGS
from .pictures import pictures
from .played import NO_CONTROL, measure, simulate
from .published import rows
from .release import read_release


class Moreira:
    """Declares the study."""

    name = "moreira"
    title = "Noisy neighbours of a sensor"
    citation = (
        'R. Moreira, L. F. Rodrigues Moreira, T. C. Carvalho, F. de Oliveira Silva, "Noisy Neighbor Influence in the '
        'Data Plane of Beyond 5G Networks", arXiv:2601.12106, 2026'
    )
    question = (
        "Whether traffic of other slices changes the time that a user plane takes for a sensor's packets, and whether "
        "a QFI of higher priority protects them."
    )

    def rows(self) -> Sequence[Row]:
        """Tables III to VI, and the ratios of Table III to its Baseline."""
        return list(rows())

    def findings(self) -> Sequence[Finding]:
        """The decision of each test, and the results of the regression."""
        return FINDINGS

    def orders(self) -> Mapping[str, Sequence[str]]:
        """Four classes are too few for a rank correlation to say anything."""
        return {}

    def simulate(self, effort: Effort, store: Store) -> Findings:
        """All kinds of neighbours at both QFIs, and again with the loop closed."""
        return simulate(effort, store)

    def measure(self, effort: Effort, store: Store) -> Findings:
        """The same on UPFs of this machine."""
        return measure(effort, store)

    def release(self, folder: Path, effort: Effort) -> Findings:
        """The tables again where latencies are at hand; the UPF's resources otherwise."""
        return read_release(folder, effort)

    def pictures(self, sources: Mapping[Source, Findings]) -> Sequence[str]:
        """The study's figures, from each source that has latencies."""
        return pictures(sources, NO_CONTROL)
