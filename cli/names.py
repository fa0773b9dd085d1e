"""``slicepilot list``: names that commands take."""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Annotated

import typer

from slicepilot.cli.schemas.machine import Named
from slicepilot.cli.shared.output import print_json, say

if TYPE_CHECKING:
    from slicepilot.env.simulator.scenario import Scenario


class What(StrEnum):
    """Kinds of names."""

    SCENARIOS = "scenarios"
    AGENTS = "agents"
    CONFIGS = "configs"
    DATASETS = "datasets"


def list_names(
    what: Annotated[What, typer.Argument(help="Kind of names.", show_default=False)],
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """List the names that commands take: shipped scenarios, agents, configurations, published datasets.

    Example: slicepilot list scenarios
    """
    rows = _rows(what)
    if as_json:
        print_json([{"name": name, "description": about} for name, about in rows], list[Named])
        return
    width = max(len(name) for name, _ in rows) + 2
    for name, about in rows:
        say(f"{name:<{width}}{about}".rstrip())


def _rows(what: What) -> list[tuple[str, str]]:
    """Each name with its description."""
    from slicepilot.agents.heuristics import registry as agents
    from slicepilot.configs.loader import available, kinds
    from slicepilot.data.studies.releases import releases
    from slicepilot.env.simulator.scenario import Scenario

    match what:
        case What.SCENARIOS:
            return [(name, _about(Scenario.from_yaml(name))) for name in available("scenarios")]
        case What.AGENTS:
            learned = ("generalist", "shipped policy: --bundle generalist")
            return [*((name, "") for name in agents.available()), learned]
        case What.CONFIGS:
            return [(f"{kind}/{name}", "") for kind in kinds() for name in available(kind)]
        case What.DATASETS:
            return [(release.name, f"{release.status}: {release.title}") for release in releases()]


def _about(scenario: Scenario) -> str:
    """Its number of slices, length and control period, and what happens in it."""
    slices = len(scenario.slice_set())
    return (
        f"{slices} slices, {scenario.duration_s:g} s, period {1e3 * scenario.control_period_s:g} ms: "
        f"{scenario.description}"
    )
