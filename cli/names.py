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
    rows = {What.SCENARIOS: _scenarios, What.AGENTS: _agents, What.CONFIGS: _configs, What.DATASETS: _datasets}[what]()
    if as_json:
        print_json([{"name": name, "description": about} for name, about in rows], list[Named])
        return
    width = max(len(name) for name, _ in rows) + 2
    for name, about in rows:
        say(f"{name:<{width}}{about}".rstrip())


def _scenarios() -> list[tuple[str, str]]:
    from slicepilot.configs import available
    from slicepilot.env.simulator.scenario import Scenario

    return [(name, _about(Scenario.from_yaml(name))) for name in available("scenarios")]


def _about(scenario: Scenario) -> str:
    """Its number of slices, length and control period, and what happens in it."""
    slices = len(scenario.slice_set())
    return (
        f"{slices} slices, {scenario.duration_s:g} s, period {1e3 * scenario.control_period_s:g} ms: "
        f"{scenario.description}"
    )


def _agents() -> list[tuple[str, str]]:
    from slicepilot.agents.heuristics.registry import available

    return [*((name, "") for name in available()), ("generalist", "shipped policy: --bundle generalist")]


def _configs() -> list[tuple[str, str]]:
    from slicepilot.configs.loader import available, kinds

    return [(f"{kind}/{name}", "") for kind in kinds() for name in available(kind)]


def _datasets() -> list[tuple[str, str]]:
    from slicepilot.data.studies.releases import releases

    return [(release.name, f"{release.status}: {release.title}") for release in releases()]
