"""Moves each knob of each slice back and forth under the existing traffic, and measures whether the slice is affected.

`TrialAgent` is an agent like any other, so that guard, journal and supervisor protect the node as during control, and
the knobs are restored whatever happens.

A phase follows the knob's own clock. It begins when the kernel has the value, because writes of a CPU limit are
rationed by its CFS period (`slicepilot.env.knobs`), and lasts some of these periods: 100 ms is usual, 1 s the longest.
Phases are timed, not counted in control periods, of which a busy machine misses many.

That an interval contains "no effect" is no evidence of absence. A knob does not act if the interval excludes the
expected effect while the slice wanted more than the value that the knob was moved to, or if the kernel refuses the
value. Else measuring goes on, and at the end the answer may be unknown.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from slicepilot.controller.actuators.bandwidth import quota_of
from slicepilot.controller.actuators.slice_knobs import SliceTargets
from slicepilot.controller.loop.node import Node
from slicepilot.controller.service.run_config import RunConfig
from slicepilot.controller.service.serve import serve
from slicepilot.controller.system.cgroup import CpuGroup
from slicepilot.controller.system.cgroup_paths import awaited
from slicepilot.controller.system.signals import StopRequest
from slicepilot.data.intervals import Interval, paired_differences, paired_ratio
from slicepilot.env.arrays import FloatArray
from slicepilot.env.backend import Context, Receipt
from slicepilot.env.knobs import CPU_LIMIT, EGRESS, KNOB_FIELDS, NICE, QUOTA_PERIODS_PER_WRITE, KnobName, Knobs
from slicepilot.env.slices import SliceSet
from slicepilot.env.telemetry import Telemetry

PERIOD_S = 0.02
FIRST_S = 1.0  # to know the load
SETTLE_S, MEASURE_S = 0.08, 0.16  # at least; of a CPU limit so many CFS periods:
SETTLE_PERIODS, MEASURE_PERIODS = 1.5, 4.0
LOOKS = (6, 12, 24)
"""Pairs of phases after which it is decided whether to go on."""
MOST_S = 45.0
"""No look follows after so long with a knob, or after four times the duration of its first look if that is longer."""
# What a knob is moved to: shares of what the slice uses and carries, and levels.
SHARES = {CPU_LIMIT: 0.6, EGRESS: 0.7}
NICE_STEP = 10.0
LEVEL = 0.995
"""Confidence level of each interval: there are two, and up to three looks at them."""
LEAST_MBPS = 0.5
FELT_CARRIED, FELT_DELAY = 0.95, 1.25
"""A slice that carries less than so much, or whose p99 delay is longer by more, has felt a knob."""
MOST_DELAY = 1.5
"""A delay that may be longer by more is not known to be unmoved."""
LEAST_WANTED = 1.2
"""Unmoved, the slice used so many times what it was moved to: less, and a limit would have had nothing to hold back."""
SAME_RATIO = 0.03  # `QUOTA_DEAD_BAND_RATIO`


Figures = npt.NDArray[np.float64]
"""Rate in Mbit/s, logarithm of the p99 delay in us, CPU use in mCPU."""


class Step(NamedTuple):
    """A knob of a slice that is tried next."""

    slice: int
    knob: int


@dataclass(frozen=True)
class Effect:
    """The effect of moving a knob on its slice.

    Attributes:
        knob: its index.
        moved_to: in the knob's unit; None where it was not tried.
        carried, delay: rate and p99 delay while it was moved over those while it was not, with 99.5% intervals.
        wanted: what the slice used (or carried) unmoved over ``moved_to``; nan of a weight.
        pairs: of phases.
        obstacle: why it was not tried, or did not hold.
        refused: the kernel did not take the value.
    """

    knob: int
    moved_to: float | None = None
    carried: Interval | None = None
    delay: Interval | None = None
    wanted: float = math.nan
    pairs: int = 0
    obstacle: str = ""
    refused: bool = False

    @property
    def acts(self) -> bool | None:
        """Whether the slice was affected; None where that is not known. A weight only affects slices that are short of
        CPU time."""
        if self.refused:
            return False
        if self.carried is None or self.delay is None:
            return None
        if self.carried.high < FELT_CARRIED or self.delay.low > FELT_DELAY:
            return True
        share = SHARES.get(self.knob)
        if share is None or not self.wanted >= LEAST_WANTED:
            return None
        # An acting limit would have left that share of the rate: below the middle between that and all of it.
        return None if self.carried.low < (1.0 + share) / 2.0 or self.delay.high > MOST_DELAY else False

    @property
    def tried(self) -> bool:
        """Whether it was moved and the slice watched, or the kernel refused."""
        return self.refused or self.carried is not None

    def __str__(self) -> str:
        if self.carried is None or self.delay is None:
            return self.obstacle
        carried, delay = self.carried, self.delay
        return (
            f"moved to {self.moved_to:.3g}, the slice carried {carried.value:.2f} times as much "
            f"({carried.low:.2f} to {carried.high:.2f}), its p99 delay was {delay.value:.3g} times as long "
            f"({delay.low:.3g} to {delay.high:.3g}), in {self.pairs} pairs"
        )


@dataclass
class _Phase:
    """Sums over the time that counts of a phase: of rate, log of the p99 delay and CPU use, each times its time."""

    began_s: float = math.nan
    seconds: float = 0.0
    sums: Figures = field(default_factory=lambda: np.zeros(3))

    def add(self, seconds: float, *figures: float) -> None:
        self.seconds += seconds
        self.sums += seconds * np.asarray(figures)

    @property
    def means(self) -> Figures:
        return self.sums / self.seconds


class TrialAgent:
    """Holds all knobs but one, which it moves back and forth: original, moved, moved, original, and so on.

    Args:
        context: of the node.
        clocks_s: CFS period of each slice, in seconds; by default that of a node's configuration.

    Attributes:
        steps: knobs of slices in the order in which they are tried.
        least_s, most_s: duration if each knob is decided at the first look, and if none is decided.
        effects: of the knobs that were tried so far.
        stop: requested when all knobs have been tried.
    """

    name = "trial"
    request_mcpu: FloatArray | None = None

    def __init__(self, context: Context, clocks_s: Sequence[float] | None = None) -> None:
        moves, slices = context.moves, range(len(context.threads))
        # The CPU limits of slices that share a process are added up, so they are moved together.
        self._mates = {member: group for group in context.sharing for member in group}
        order = (EGRESS, CPU_LIMIT, NICE)
        self.steps = [Step(s, k) for s in slices for k in order if moves is None or moves[k, s, 0]]
        self._clocks_s = [0.1] * len(slices) if clocks_s is None else list(clocks_s)
        self.least_s = FIRST_S + sum(map(self._look_s, self.steps))
        self.most_s = FIRST_S + sum(2.0 * self._most_s(step) for step in self.steps)
        self.stop = StopRequest()
        self.effects: dict[Step, Effect] = {}

    def reset(self, slices: SliceSet, context: Context, seed: int) -> None:
        """Start anew."""
        self._original: Knobs | None = None
        self._allowed: Knobs | None = None
        self._error: str | None = None
        self._last_s = math.nan
        self._load = [_Phase() for _ in slices.names]
        self._low = np.array([slices.bound(field, 0)[:, 0] for field in KNOB_FIELDS])
        self._names = slices.names
        self.effects = {}
        self._begin_step(0)

    def decide(self, telemetry: Telemetry, knobs: Knobs) -> Knobs:
        """The original settings, but for the knob that is moved; ``knobs`` held while ``telemetry`` was measured."""
        now_s = time.monotonic()
        if self._original is None:
            self._original, self._first_s, self._last_s = knobs.copy(), now_s, now_s
        took_s, self._last_s = now_s - self._last_s, now_s
        figures = np.stack(
            [
                telemetry.carried_mbps[:, 0],
                np.log(np.maximum(telemetry.delay_p99_us[:, 0], 1.0)),
                telemetry.cpu_use_mcpu[:, 0],
            ],
            axis=1,
        ).astype(np.float64)
        if now_s < self._first_s + FIRST_S:
            for load, row in zip(self._load, figures, strict=True):
                load.add(took_s, *row)
            return self._original
        while self._at < len(self.steps):
            step = self.steps[self._at]
            if not self._goes_on(step, knobs, figures[step.slice], now_s, took_s):
                self._begin_step(self._at + 1)
                continue
            return self._requested(step)
        self.stop.stop()
        return self._original

    def watch(self, telemetry: Telemetry, allowed: Knobs, receipt: Receipt) -> None:
        """Take in the result of the last decision: what the guard allowed, and what the kernel refused."""
        del telemetry
        self._allowed = allowed
        if receipt.error is not None:  # not at every tick: a refused write counts as one of the rationed writes
            self._error = receipt.error

    # -- a knob --------------------------------------------------------------------------------------------------

    def _begin_step(self, at: int) -> None:
        self._at, self._began_s, self._phases = at, math.nan, [_Phase()]
        self._requested_s, self._error = math.nan, None

    def _goes_on(self, step: Step, knobs: Knobs, figures: Figures, now_s: float, took_s: float) -> bool:
        """Take in a tick; returns whether the trial of the knob goes on."""
        if math.isnan(self._began_s):
            self._began_s = self._requested_s = now_s
        target = self._moved_to(step)
        if isinstance(target, str):
            self.effects[step] = Effect(step.knob, obstacle=target)
            return False
        settle_s, measure_s = self._lasts_s(step)
        phase = self._phases[-1]
        if not self._holds(step, knobs):
            self._phases[-1] = _Phase()
            if now_s - self._requested_s < self._patience_s(step):
                return True
            self.effects[step] = self._obstructed(step, target, float(knobs.values[step.knob, step.slice, 0]))
            return False
        if math.isnan(phase.began_s):
            phase.began_s = now_s
        elif now_s - took_s >= phase.began_s + settle_s:
            phase.add(took_s, *figures)
        if phase.seconds < measure_s:
            return True
        pairs, odd = divmod(len(self._phases), 2)
        self._phases.append(_Phase())
        self._requested_s, self._error = now_s, None
        if odd or pairs not in LOOKS:
            return True
        self.effects[step] = effect = self._effect(step, target, pairs)
        done = effect.acts is not None or step.knob == NICE or pairs == LOOKS[-1]
        return not done and now_s - self._began_s < self._most_s(step)

    def _requested(self, step: Step) -> Knobs:
        assert self._original is not None
        target = self._moved_to(step)
        if not self._moved or isinstance(target, str):
            return self._original
        wanted = self._original.copy()
        wanted.values[step.knob, step.slice, 0] = target
        if step.knob != EGRESS:
            for mate in self._mates.get(step.slice, ()):
                part = self._moved_to(Step(mate, step.knob))
                wanted.values[step.knob, mate, 0] = self._low[step.knob, mate] if isinstance(part, str) else part
        return wanted

    @property
    def _moved(self) -> bool:
        """Whether the phase is of those with the knob moved."""
        return (len(self._phases) - 1) % 4 in {1, 2}

    def _holds(self, step: Step, knobs: Knobs) -> bool:
        """Whether the kernel had the requested value in the window that ends now."""
        wanted, held = (float(item.values[step.knob, step.slice, 0]) for item in (self._requested(step), knobs))
        return _same(held, wanted)

    def _moved_to(self, step: Step) -> float | str:
        """Value of a knob that would affect the slice; or why there is none."""
        assert self._original is not None
        s, k = step
        carried, _, use = self._load[s].means
        if carried < LEAST_MBPS:
            return f"not tried: it carried {carried:.2g} Mbit/s, and {LEAST_MBPS:g} are needed to see an effect"
        if k == NICE:
            return float(min(self._original.values[NICE, s, 0] + NICE_STEP, 19.0))
        value, unit = (SHARES[k] * use, "mCPU") if k == CPU_LIMIT else (SHARES[k] * carried, "Mbit/s")
        if value >= self._low[k, s]:
            return float(value)
        return (
            f"not tried: at this load it would act below {value / SHARES[k]:.3g} {unit}, and its bounds begin at "
            f"{self._low[k, s]:g}"
        )

    # -- its clock -----------------------------------------------------------------------------------------------

    def _lasts_s(self, step: Step) -> tuple[float, float]:
        """How long a phase settles, and how long it is measured then."""
        clock_s = self._clocks_s[step.slice] if step.knob == CPU_LIMIT else 0.0
        return max(SETTLE_S, SETTLE_PERIODS * clock_s), max(MEASURE_S, MEASURE_PERIODS * clock_s)

    def _look_s(self, step: Step) -> float:
        return 2 * LOOKS[0] * (sum(self._lasts_s(step)) + PERIOD_S)

    def _most_s(self, step: Step) -> float:
        return max(MOST_S, 4.0 * self._look_s(step))

    def _patience_s(self, step: Step) -> float:
        """How long a value may take to hold: twice as long as a write of a limit may have to wait."""
        clock_s = self._clocks_s[step.slice] if step.knob == CPU_LIMIT else 0.0
        return 3.0 + 2.0 * QUOTA_PERIODS_PER_WRITE * clock_s

    # -- what it did ---------------------------------------------------------------------------------------------

    def _effect(self, step: Step, target: float, pairs: int) -> Effect:
        rows = np.stack([phase.means for phase in self._phases[: 2 * pairs]]).reshape(pairs, 2, 3)
        # Pairs are original and moved, then moved and original.
        first = np.arange(pairs) % 2
        index = np.arange(pairs)
        original, moved = rows[index, first], rows[index, 1 - first]
        [longer] = paired_differences(moved[:, 1], original[:, 1], LEVEL)
        delay = Interval(*(math.exp(min(end, 50.0)) for end in (longer.value, longer.low, longer.high)))
        unmoved = {CPU_LIMIT: original[:, 2].mean(), EGRESS: original[:, 0].mean(), NICE: math.nan}[step.knob]
        carried = paired_ratio(moved[:, 0], original[:, 0], LEVEL)
        return Effect(step.knob, target, carried, delay, float(unmoved) / target if target else math.nan, pairs)

    def _obstructed(self, step: Step, target: float, held: float) -> Effect:
        """The effect of a knob whose value does not hold: from the pairs so far, if they are enough to look at."""
        requested = float(self._requested(step).values[step.knob, step.slice, 0])
        allowed = requested if self._allowed is None else float(self._allowed.values[step.knob, step.slice, 0])
        pairs = (len(self._phases) - 1) // 2
        if pairs >= LOOKS[0]:
            return self._effect(step, target, pairs)
        as_requested = _same(allowed, requested)
        errors = [] if self._error is None else self._error.split("; ")
        refusals = [text for text in errors if text.startswith(f"{self._names[step.slice]}: ")]
        if as_requested and refusals:
            text = f"requested {requested:.4g}: {'; '.join(refusals)}"
            return Effect(step.knob, target, obstacle=text, refused=True)
        who = "it stayed at" if as_requested else "the guard kept it at"
        return Effect(step.knob, target, obstacle=f"requested {requested:.4g}, {who} {held:.4g}")


def _same(held: float, wanted: float) -> bool:
    return wanted == held or abs(held - wanted) <= SAME_RATIO * abs(wanted)


def clocks_s(node: Node) -> list[float]:
    """Longest possible CFS period of each slice in seconds: of the configuration, or the group's, which the kernel may
    keep.

    Raises:
        ActuatorError: a group cannot be read.
    """
    periods_us = [max(node.quota_period_us or 0, _own_period_us(target)) for target in node.targets]
    for family in node.backend.context.sharing:  # only the first of them has the group
        for member in family:
            periods_us[member] = max(periods_us[other] for other in family)
    return [1e-6 * period for period in periods_us]


def _own_period_us(target: SliceTargets) -> int:
    """The period of a limit that is there; without a limit the kernel takes any."""
    if target.cgroup is None or awaited(target.cgroup):
        return 0
    quota_us, period_us = quota_of(CpuGroup.at(target.cgroup))
    return period_us if quota_us > 0 else 0


def try_knobs(node: Node, agent: TrialAgent) -> dict[str, dict[KnobName, Effect]]:
    """Try all knobs that move, in turn; returns the effects by slice.

    Raises:
        ConfigError: another controller has the slices.
        ActuatorError: knobs that cannot be set; nothing is left changed.
    """
    config = RunConfig().override(
        name=node.name, instance=f"{node.name}-trial", mode="live", publish={"log": "off", "records_mb": 0}
    )
    # The agent stops the run; the number of ticks is the last resort.
    serve(node, config, max_ticks=round(agent.most_s / PERIOD_S), agent=agent, watch=agent.watch, stop=agent.stop)
    names = node.backend.slices.names
    effects: dict[str, dict[KnobName, Effect]] = {name: {} for name in names}
    for step, effect in agent.effects.items():
        effects[names[step.slice]][KNOB_FIELDS[step.knob]] = effect
    return effects
