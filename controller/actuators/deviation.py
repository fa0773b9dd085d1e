"""A knob that somebody else has set, and who that may have been."""

from __future__ import annotations

from dataclasses import dataclass

from slicepilot.controller.system.cgroup_paths import managers
from slicepilot.env.knobs import KnobName

from .targets import SliceTargets


@dataclass(frozen=True)
class Deviation:
    """A knob that somebody else has set.

    Attributes:
        slice: its name.
        knob: which.
        found: in the kernel, in the knob's unit (inf: none).
        ours: what had been set.
        text: both as the kernel has them: shares and rates may agree where files do not; and who may have done it.
    """

    slice: str
    knob: KnobName
    found: float
    ours: float
    text: str


def suspects(target: SliceTargets, knob: KnobName) -> str:
    """Who writes the files of a slice's group, by its name."""
    if target.cgroup is None or knob == "egress_mbps":
        return ""
    names = managers(target.cgroup)
    return f"; perhaps by {' or '.join(names)}" if names else ""
