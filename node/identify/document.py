"""The hardware file that a simulator takes."""

from __future__ import annotations

import dataclasses
from typing import Any

from slicepilot.env.simulator.hardware import Hardware

from .tell import Told


def document(told: Told, node: str, start: str, mode: str) -> dict[str, Any]:
    """Contents: what was told, what is assumed and from where, and the errors on segments that were not fitted on."""
    plain = dataclasses.asdict(Hardware())
    values = dataclasses.asdict(told.hardware)
    sure = {*told.known, *told.measured, *told.fitted}
    shown = {key: value for key, value in values.items() if key in sure or value != plain[key]}
    return {
        "source": f"identified on node {node} by `slicepilot node identify` in {mode}; errors on unseen segments",
        "hardware": shown,
        "assumed": list(told.assumed),
        "assumed_from": start,
        "fit": {name: round(value, 2) for name, value in told.unseen.items()},
    }
