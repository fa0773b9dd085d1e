"""Move each knob of each slice a little, now and then, under the traffic there is: does the slice feel it?

An agent like any other, so that guard, journal and supervisor stand behind it as they do behind control: whatever
happens meanwhile, the knobs come back.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from slicepilot.controller.loop.node import Node
from slicepilot.controller.service.run_config import RunConfig
from slicepilot.controller.service.serve import serve
from slicepilot.data.intervals import Interval, paired_ratio
from slicepilot.env.arrays import FloatArray
from slicepilot.env.backend import Context
from slicepilot.env.knobs import CPU_LIMIT, EGRESS, KNOB_FIELDS, NICE, KnobName, Knobs
from slicepilot.env.slices import SliceSet
from slicepilot.env.telemetry import Telemetry

PERIOD_S = 0.02
PHASE_TICKS, SETTLE_TICKS = 12, 4
PAIRS = 6
FIRST_TICKS = 50  # to know the load
# What a knob is moved to: shares of what the slice uses and carries, and levels.
CPU_SHARE, EGRESS_SHARE, NICE_STEP = 0.6, 0.7, 10.0
LEVEL = 0.99
LEAST_MBPS = 0.5


class Step(NamedTuple):
    """A knob of a slice that is tried next."""

    slice: int
    knob: int


@dataclass(frozen=True)
class Effect:
    """What moving a knob did to its slice.

    Attributes:
        moved_to: in the knob's unit; None where there was too little traffic to try it.
        carried, delay: rate and p99 delay while it was moved over those while it was not, with 99% intervals.
        knob: which.
    """

    knob: int
    moved_to: float | None
    carried: Interval | None = None
    delay: Interval | None = None

    @property
    def acts(self) -> bool | None:
        """Whether the slice felt it; None where it was not tried, or could not have felt it.

        A weight is felt by who is short of CPU time, and by nobody else.
        """
        if self.carried is None or self.delay is None:
            return None
        felt = self.carried.high < 1.0 or self.delay.low > 1.0
        return felt or (None if self.knob == NICE else False)

    def __str__(self) -> str:
        if self.carried is None or self.delay is None:
            return "not tried: too little traffic"
        carried, delay = self.carried, self.delay
        return (
            f"moved to {self.moved_to:.3g}, the slice carried {carried.value:.2f} times as much "
            f"({carried.low:.2f} to {carried.high:.2f}), its p99 delay was {delay.value:.3g} times as long "
            f"({delay.low:.3g} to {delay.high:.3g})"
        )


class TrialAgent:
    """Holds everything, and moves one knob at a time back and forth: original, moved, moved, original, and so on.

    Args:
        context: of the node.

    Attributes:
        steps: knobs of slices in the order in which they are tried.
        ticks: that takes.
        effects: of those tried so far.
    """

    name = "trial"
    request_mcpu: FloatArray | None = None

    def __init__(self, context: Context) -> None:
        moves, slices = context.moves, range(len(context.threads))
        # A process gets the CPU time that all its slices ask for: they are moved together.
        self._mates = {member: group for group in context.sharing for member in group}
        order = (EGRESS, CPU_LIMIT, NICE)
        self.steps = [Step(s, k) for s in slices for k in order if moves is None or moves[k, s, 0]]
        self.ticks = FIRST_TICKS + len(self.steps) * 2 * PAIRS * PHASE_TICKS + 1
        self.effects: dict[Step, Effect] = {}

    def reset(self, slices: SliceSet, context: Context, seed: int) -> None:
        """Start anew."""
        self._tick, self._original = -1, Knobs.none(len(slices))
        self._use, self._rate = (np.zeros(len(slices)) for _ in range(2))
        self._low = np.array([slices.bound(field, 0)[:, 0] for field in KNOB_FIELDS])
        self.effects = {}
        self._seen: list[list[list[tuple[float, float]]]] = []

    def decide(self, telemetry: Telemetry, knobs: Knobs) -> Knobs:
        """The original settings, but for the knob that is moved."""
        self._tick += 1
        if self._tick == 0:
            self._original = knobs.copy()
        tick = self._tick - FIRST_TICKS
        if tick < 0:
            self._use += telemetry.cpu_use_mcpu[:, 0] / FIRST_TICKS
            self._rate += telemetry.carried_mbps[:, 0] / FIRST_TICKS
            return self._original
        at, within = divmod(tick, 2 * PAIRS * PHASE_TICKS)
        if within == 0:
            self._conclude(at - 1)
            self._seen = [[[] for _ in range(2)] for _ in range(PAIRS)]
        if at >= len(self.steps):
            return self._original
        phase, age = divmod(within, PHASE_TICKS)
        step, moved = self.steps[at], phase % 4 in (1, 2)
        if age >= SETTLE_TICKS:
            figures = telemetry.carried_mbps[step.slice, 0].item(), telemetry.delay_p99_us[step.slice, 0].item()
            self._seen[phase // 2][moved].append(figures)
        value = self._moved_to(step)
        if not moved or value is None:
            return self._original
        wanted = self._original.copy()
        wanted.values[step.knob, step.slice, 0] = value
        if step.knob != EGRESS:
            for mate in self._mates.get(step.slice, ()):
                part = self._moved_to(Step(mate, step.knob))
                wanted.values[step.knob, mate, 0] = self._low[step.knob, mate] if part is None else part
        return wanted

    def _moved_to(self, step: Step) -> float | None:
        s, k = step
        if self._rate[s] < LEAST_MBPS:
            return None
        if k == NICE:
            return float(min(self._original.values[NICE, s, 0] + NICE_STEP, 19.0))
        value = CPU_SHARE * self._use[s] if k == CPU_LIMIT else EGRESS_SHARE * self._rate[s]
        return float(value) if value >= self._low[k, s] else None

    def _conclude(self, at: int) -> None:
        if at < 0:
            return
        step = self.steps[at]
        value = self._moved_to(step)
        if value is None:
            self.effects[step] = Effect(step.knob, None)
            return
        pairs = np.array([[np.mean(phase, axis=0) for phase in pair] for pair in self._seen])
        carried, delay = (paired_ratio(pairs[:, 1, i], pairs[:, 0, i], LEVEL) for i in range(2))
        self.effects[step] = Effect(step.knob, value, carried, delay)


def try_knobs(node: Node, agent: TrialAgent) -> dict[str, dict[KnobName, Effect]]:
    """Try all knobs that move, one after the other; by slice.

    Raises:
        ConfigError: another controller has the slices.
        ActuatorError: knobs that cannot be set; nothing is left changed.
    """
    config = RunConfig().override(
        name=node.name, instance=f"{node.name}-trial", mode="live", publish={"log": "off", "records_mb": 0}
    )
    serve(node, config, max_ticks=agent.ticks, agent=agent)
    names = node.backend.slices.names
    located: dict[str, dict[KnobName, Effect]] = {name: {} for name in names}
    for step, effect in agent.effects.items():
        located[names[step.slice]][KNOB_FIELDS[step.knob]] = effect
    return located
