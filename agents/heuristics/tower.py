"""Captain with Tower, the whole of Autothrottle: a contextual bandit sets the throttle ratios that Captain follows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

import numpy as np
import numpy.typing as npt
from pydantic import ConfigDict, Field

from slicepilot.configs import load
from slicepilot.env.arrays import BoolArray
from slicepilot.env.backend import Context
from slicepilot.env.knobs import Knobs
from slicepilot.env.promises import cpu_held, promise_score
from slicepilot.env.slices import SliceSet
from slicepilot.env.telemetry import Telemetry

from .captain import CFS_PERIOD_S, DECIDE_PERIODS, Captain

Array = npt.NDArray[np.float64]
Rungs = npt.NDArray[np.intp]
Grouping = Literal["weight", "use"]
# Throttle ratios to choose from, as in the authors' evaluation.py.
LADDER = (0.0, 0.02, 0.04, 0.06, 0.1, 0.15, 0.2, 0.25, 0.3)
RUNGS = len(LADDER)
NUM_FEATURES = 10
# What a slice would use is extrapolated from what it carries, at most so far.
MAX_EXTRAPOLATION, MAX_LOAD = np.float32(20.0), 3.0
TINY = np.float32(1e-3)
# A promise of a 99th percentile is broken when more than this share of a step's control periods broke it.
BROKEN_SHARE = 0.01
UNIT = np.linspace(0.0, 1.0, RUNGS)
FIRST, SECOND = (grid.ravel() for grid in np.indices((RUNGS, RUNGS)))


@dataclass(frozen=True)
class TowerPrior:
    """Tower's knowledge before a run, ``configs/heuristics/captain-tower.yaml``: a normal distribution over the
    coefficients of `features`.

    Attributes:
        grouping: how it divides slices into two groups, see `CaptainTower`.
        mean: (10,).
        precision: (10, 10), inverse of the covariance, times the variance of a step's cost about its prediction: each
            observed step adds the outer product of its features.
        provenance: the data that it was fitted to.
    """

    __pydantic_config__ = ConfigDict(extra="forbid", allow_inf_nan=False)
    grouping: Grouping
    mean: Annotated[tuple[float, ...], Field(min_length=NUM_FEATURES, max_length=NUM_FEATURES)]
    precision: Annotated[tuple[tuple[float, ...], ...], Field(min_length=NUM_FEATURES, max_length=NUM_FEATURES)]
    provenance: dict[str, str | int | float]


@dataclass(frozen=True)
class TowerConfig:
    """How Tower explores, and how long its steps are.

    Attributes:
        explore: probability of a neighbour of the best known choice, 0.1 as the authors' code recommends for normal
            use; 1 with ``uniform`` tries every choice alike, as in their warm-up.
        uniform: see there.
        steps_per_run: steps in a run, where
        least_decisions, most_decisions: the length of a step allows, in decisions of Captain's.
    """

    explore: float = 0.1
    uniform: bool = False
    steps_per_run: int = 60
    least_decisions: int = 10
    most_decisions: int = 60


@dataclass(frozen=True)
class TowerStep:
    """One step of a lane: load when it was chosen, its choice (index of `LADDER` for each group) and its cost."""

    lane: int
    load: float
    first: int
    second: int
    cost: float


class CaptainTower(Captain):
    """Autothrottle: Captain for each slice, and Tower, which says at which throttle ratios Captains aim.

    Tower of Wang et al. (NSDI 2024, section 3.3; ``VwTower`` in ``utils.py`` of github.com/microsoft/autothrottle,
    commit 9801b9f; read, not copied) is a contextual bandit. Once a minute it sees the offered load, chooses one of the
    nine ratios of `LADDER` for each of two groups of services, 81 choices, and learns what the minute cost: the CPU
    that was allocated, in 0..1, while the objective is kept, 2 and more, by how much, when it is broken. It takes the
    choice of least predicted cost, or with probability ``explore`` a neighbour that differs by a rung in one group.

    Here, per lane:

    - **Load** is comparable between nodes, unlike the paper's requests per second: the CPU that the slices' offered
      load needs, over the node's.
    - **Cost** is the mean over the slices, by weight: of a slice that kept its promise in all but 1% of the step's
      control periods, the CPU that all limits hold over the node's; of a slice that did not, 2 plus the mean shortfall
      of its `promise_score`. With one slice that is the paper's cost, whose objective is a 99th percentile; with
      several, a promise that cannot be kept does not hide the others.
    - **Groups**: k-means with k = 2, exactly, since it is in one dimension: of the mean CPU use so far (``use``, as in
      the paper) or of the logarithm of the weight (``weight``), which came to the same on the training mixture, within
      noise. The prior says which.
    - **Cost model**: ridge regression on a quadratic polynomial of load and both ratios (`features`), updated by each
      step, where the authors train a network of three hidden units (Vowpal Wabbit) on medians of all samples.
    - **Step**: a minute there is 60 decisions of Captain's. Here a step is a sixtieth of the run, but 10 to 60
      decisions, each of 1 s or of a control period if that is longer: 10 s in a run of 600 s at 1 s, 150 s at periods
      of 15 s, and a minute in runs of an hour and more. In fewer than ten decisions Captain could not adapt.
    - **Learning across runs**: the authors warm up for twelve hours, six of them trying choices at random. The shipped
      prior is that, on the training mixture (`slicepilot.training.tuning.warm_up_tower`). A run starts from it, because
      an agent forgets at a reset.

    Args:
        prior: None for the shipped prior.
        tower: constants.
    """

    name = "captain-tower"

    def __init__(self, prior: TowerPrior | None = None, tower: TowerConfig | None = None) -> None:
        self.prior = prior or load("heuristics", "captain-tower", TowerPrior)
        self.tower = tower or TowerConfig()
        self.steps: list[TowerStep] | None = None

    def reset(self, slices: SliceSet, context: Context, seed: int) -> None:
        """Start from the prior; the first choice is made with the first measurement."""
        super().reset(slices, context, seed)
        tower, shape = self.tower, context.promises.weight.shape
        lanes = shape[1]
        self._context = context
        self._share = context.promises.weight / context.promises.weight.sum(axis=0)
        self._rng = np.random.default_rng(seed)
        decision_s = np.maximum(np.float32(CFS_PERIOD_S * DECIDE_PERIODS), context.period_s)
        run_s = context.num_steps * context.period_s
        step_s = np.clip(
            run_s / tower.steps_per_run, tower.least_decisions * decision_s, tower.most_decisions * decision_s
        )
        self.step_periods = np.maximum(np.rint(step_s / context.period_s), 1)
        precision = np.asarray(self.prior.precision, np.float64)
        self._precision = np.repeat(precision[None], lanes, axis=0)
        self._moment = np.repeat((precision @ np.asarray(self.prior.mean))[None], lanes, axis=0)
        self._chosen = np.zeros((2, lanes), np.intp)
        self._load, self._loads, self._held, self._in_step = (np.zeros(lanes) for _ in range(4))
        self._broken, self._lacking = np.zeros(shape), np.zeros(shape)
        self._use_sum = np.zeros(shape)
        self._first = True

    def decide(self, telemetry: Telemetry, knobs: Knobs) -> Knobs:
        """Tower's part where a step is over, then Captain's."""
        load = self._offered_load(telemetry)
        self._use_sum += telemetry.cpu_use_mcpu
        if self._first:
            # The measurement before the first decision was taken under no control: it is a load and no cost.
            self._load = load
            self._choose(np.ones(len(load), np.bool_))
            self._first = False
        else:
            self._loads += load
            self._count(telemetry, knobs)
            self._in_step += 1
            over = self._in_step >= self.step_periods
            if over.any():
                self._learn(over)
                self._load = np.where(over, self._loads / np.maximum(self._in_step, 1), self._load)
                self._choose(over)
                for sums in (self._loads, self._held, self._broken, self._lacking, self._in_step):
                    sums[..., over] = 0.0
        return super().decide(telemetry, knobs)

    def _offered_load(self, telemetry: Telemetry) -> Array:
        """CPU that the offered load needs over the node's, (L,)."""
        missing = telemetry.offered_mbps / np.maximum(telemetry.carried_mbps, TINY)
        needed = telemetry.cpu_use_mcpu * np.clip(missing, np.float32(1.0), MAX_EXTRAPOLATION) * telemetry.valid
        share = needed.sum(axis=0) / (np.float32(1e3) * self._context.logical_cpus)
        return np.asarray(np.minimum(share, MAX_LOAD), np.float64)

    def _count(self, telemetry: Telemetry, knobs: Knobs) -> None:
        """Add up what a control period held and broke."""
        self._held += cpu_held(knobs, self._context, telemetry.valid) / self._context.logical_cpus
        lacking = np.where(telemetry.valid, 1.0 - promise_score(telemetry, self._context), 0.0)
        self._broken += lacking > 0
        self._lacking += lacking

    def _step_cost(self) -> Array:
        """Cost of the step so far, (L,)."""
        periods = np.maximum(self._in_step, 1)
        broken = self._broken > BROKEN_SHARE * periods
        cost = np.where(broken, 2.0 + self._lacking / periods, self._held / periods)
        return np.asarray((self._share * cost).sum(axis=0), np.float64)

    def _learn(self, over: BoolArray) -> None:
        """One more observation of the cost model in the lanes whose step is over."""
        cost = self._step_cost()
        seen = features(self._load, UNIT[self._chosen[0]], UNIT[self._chosen[1]])
        self._precision += np.where(over, 1.0, 0.0)[:, None, None] * seen[:, :, None] * seen[:, None, :]
        self._moment += (np.where(over, cost, 0.0)[:, None]) * seen
        if self.steps is not None:
            self.steps += [
                TowerStep(lane, float(self._load[lane]), first, second, float(cost[lane]))
                for lane, first, second in zip(
                    np.nonzero(over)[0].tolist(), *self._chosen[:, over].tolist(), strict=True
                )
            ]

    def _choose(self, over: BoolArray) -> None:
        """New ratios for both groups in the lanes whose step is over."""
        lanes = len(over)
        predicted = self.predict(self._load)
        best = np.argmin(predicted, axis=0)
        first, second = FIRST[best], SECOND[best]
        explores, which, anything = self._rng.random((3, lanes))
        if self.tower.uniform:
            drawn = np.minimum((anything * RUNGS * RUNGS).astype(np.intp), RUNGS * RUNGS - 1)
            off_first, off_second = FIRST[drawn], SECOND[drawn]
        else:
            off_first, off_second = _neighbour(first, second, which)
        off = explores < self.tower.explore
        choice = np.where(off, off_first, first), np.where(off, off_second, second)
        self._chosen = np.where(over, choice, self._chosen)
        of_first, of_second = np.asarray(LADDER, np.float32)[self._chosen]
        self.target_ratio = np.where(over, np.where(self._first_group(), of_first, of_second), self.target_ratio)

    def predict(self, load: Array) -> Array:
        """Expected cost of each pair of ratios, first group slowest, at a load (L,): (81, L)."""
        coefficients = np.linalg.solve(self._precision, self._moment[..., None])[..., 0]
        lanes = len(load)
        grid = features(np.repeat(load, RUNGS**2), np.tile(UNIT[FIRST], lanes), np.tile(UNIT[SECOND], lanes))
        return np.einsum("lcf,lf->cl", grid.reshape(lanes, RUNGS**2, NUM_FEATURES), coefficients)

    def _first_group(self) -> BoolArray:
        """Which slices are of the first group, that of more weight or CPU use, (S, L)."""
        if self.prior.grouping == "weight":
            return upper_of_two(np.log(np.asarray(self._context.promises.weight, np.float64)))
        return upper_of_two(self._use_sum)


def features(load: Array, first: Array, second: Array) -> Array:
    """Quadratic polynomial of a load and the rungs of both groups in 0..1, (N,) each: (N, 10)."""
    item = np.ones_like(load)
    return np.stack(
        [item, load, load**2, first, second, first**2, second**2, first * second, load * first, load * second], axis=1
    )


def upper_of_two(values: Array) -> BoolArray:
    """The group of larger values in the 2-means clustering of each lane's values (S, L): the split of least squares.

    Where all are equal, or there is one slice, all are of the upper group.
    """
    count = len(values)
    order = np.argsort(-values, axis=0, kind="stable")
    ordered = np.take_along_axis(values, order, axis=0)
    ordered = ordered - ordered.mean(axis=0)
    # Least squares within means most between: of the first k against the rest, sum^2 (1 / k + 1 / (S - k)).
    sums = np.cumsum(ordered, axis=0)[:-1]
    sizes = np.arange(1, count)[:, None]
    between = sums**2 * (1.0 / sizes + 1.0 / (count - sizes))
    if count == 1 or not between.size:
        return np.ones(values.shape, np.bool_)
    split = np.argmax(between, axis=0)
    edge = np.take_along_axis(ordered, split[None], axis=0)
    members = ordered >= edge
    upper = np.empty(values.shape, np.bool_)
    np.put_along_axis(upper, order, members, axis=0)
    return upper


def _neighbour(first: Rungs, second: Rungs, which: Array) -> tuple[Rungs, Rungs]:
    """One rung up or down in one of the groups, (L,) each; ``which`` in 0..1 says which of those there are."""
    moves = np.asarray([(-1, 0), (1, 0), (0, -1), (0, 1)])
    to_first, to_second = first + moves[:, 0, None], second + moves[:, 1, None]
    there = (to_first >= 0) & (to_first < RUNGS) & (to_second >= 0) & (to_second < RUNGS)
    rank = np.cumsum(there, axis=0) - 1
    taken = np.floor(which * there.sum(axis=0)).astype(np.intp)
    move = np.argmax(there & (rank == taken), axis=0)
    lanes = np.arange(len(first))
    return to_first[move, lanes], to_second[move, lanes]
