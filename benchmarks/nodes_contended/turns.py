"""UPFs that scripts have started and more load than their CPUs carry: no control, a static order, the rule, in turns.

Five UPFs (`tests/node/foreign.sh`) spend 100 us on each packet; each is offered 45 Mbit/s, which a first slice is
promised within 5 ms and the others a third of within 250 ms. ``--busy`` processes that are no slice use the CPUs too.
Run as root: ``python -m benchmarks.nodes_contended.turns OUT``; a line a run, then medians and ranges, and ratios of
the last agent to the others, turn by turn. ``--open5gs`` takes Open5GS's UPF in place of the project's: as it is, 45
Mbit/s are next to no work for it, so offer it more.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import yaml
from benchmarks.busy import busy

from tests.node.foreign import Foreign

BURN_NS = 100_000
START_S = 120.0
"""A controller should start within this, while the UPFs want all of the CPUs."""
TRIES = 3
REACHED = 0.98  # of the other agent's rate, in the same turn
AGENTS = "no-control,static-order,queue-greedy"
COLUMNS = ("priority Mbit/s", "p99 ms", "late %", "others Mbit/s", "policy %", "loop p50 us", "loop p99 us")


def described(foreign: Foreign, path: Path, program: str | None, offered_mbps: float) -> Path:
    """The node as an operator fills it in."""
    slices = [foreign.slice(f"slice{i}", i, i) for i in range(1, foreign.count + 1)]
    for number, item in enumerate(slices, 1):
        if program:
            item["upf"]["process"] = {"name": Path(program).name}
        item["weight"] = 3.5 if number == 1 else 1.0
        committed_mbps, delay_bound_ms = (offered_mbps, 5.0) if number == 1 else (offered_mbps / 3.0, 250.0)
        item["sla"] = {"committed_mbps": committed_mbps, "delay_bound_ms": delay_bound_ms}
    path.write_text(yaml.safe_dump({"name": foreign.prefix, "slices": slices}))
    return path


def ran(node: Path, foreign: Foreign, agent: list[str], options: argparse.Namespace) -> dict[str, Any]:
    """What ``slicepilot run`` reports of an agent under load."""
    roots = {"run_root": str(options.out / "run"), "state_root": str(options.out / "state")}
    (options.out / "run.yaml").write_text(yaml.safe_dump(roots))
    command = [sys.executable, "-m", "slicepilot.cli", "run", "-c", str(options.out / "run.yaml"), "--node", str(node)]
    command += [*agent, "--seconds", f"{options.seconds:g}", "--json"]
    for _ in range(TRIES):
        foreign.load(options.seconds + START_S, options.mbps)
        try:
            done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
            loaded = foreign.loading
        finally:
            foreign.stop_loads()
        if loaded:
            result: dict[str, Any] = json.loads(done.stdout)
            return result
        print(
            f"{' '.join(agent)}: the load ended before the run did, which does not count", file=sys.stderr, flush=True
        )
    raise SystemExit(f"{' '.join(agent)}: the load ended before each of {TRIES} runs did")


def row(document: dict[str, Any]) -> list[float]:
    """`COLUMNS` of a run."""
    first, *others = document["slices"]
    total = document["loop"]["total_us"]
    carried = sum(item["carried_mbps"] for item in others)
    policy = 100.0 * document["in_charge"]["policy"]
    return [
        *(first["carried_mbps"], 1e-3 * first["delay_p99_us"], first["late_ticks_pct"], carried),
        *(policy, total["p50"], total["p99"]),
    ]


def _print_ratios(what: str, ratios: np.ndarray) -> None:
    if len(ratios):
        middle, low, high = np.median(ratios), ratios.min(), ratios.max()
        reached = np.count_nonzero(ratios >= REACHED)
        print(f"{what}: {middle:.3f} ({low:.2f} to {high:.2f}), at least {REACHED} in {reached} of {len(ratios)}")


def main() -> None:
    """Take turns and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path)
    parser.add_argument("--turns", type=int, default=15)
    parser.add_argument("--seconds", type=float, default=8.0)
    parser.add_argument("--busy", type=int, default=0)
    parser.add_argument("--mbps", type=float, default=45.0, help="offered to each slice")
    parser.add_argument("--open5gs", metavar="PROGRAM", help="an open5gs-upfd of release 2.7 or later")
    parser.add_argument("--agents", default=AGENTS, help="names, separated by commas (default: %(default)s)")
    parser.add_argument("--bundle", help="a policy that takes turns, too")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    names = options.agents.split(",")
    agents = {name: ["--agent", name, *([] if name == "no-control" else ["--mode", "live"])] for name in names}
    if options.bundle:
        agents["the bundle"] = ["--bundle", options.bundle, "--mode", "live", "--force"]
    rows: dict[str, list[list[float]]] = {name: [] for name in agents}
    program = {"KIND": "open5gs", "PROGRAM": options.open5gs} if options.open5gs else {}
    with Foreign(options.out, prefix="nc", BURN_NS=str(BURN_NS), **program) as foreign, busy(options.busy, 3600):
        foreign.weigh()
        node = described(foreign, options.out / "node.yaml", options.open5gs, options.mbps)
        for turn in range(options.turns):
            for name, agent in agents.items():
                rows[name].append(row(ran(node, foreign, agent, options)))
                print(turn, name, *(f"{value:.1f}" for value in rows[name][-1]), flush=True)
    for name, table in rows.items():
        figures = zip(COLUMNS, np.median(table, axis=0), np.min(table, axis=0), np.max(table, axis=0), strict=True)
        parts = (f"{column} {middle:.1f} ({low:.1f} to {high:.1f})" for column, middle, low, high in figures)
        print(f"{name}: {'; '.join(parts)}")
    *others, last = agents
    rates = {name: np.asarray(rows[name])[:, 0] for name in agents}
    for name in others:
        _print_ratios(f"priority Mbit/s of {last} over {name}, turn by turn", rates[last] / rates[name])
    for name in others:
        _print_ratios(f"priority Mbit/s of {name} over its turn before", rates[name][1:] / rates[name][:-1])


if __name__ == "__main__":
    main()
