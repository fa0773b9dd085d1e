"""Grosvik (2023): seven policies on a bottleneck that a critical and a best-effort class share."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from slicepilot.configs import ConfigError
from slicepilot.data.reference import bottleneck_scenarios, published_mechanisms
from slicepilot.training.studies.study import Effort, Finding, Findings, Row, Source, Store

from .bins import PHASES, UNITS
from .criteria import findings
from .measured import measure
from .pictures import pictures
from .policies import AGENT, GROUPS, POLICIES
from .simulated import CLASSES, simulate

HEAVIEST = (*(f"{number}-classes" for number in CLASSES), "frames")
"""Further cells, under the heaviest load."""


class Grosvik:
    """Declares the study."""

    name = "grosvik"
    title = "Quality of slices behind a shared bottleneck"
    citation = (
        'S. G. Grosvik, "Towards a Methodology to Assess Quality of 5G Slicing", Norwegian University of Science and '
        "Technology (NTNU), 2023"
    )
    question = (
        "Which of seven policies on a bottleneck of 35 Mbit/s isolates a critical class from best effort, lets best "
        "effort have what is left, and serves many classes."
    )

    def rows(self) -> Sequence[Row]:
        """Figures of all policies, loads, classes and phases, which the study prints none of, and its numbers of
        classes."""
        result = []
        for policy in (*(each.name for each in POLICIES), AGENT):
            for cell in (*(str(load.scenario) for load in bottleneck_scenarios()), *HEAVIEST):
                for metric, unit, group, phase in _metrics():
                    key = f"{policy}/{cell}/{group}/{metric}/{phase}"
                    text = f"{policy}, load {cell}, {group}, {metric}, {phase}"
                    result.append(Row(key, text, unit, None, None))
        for row in published_mechanisms():
            text = f"{row.policy}, number of classes"
            result.append(Row(f"{row.policy}/classes", text, "", row.classes, 0.0))
        result.append(Row(f"{AGENT}/classes", f"{AGENT}, number of classes", "", None, None))
        return result

    def findings(self) -> Sequence[Finding]:
        """The study's verdict on each policy, and the results of the agent."""
        return findings()

    def orders(self) -> Mapping[str, Sequence[str]]:
        """None: the study prints verdicts."""
        return {}

    def simulate(self, effort: Effort, store: Store) -> Findings:
        """All policies, and agents, as egress kinds of the simulator."""
        return simulate(effort, store)

    def measure(self, effort: Effort, store: Store) -> Findings:
        """The same with this machine's kernel."""
        return measure(effort, store)

    def release(self, folder: Path, effort: Effort) -> Findings:
        """Raises ConfigError: the study has no release."""
        raise ConfigError(f"data = {str(folder)!r}: the study of Grosvik has no release; leave --data away")

    def pictures(self, sources: Mapping[Source, Findings]) -> Sequence[str]:
        """Throughput and delay over time, and a summary of each policy."""
        return pictures(sources)


def _metrics() -> list[tuple[str, str, str, str]]:
    result = [(metric, unit, group, phase) for metric, unit in UNITS.items() for group in GROUPS for phase in PHASES]
    result += [("share", "%", "best-effort", phase) for phase in PHASES]
    result += [("ks-delay", "", "critical", "on"), ("ks-interarrival", "", "critical", "on")]
    return result
