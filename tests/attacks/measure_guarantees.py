"""With one slice hostile, do the others carry what they carry without the attack, and as fast?

    python -m tests.attacks.measure_guarantees [--turns 10] [--seconds 2] [--agents queue-greedy] [--attacks NAME,...]

As root. Four slices with UPFs of scripts offer 20 Mbit/s each, which is half of a fair share of two CPUs, under a live
controller at a period of 5 ms. One of them is hostile. In each turn and for each attack the other three are measured
twice, at the sink behind N6: with the attack, and without it, in either order. Each difference is that of the attack
less the run without it in the same turn, with a 95% interval: the mean of what is carried; the interquartile mean of
the p99, beside the median p99 without the attack. What an attack costs the RAN that sends it is spent in both: without
the attack the same packets are sent to where no UPF is. The agent ``no-controller`` is nobody: what is lost then, no
controller has brought about.

Exit code 1 where an interval says that more was lost than `MOST_LOST` of what the others offer, or that their p99 grew
by more than `MOST_LONGER_MS`.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from slicepilot.controller.contracts.modes import Level
from slicepilot.data.intervals import interval, paired_differences

from .hostile.attacks import ATTACKS, Attack
from .hostile.rig import COUNT, MBPS, NotCalmError, Rig, Window

OFFERED_MBPS = (COUNT - 1) * MBPS
MOST_LOST = 0.02
MOST_LONGER_MS = 4.0  # a fifth of the bound that they are promised
Pair = tuple[Window, Window]
"""With the attack, and without."""


def measure(rig: Rig, attack: Attack, seconds: float, attack_first: bool) -> Pair:
    """One turn of one attack; raises `NotCalmError`."""
    found = {}
    for real in (True, False) if attack_first else (False, True):
        rig.calm()
        with attack.before(rig, real):
            found[real] = rig.window(seconds, attack.during(rig, real))
    return found[True], found[False]


def summary(attack: str, pairs: Sequence[Pair]) -> dict[str, Any]:
    """Of all turns of an attack; differences are the attack's figure less that without."""

    def column(field: str, attacked: bool) -> list[float]:
        return [getattr(pair[0 if attacked else 1], field) for pair in pairs]

    # Of a rate that was lost once in ten turns the mean is to tell; a p99 has outliers on any machine that others use.
    [carried] = paired_differences(column("carried_mbps", True), [column("carried_mbps", False)])
    p99 = interval(np.subtract(column("p99_ms", True), column("p99_ms", False)))
    names = ("carried_mbps", "p99_ms", "hostile_mbps", "late_pct", "distrust_pct", "others_safe_pct")
    means = {
        name: {"without": float(np.mean(column(name, False))), "attacked": float(np.mean(column(name, True)))}
        for name in (*names, "hostile_safe_pct")
    }
    for side, attacked in (("without", False), ("attacked", True)):
        means["p99_ms"][side] = float(np.median(column("p99_ms", attacked)))
    return {
        "attack": attack,
        "turns": len(pairs),
        **means,
        "carried_difference_mbps": asdict(carried),
        "p99_difference_ms": asdict(p99),
        "longest_ms": {
            "without": max(column("longest_ms", False)),
            "attacked": max(column("longest_ms", True)),
        },
        "level": Level(max(pair[0].level for pair in pairs)).label,
    }


def broken(row: dict[str, Any]) -> bool:
    """Whether the others have clearly lost more than noise."""
    carried, p99 = row["carried_difference_mbps"], row["p99_difference_ms"]
    return bool(carried["high"] < -MOST_LOST * OFFERED_MBPS or p99["low"] > MOST_LONGER_MS)


def show(agent: str, rows: Sequence[dict[str, Any]]) -> None:
    """A table of 80 columns."""
    print(f"{agent}: the other slices, without the attack and the difference that it makes")
    print(f"{'':15}{'carried, Mbit/s':^27}{'p99, ms':^25}{'late %':>6} level")
    for row in rows:
        carried, p99 = row["carried_difference_mbps"], row["p99_difference_ms"]
        print(
            f"{row['attack']:14}{'*' if broken(row) else ' '}"
            f"{row['carried_mbps']['without']:5.1f} {carried['value']:+6.2f} {_ends(carried):14} "
            f"{row['p99_ms']['without']:5.2f} {p99['value']:+5.2f} {_ends(p99):12} "
            f"{row['late_pct']['attacked']:5.2f} {row['level']}"
        )
    worst = max(rows, key=lambda row: float(row["longest_ms"]["attacked"]))
    without = max(row["longest_ms"]["without"] for row in rows)
    print(
        f"longest time between two ticks: {worst['longest_ms']['attacked']:.1f} ms ({worst['attack']}); "
        f"without attacks {without:.1f} ms"
    )


def _ends(found: dict[str, float]) -> str:
    return f"{found['low']:+.2f}..{found['high']:+.2f}"


def main(arguments: list[str]) -> int:
    """Play and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--turns", type=int, default=10)
    parser.add_argument("--seconds", type=float, default=2.0)
    parser.add_argument("--agents", default="queue-greedy")
    parser.add_argument("--attacks", help="names with commas between; default: all")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args(arguments)
    known = {attack.name: attack for attack in ATTACKS}
    chosen = list(known) if options.attacks is None else options.attacks.split(",")
    if unknown := [name for name in chosen if name not in known]:
        parser.error(f"--attacks: {unknown[0]}: accepted: {', '.join(known)}")
    document = {agent: _play(agent, [known[name] for name in chosen], options) for agent in options.agents.split(",")}
    if options.json:
        print(json.dumps(document))
    else:
        for agent, rows in document.items():
            show(agent, rows)
    return int(any(broken(row) for rows in document.values() for row in rows))


def _play(agent: str, attacks: Sequence[Attack], options: argparse.Namespace) -> list[dict[str, Any]]:
    pairs: dict[str, list[Pair]] = {attack.name: [] for attack in attacks}
    with tempfile.TemporaryDirectory() as name, Rig(Path(name), agent) as rig:
        for turn in range(options.turns):
            for index, attack in enumerate(attacks):
                try:
                    pairs[attack.name].append(measure(rig, attack, options.seconds, bool((turn + index) % 2)))
                except NotCalmError as error:
                    print(f"{agent}: a turn of {attack.name} is left out: {error}", file=sys.stderr)
            print(f"{agent}: turn {turn + 1} of {options.turns}", file=sys.stderr)
    if empty := [name for name, found in pairs.items() if not found]:
        raise SystemExit(f"{agent}: no turn of {', '.join(empty)} began with all slices at rest")
    return [summary(name, found) for name, found in pairs.items()]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
