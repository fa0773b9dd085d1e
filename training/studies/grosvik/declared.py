"""Grosvik (2023): seven policies on a bottleneck that a critical and a best-effort class share."""

from __future__ import annotations

from pathlib import Path
from typing import NoReturn

from slicepilot.configs import ConfigError
from slicepilot.data.reference import bottleneck_scenarios, published_mechanisms
from slicepilot.training.studies.study import Effort, Row, Study

from .bins import PHASES, UNITS
from .criteria import FINDINGS
from .measured import measure
from .pictures import pictures
from .policies import AGENT, GROUPS, POLICIES
from .simulated import CLASSES, simulate

HEAVIEST = (*(f"{number}-classes" for number in CLASSES), "frames")
"""Further cells, under the heaviest load."""


def _rows() -> list[Row]:
    """Figures of all policies, loads, classes and phases, none of which is printed, and printed numbers of classes."""
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


def _metrics() -> list[tuple[str, str, str, str]]:
    result = [(metric, unit, group, phase) for metric, unit in UNITS.items() for group in GROUPS for phase in PHASES]
    result += [("share", "%", "best-effort", phase) for phase in PHASES]
    result += [("ks-delay", "", "critical", "on"), ("ks-interarrival", "", "critical", "on")]
    return result


def _release(folder: Path, _: Effort) -> NoReturn:
    raise ConfigError(f"data = {str(folder)!r}: the study of Grosvik has no release; leave --data away")


STUDY = Study(
    name="grosvik",
    title="Quality of slices behind a shared bottleneck",
    citation='S. G. Grosvik, "Towards a Methodology to Assess Quality of 5G Slicing", Norwegian University of Science '
    "and Technology (NTNU), 2023",
    question="Which of seven policies on a bottleneck of 35 Mbit/s isolates a critical class from best effort, lets "
    "best effort have what is left, and serves many classes.",
    rows=_rows(),
    findings=FINDINGS,
    simulate=simulate,
    measure=measure,
    release=_release,
    pictures=pictures,
)
