"""``slicepilot bench reaction``: how long a burst of its neighbours keeps the priority slice outside its bound."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from slicepilot.cli.schemas.bench import ReactionBench
from slicepilot.cli.shared.agents_option import load_learned, names_of
from slicepilot.cli.shared.output import console, figures_table, print_json, progress_bar
from slicepilot.configs import ConfigError

if TYPE_CHECKING:
    from slicepilot.agents.base import Agent
    from slicepilot.env.knobs import Knobs
    from slicepilot.env.simulator.scenario import Scenario
    from slicepilot.env.telemetry import Telemetry
    from slicepilot.testbed.backend.backend import TestbedBackend
    from slicepilot.testbed.bench.reaction import Reaction

AGENTS = ("no-control", "captain", "reactive-sla")
STAGES = ("window", "decision", "drain", "rest")
LEVEL = 0.95


def reaction(
    bundle: Annotated[list[Path] | None, typer.Option(help="Bundle of a learned policy; may be repeated.")] = None,
    agents: Annotated[list[str] | None, typer.Option(help="Names of agents, separated by commas.")] = None,
    scenario: Annotated[str, typer.Option(help="Scenario in which all neighbours burst together.")] = "testbed-bursts",
    period_ms: Annotated[float, typer.Option(min=2, max=1000, help="Control period.")] = 5.0,
    bound_ms: Annotated[
        float | None, typer.Option(min=0.1, help="Delay bound (default: the priority slice's).")
    ] = None,
    repetitions: Annotated[int, typer.Option(min=1, max=100, help="Number of turns of every agent.")] = 5,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Measure the time from a burst until the priority slice's p99 delay is inside its bound again.

    Needs root. Agents take turns on real UPFs; every packet is timed in the kernel. The time is split into the wait
    for the first measurement that can show the burst, the decision, the drain of the queue, and the rest.

    Example: [bold]slicepilot bench reaction --bundle runs/testbed/bundle --period-ms 3[/bold]
    """
    import dataclasses

    from slicepilot.env.simulator.scenario import Scenario
    from slicepilot.testbed.backend.backend import open_backend

    played = dataclasses.replace(Scenario.from_yaml(scenario), control_period_s=1e-3 * period_ms)
    made = _make_agents(bundle or [], agents or AGENTS, played)
    result: dict[str, list[Reaction]] = {agent.name: [] for agent in made}
    slices = played.slice_set()
    bound_us = 1e3 * (bound_ms or float(slices.column("sla.delay_bound_ms")[slices.priority_index, 0]))
    live = open_backend(played, record_packets=True)
    try:
        with progress_bar() as progress:
            task = progress.add_task("measuring", total=repetitions * len(made))
            for turn in range(repetitions):
                for agent in made:
                    progress.update(task, description=f"turn {turn + 1}: {agent.name}")
                    result[agent.name] += _run(agent, live, played, bound_us, turn)
                    progress.advance(task)
    finally:
        live.close()
    rows = [_row(name, reactions) for name, reactions in result.items()]
    if as_json:
        document = {"scenario": scenario, "period_ms": period_ms, "bound_ms": 1e-3 * bound_us, "agents": rows}
        print_json(document, ReactionBench)
    else:
        _print(rows, scenario, period_ms, 1e-3 * bound_us)


def _make_agents(bundles: list[Path], names: Sequence[str], played: Scenario) -> list[Agent]:
    from slicepilot.agents.heuristics.registry import make

    slices, node = played.slice_set(), played.hardware_spec()
    return [*load_learned(bundles), *(make(name, slices, node) for name in names_of(names))]


def _run(agent: Agent, live: TestbedBackend, played: Scenario, bound_us: float, seed: int) -> list[Reaction]:
    """One run; its bursts."""
    import time

    import numpy as np

    from slicepilot.controller.loop.loop import ActivePolicy, Loop, LoopConfig
    from slicepilot.controller.system.signals import StopRequest
    from slicepilot.testbed.bench.reaction import Tick, burst_starts, reaction

    events, ticks = [], []
    held: list[Knobs] = []

    def watch(telemetry: Telemetry, wanted: Knobs, receipt: Any) -> None:
        del telemetry, wanted
        applied_ns = time.monotonic_ns()
        events.append(live.packet_events())
        changed = not held or not np.array_equal(receipt.applied.values, held[0].values)
        held[:] = [receipt.applied.copy()]
        # The tick's own measurement is complete about when the tick begins.
        ticks.append(Tick(live.ticks.deadline_ns, applied_ns, changed))

    live.packet_events()
    stop = StopRequest()
    config = LoopConfig(max_ticks=live.context.num_steps, seed=seed)
    Loop(live, ActivePolicy.live(agent, live), config, stop, watch=watch).run()
    if stop.requested:
        raise KeyboardInterrupt
    time.sleep(0.1)
    events.append(live.packet_events())
    live.stop_load()
    packets = np.concatenate(events)
    priority = live.slices.priority_index
    length_ns = _burst_length_ns(played, priority)
    starts = burst_starts(packets, priority)
    return [reaction(packets, ticks, priority, bound_us, int(start), length_ns) for start in starts]


def _burst_length_ns(played: Scenario, priority: int) -> int:
    """The shortest time for which a neighbour's load stays up."""
    names = played.slice_set().names
    profiles = [load.profile for name in names if name != names[priority] for load in played.loads.get(name, ())]
    spans = [
        later[0] - earlier[0]
        for profile in profiles
        for earlier, later in pairwise(profile)
        if earlier[1] > 0 and later[1] > 0
    ]
    if not spans:
        raise ConfigError(f"scenario {played.name}: no neighbour's load goes up and down by a profile")
    return round(1e9 * min(spans))


def _row(name: str, reactions: list[Reaction]) -> dict[str, Any]:
    import numpy as np

    from slicepilot.data.intervals import interval, median

    total_ms = 1e-6 * np.asarray([item.total_ns for item in reactions], np.float64)
    spread = interval(total_ms, median, 2000, LEVEL, 0)
    row: dict[str, Any] = {
        "agent": name,
        "bursts": len(reactions),
        "left": sum(item.left for item in reactions),
        "not_back": sum(not item.back for item in reactions),
        "reaction_ms": {"median": spread.value, "ci95": [spread.low, spread.high]},
    }
    late = [item for item in reactions if item.left and item.back]
    for stage in STAGES:
        values = [value for item in late if (value := getattr(item, f"{stage}_ns")) is not None]
        row[f"{stage}_ms"] = 1e-6 * float(np.median(values)) if values else None
    return row


def _print(rows: list[dict[str, Any]], scenario: str, period_ms: float, bound_ms: float) -> None:
    table = figures_table(
        f"{scenario}, period {period_ms:g} ms: ms until p99 is back within {bound_ms:g} ms",
        ("agent", "bursts", "left", "not\nback", "median", "95%", "window", "deci-\nsion", "drain", "rest"),
    )
    for row in rows:
        low, high = row["reaction_ms"]["ci95"]
        stages = (row[f"{stage}_ms"] for stage in STAGES)
        table.add_row(
            row["agent"],
            *(str(row[name]) for name in ("bursts", "left", "not_back")),
            f"{row['reaction_ms']['median']:.0f}",
            f"{low:.0f}-{high:.0f}",
            *("-" if value is None else f"{value:.1f}" for value in stages),
        )
    console.print(table)
