"""Planning by trial: play many plans of knobs in a model of what is to come, and vary the best."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import numpy as np

from slicepilot.agents.base import Agent
from slicepilot.agents.bounds import most_cpu_mcpu
from slicepilot.env.arrays import FloatArray
from slicepilot.env.backend import Context
from slicepilot.env.encoding import KnobDecoder
from slicepilot.env.knobs import CPU_LIMIT, NICE, NUM_KNOBS, Knobs
from slicepilot.env.slices import SliceSet
from slicepilot.env.telemetry import Telemetry

if TYPE_CHECKING:
    from slicepilot.env.reward import RewardWeights
    from slicepilot.env.simulator.engine import Engine

NONE = np.float32(1.0)  # of a limit's axis, see `slicepilot.env.encoding.KnobDecoder`


@dataclass(frozen=True)
class PlanningConfig:
    """How hard it thinks; time grows with candidates x iterations x horizon / replan_every.

    Attributes:
        candidates: plans per lane that are played side by side, C.
        iterations: rounds of variation and selection at each planning.
        horizon: control periods that a plan is judged on. The simulator's queues hold a fraction of a second, so that a
            few periods of a second see all that a decision does; periods of milliseconds need more of them.
        segments: pieces of constant knobs in a plan, P, of equal length.
        replan_every: control periods between two plannings, at most the horizon.
        elites: plans that survive a round and are varied in the next.
        mutation: share of the coordinates of each knob (CPU limit, nice, egress) that a variation moves.
        steps: sizes of moves on the encoded axes (-1..1); each variation uses one of them.
    """

    candidates: int = 64
    iterations: int = 3
    horizon: int = 4
    segments: int = 2
    replan_every: int = 2
    elites: int = 4
    mutation: tuple[float, float, float] = (0.25, 0.25, 0.02)
    steps: tuple[float, ...] = (0.05, 0.15, 0.5)

    def __post_init__(self) -> None:
        if not 1 <= self.replan_every <= self.horizon:
            raise ValueError(f"replan_every = {self.replan_every}; expected 1 to horizon = {self.horizon}")
        if not 1 <= self.segments <= self.horizon:
            raise ValueError(f"segments = {self.segments}; expected 1 to horizon = {self.horizon}")
        if not 1 <= self.elites < self.candidates:
            raise ValueError(f"elites = {self.elites}; expected 1 to candidates - 1 = {self.candidates - 1}")


class Model(Protocol):
    """C alternatives of each of L lanes, played forward from now: alternative c of lane l is lane c * L + l."""

    engine: Engine
    context: Context

    def start(self, steps: int) -> None:
        """Fix the present and the ``steps`` periods to come."""
        ...

    def rewind(self) -> None:
        """Back to what `start` fixed."""
        ...


class Planner:
    """Receding-horizon search: carries out the best of many plans, and plans anew every ``replan_every`` periods.

    Plans of piecewise-constant knobs are played in a model and judged by the reward summed over the horizon
    (`slicepilot.env.reward.RewardModel`). The first round holds the plan of last time moved on, the present knobs,
    settings that make sense in general (none, priority by weight, limits on the others, limits at present use, some
    slices given up so that the rest can be kept) and what the proposal agents would do now; each further round varies
    the best of the last (an evolution strategy with crossover by slice).

    Args:
        config: effort.
        weights: of the reward that counts, None for the default.
        proposals: agents that decide in every period; when a plan is made, their decisions are candidates.
    """

    def __init__(self, config: PlanningConfig, weights: RewardWeights | None, proposals: Sequence[Agent]) -> None:
        self.config, self.weights, self.proposals = config, weights, tuple(proposals)
        # Two candidates are the plan so far and the present knobs.
        most = config.candidates - 2
        if len(self.proposals) > most:
            raise ValueError(f"{len(self.proposals)} proposals; expected at most {most} (candidates - 2)")

    def reset(self, model: Model, slices: SliceSet, context: Context, seed: int) -> None:
        """Start a run."""
        from slicepilot.env.reward import RewardModel, RewardWeights

        self._context = context
        self._decoder = KnobDecoder(slices)
        self._rng = np.random.default_rng(seed)
        self._model = model
        self._reward = RewardModel(self.weights or RewardWeights.from_yaml(), model.context)
        for agent in self.proposals:
            agent.reset(slices, context, seed)
        weight = context.promises.weight
        self._shape = weight.shape
        self._priority = weight >= weight.max(axis=0)
        self._most = most_cpu_mcpu(slices, context)
        self._constants = _structured(self._decoder, self._priority, weight, self._most)
        self._plan = np.repeat(self._encode(Knobs.none(*self._shape))[None], self.config.segments, axis=0)
        self._age = 0
        self._periods = 0

    def decide(self, telemetry: Telemetry, knobs: Knobs) -> Knobs:
        """The current plan's knobs for the next period."""
        cfg = self.config
        proposed = [self._encode(agent.decide(telemetry, knobs)) for agent in self.proposals]
        left = self._context.num_steps - self._periods
        if self._periods % cfg.replan_every == 0 and left > 0:
            self._replan(telemetry, self._encode(knobs), proposed, min(cfg.horizon, left))
        segment = min(self._age // self._segment_length, cfg.segments - 1)
        self._age += 1
        self._periods += 1
        decided, _ = self._decoder.decode(self._plan[segment].transpose(2, 1, 0))
        return decided

    @property
    def _segment_length(self) -> int:
        return -(-self.config.horizon // self.config.segments)

    def _encode(self, knobs: Knobs) -> FloatArray:
        """Rows (3, S, L). Nice of process scope has no effect between slices: as group nice that is 0."""
        return self._decoder.encode(knobs.between_groups())

    # -- planning ----------------------------------------------------------------------------------------------

    def _replan(self, telemetry: Telemetry, now: FloatArray, proposed: list[FloatArray], steps: int) -> None:
        """Search, and keep the best plan of each lane, (P, 3, S, L)."""
        cfg = self.config
        self._model.start(steps)
        plans = self._first_round(telemetry, now, proposed)
        best_score = np.full(self._shape[1], -np.inf, np.float32)
        best = self._plan
        for iteration in range(cfg.iterations):
            scores = self._score(plans, now, steps)
            order = np.argsort(-scores, axis=0, kind="stable")[: cfg.elites]
            elites = np.take_along_axis(plans, order[None, None, None], axis=3)
            top = np.take_along_axis(scores, order[:1], axis=0)[0]
            better = top > best_score
            best = np.where(better, elites[:, :, :, 0], best)
            best_score = np.maximum(best_score, top)
            if iteration + 1 < cfg.iterations:
                elites[:, :, :, -1] = best
                plans = self._vary(elites, cfg.candidates)
        self._plan, self._age = np.ascontiguousarray(best), 0

    def _score(self, plans: FloatArray, now: FloatArray, steps: int) -> FloatArray:
        """Reward summed over the horizon of plans (P, 3, S, C, L), (C, L)."""
        model = self._model
        candidates, lanes = plans.shape[3:]
        model.rewind()
        total = np.zeros(candidates * lanes, np.float32)
        rows = np.tile(now, candidates)
        for first in range(0, steps, self._segment_length):
            piece = plans[first // self._segment_length].reshape(*plans.shape[1:3], -1)
            previous = rows
            knobs, rows = self._decoder.decode(piece.transpose(2, 1, 0))
            model.engine.apply(knobs)
            for _ in range(min(self._segment_length, steps - first)):
                reward, _ = self._reward(model.engine.advance(), knobs, rows, previous)
                total += reward
                previous = rows
        return total.reshape(candidates, lanes)

    def _first_round(self, telemetry: Telemetry, now: FloatArray, proposed: list[FloatArray]) -> FloatArray:
        """Plans (P, 3, S, C, L): known plans, plans that give up random slices, variations of the plan so far."""
        cfg = self.config
        segment = min(self._age // self._segment_length, cfg.segments - 1)
        moved_on = self._plan[np.minimum(np.arange(cfg.segments) + segment, cfg.segments - 1)]
        held = [now, *proposed, *self._constants, *self._at_use(telemetry, now)][: cfg.candidates - 1]
        plans = np.empty((cfg.segments, NUM_KNOBS, *self._shape[:1], cfg.candidates, self._shape[1]), np.float32)
        plans[:, :, :, 0] = moved_on
        known = 1 + len(held)
        plans[:, :, :, 1:known] = np.stack(held, axis=2)
        given_up = known + (cfg.candidates - known) // 2
        plans[:, :, :, known:given_up] = self._give_up(given_up - known)
        parents = np.stack([moved_on, np.broadcast_to(now, moved_on.shape)], axis=3)
        plans[:, :, :, given_up:] = self._vary(parents, cfg.candidates - given_up)
        return plans

    def _at_use(self, telemetry: Telemetry, now: FloatArray) -> list[FloatArray]:
        """Limits a little above present use, which hold less CPU without slowing a slice that is served."""
        tables = []
        for headroom in (1.1, 1.4):
            limit = np.minimum(telemetry.cpu_use_mcpu * telemetry.valid * np.float32(headroom), self._most)
            # An encoded limit of 0 would mean none.
            np.maximum(limit, 1.0, out=limit)
            knobs = Knobs.of(limit, np.zeros_like(limit), np.full_like(limit, np.inf))
            rows = self._decoder.encode(knobs)
            rows[NICE] = now[NICE]
            tables.append(rows)
        return tables

    def _give_up(self, count: int) -> FloatArray:
        """Random slices below the priority slice get the least weight, some also little CPU: (3, S, N, L)."""
        num_slices, lanes = self._shape
        draw = self._rng.random((2, num_slices, count, lanes), np.float32)
        share = self._rng.random((1, count, lanes), np.float32)
        lost = (draw[0] < share) & ~self._priority[:, None]
        rows = np.full((NUM_KNOBS, num_slices, count, lanes), NONE, np.float32)
        rows[NICE] = np.where(self._priority[:, None], -1.0, np.where(lost, 1.0, -0.5))
        rows[CPU_LIMIT] = np.where(lost & (draw[1] < 0.5), 4.0 * draw[1] - 1.0, NONE)
        return rows

    def _vary(self, parents: FloatArray, count: int) -> FloatArray:
        """``count`` variations of parents (P, 3, S, E, L): crossover by slice, then moves of some coordinates."""
        cfg, rng = self.config, self._rng
        segments, _, num_slices, elites, lanes = parents.shape
        shape = (segments, NUM_KNOBS, num_slices, count, lanes)
        mother, father = (
            np.take_along_axis(parents, rng.integers(elites, size=(1, 1, 1, count, lanes)), axis=3) for _ in range(2)
        )
        crossed = rng.random((1, 1, num_slices, count, lanes), np.float32) < 0.25
        plans = np.where(crossed, father, mother)
        chance = np.asarray(cfg.mutation, np.float32)[None, :, None, None, None]
        draw = rng.random(shape, np.float32)
        size = np.asarray(cfg.steps, np.float32)[rng.integers(len(cfg.steps), size=(1, 1, 1, count, lanes))]
        move = size * rng.standard_normal(shape, np.float32)
        # Half of the variations move all pieces alike, as most often a constant setting suits the whole horizon.
        alike = rng.random((1, 1, 1, count, lanes), np.float32) < 0.5
        move = np.where(alike, move[:1], move)
        draw = np.where(alike, draw[:1], draw)
        plans += np.where(draw < chance, move, np.float32(0.0))
        # "None" is a narrow strip at the end of a limit's axis: let some moves jump there.
        jump = draw < 0.15 * chance
        jump[:, NICE] = False
        plans[jump] = NONE
        np.clip(plans, -1.0, 1.0, out=plans)
        return plans


def _structured(
    decoder: KnobDecoder, priority: np.ndarray, weight: FloatArray, most_mcpu: FloatArray
) -> list[FloatArray]:
    """Settings that are often good, as encoded rows (3, S, L) each."""
    none = np.full((NUM_KNOBS, *weight.shape), NONE, np.float32)
    none[NICE] = 0.0
    tables = [none]
    rank = np.log(weight / weight.min(axis=0))
    rank = rank / np.maximum(rank.max(axis=0), 1e-6)
    for nice in (np.where(priority, -1.0, 1.0), np.where(priority, -0.3, 0.3), 1.0 - 2.0 * rank):
        table = none.copy()
        table[NICE] = nice
        tables.append(table)
    for share in (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.75):
        limit = np.where(priority, np.inf, share * most_mcpu).astype(np.float32)
        for nice in (none[NICE], tables[1][NICE]):
            rows = decoder.encode(Knobs.of(limit, np.zeros_like(limit), np.full_like(limit, np.inf)))
            rows[NICE] = nice
            tables.append(rows)
    return tables
