"""The study of Moreira et al. (2026) in the simulator and on the testbed: neighbours, QFIs, and agents beside none."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Any

from slicepilot.agents.heuristics.registry import make
from slicepilot.training.evaluation.rollouts import simulate_rollout
from slicepilot.training.studies.study import Effort, Findings, Store
from slicepilot.training.studies.testbed import StudyTestbed

from .conditions import QUARTER, RATE_SCALE, rows_of, scenario
from .samples import BASELINE, CLASSES, QFIS, figures_of_table, table_of

NO_CONTROL = "no-control"
CLOSED_LOOP = ("queue-greedy",)
"""Agents that close the loop where none is named."""
REPETITIONS, QUICK_REPETITIONS = 10, 3
TURNS, QUICK_TURNS = 3, 1
HOW = (
    "a packet a period of 100 ms for 3 s a run after 1 s, latencies from N3 to N6; floods have "
    f"{RATE_SCALE:g} of the release's packets/s, the applications its users; n of each figure is the number of packets"
)


def simulate(effort: Effort, store: Store) -> Findings:
    """All runs in the simulator of a testbed's node."""
    repetitions = QUICK_REPETITIONS if effort.quick else REPETITIONS

    def play(agent: str, condition: str, qfi: int) -> list[dict[str, Any]]:
        own = scenario(condition, qfi)
        made = make(agent, own.slice_set(), own.hardware_spec())
        seed = effort.seed + 1000 * QFIS.index(qfi)  # a run of its own: the simulator does not look at QFIs
        rollout = simulate_rollout(made, own, repetitions, seed)
        return [rows_of(rollout, condition, qfi)]

    return _findings(effort, store, "simulated", list(_cells(effort)), play, f"{repetitions} repetitions")


def measure(effort: Effort, store: Store) -> Findings:
    """All runs on UPFs of this machine, in turns; each is stored as soon as it ends.

    Raises:
        ConfigError: there is no testbed to be had.
    """
    turns = QUICK_TURNS if effort.quick else TURNS
    with closing(StudyTestbed()) as testbed:

        def play(agent: str, condition: str, qfi: int, turn: int) -> list[dict[str, Any]]:
            rollout = testbed.play(agent, scenario(condition, qfi), effort.seed + turn)
            return [rows_of(rollout, condition, qfi)]

        # A testbed has a single QFI: play all runs of a QFI before those of the next.
        cells = [(*cell, turn) for qfi in QFIS for turn in range(turns) for cell in _cells(effort) if cell[2] == qfi]
        return _findings(effort, store, "measured", cells, play, f"{turns} turns")


def _cells(effort: Effort) -> Iterator[tuple[str, str, int]]:
    for agent in (NO_CONTROL, *(effort.agents or CLOSED_LOOP)):
        for condition in (*CLASSES, *((QUARTER,) if agent == NO_CONTROL else ())):
            for qfi in QFIS:
                yield agent, condition, qfi


def _findings(
    effort: Effort, store: Store, source: str, cells: list[Any], play: Callable[..., list[dict[str, Any]]], how: str
) -> Findings:
    rows = dict[str, list[dict[str, Any]]]()
    for done, cell in enumerate(cells):
        effort.say(f"{source}: {cell[0]} beside {cell[1]}, QFI {cell[2]}", done / len(cells))
        rows.setdefault(cell[0], []).extend(store.get("/".join(map(str, cell)), lambda: play(*cell)))  # noqa: B023
    pair = table_of(row for row in rows[NO_CONTROL] if row["traffic_class"] in (BASELINE, QUARTER))
    quarter = {key: each for key, each in figures_of_table(pair, effort.seed).items() if f"/{QUARTER}/" in key}
    result = Findings(extra=quarter)
    rows[NO_CONTROL] = [row for row in rows[NO_CONTROL] if row["traffic_class"] != QUARTER]
    tables = {agent: table_of(own) for agent, own in rows.items()}
    result.values = figures_of_table(tables.pop(NO_CONTROL), effort.seed)
    for agent, table in tables.items():
        own = figures_of_table(table, effort.seed)
        kept = ("class", "ratio", "test")
        result.extra |= {f"{agent}/{key}": figure for key, figure in own.items() if key.split("/")[0] in kept}
    result.material["rows"] = rows
    result.remarks.append(f"{source}: {how}, seed {effort.seed}; {HOW}")
    return result
