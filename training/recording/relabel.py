"""Compute observations, actions and rewards after a run from its telemetry and knobs.

A loop in real time keeps what it has in hand anyway; encoding and scoring it takes longer than the loop may.
Measurements become lanes here, side by side, so that it is quick.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from slicepilot.data.episodes.episodes import Episode
from slicepilot.data.episodes.missing import UNMEASURED_SHARE
from slicepilot.env.arrays import FloatArray
from slicepilot.env.backend import Context
from slicepilot.env.encoding import NUM_FEATURES, KnobDecoder, ObservationEncoder
from slicepilot.env.knobs import KNOB_FIELDS, Knobs
from slicepilot.env.reward import TERMS, TINY, RewardModel, RewardWeights
from slicepilot.env.simulator.exogenous import tile
from slicepilot.env.slices import SliceSet
from slicepilot.env.sliding import SlidingView
from slicepilot.env.telemetry import NODE_FIELDS, SLICE_FIELDS, Telemetry

LANES = 4096
"""Encoded at once."""


@dataclass(frozen=True)
class Trace:
    """N measurements in a row, of L lanes, and the knobs that held while they were taken.

    Attributes:
        slices: float32 (N, F, S, L); node: float32 (N, 2, L); valid: bool (N, S, L); as in
            `slicepilot.env.telemetry.Telemetry`.
        knobs: float32 (N, 3, S, L): CPU limit, nice (of group scope) and egress rate in the period that was measured.
        unmeasured: bool (N, S, L), slices that were there but could not be measured in full; they are not ``valid``,
            and their figures are zero. None: there are none.
        readings: float32 (N, F, S, L), what was measured of all slices that were there, those included, with NaN for
            what was not; given with ``unmeasured``.
    """

    slices: FloatArray
    node: FloatArray
    valid: npt.NDArray[np.bool_]
    knobs: FloatArray
    unmeasured: npt.NDArray[np.bool_] | None = None
    readings: FloatArray | None = None

    @classmethod
    def of_columns(
        cls,
        slices: Mapping[str, npt.NDArray[Any]],
        node: Mapping[str, npt.NDArray[Any]],
        knobs: Mapping[str, npt.NDArray[Any]],
        needed: Sequence[str],
        there: npt.NDArray[np.bool_] | bool = True,
    ) -> Trace:
        """Columns by name, NaN where nothing is known; loss is worked out, and unknown knobs were none.

        Args:
            slices, knobs: (N, S, L) each, or (N, S) for a single lane; ``node``: the same without S.
            needed: without any of these a slice was not measured, and is not shown.
            there: which slices were, (S, L) or (S,).
        """
        unknown = np.full_like(slices[needed[0]], np.nan)
        offered, carried, loss = (slices.get(name, unknown) for name in ("offered_mbps", "carried_mbps", "loss_ratio"))
        lost = np.clip(1.0 - carried / np.maximum(offered, 1e-6), 0.0, 1.0)
        columns = {**slices, "loss_ratio": np.where(np.isfinite(loss), loss, lost)}
        readings = np.stack([columns.get(name, unknown) for name in SLICE_FIELDS], axis=1).astype(np.float32)
        valid = np.asarray(np.isfinite([slices[name] for name in needed]).all(axis=0))
        of_node = np.stack([node.get(name, unknown[:, 0]) for name in NODE_FIELDS], axis=1).astype(np.float32)
        settings = np.stack([knobs.get(name, unknown) for name in KNOB_FIELDS], axis=1).astype(np.float32)
        count, num = valid.shape[:2]
        settings = settings.reshape(count, len(KNOB_FIELDS), num, -1)
        return cls(
            slices=np.where(valid[:, None], readings, np.float32(0.0)).reshape(count, len(SLICE_FIELDS), num, -1),
            node=of_node.reshape(count, len(NODE_FIELDS), -1),
            valid=valid.reshape(count, num, -1),
            knobs=np.where(np.isfinite(settings), settings, Knobs.none(1).values),
            unmeasured=(there & ~valid).reshape(count, num, -1),
            readings=readings.reshape(count, len(SLICE_FIELDS), num, -1),
        )

    def __len__(self) -> int:
        """Number of measurements N."""
        return len(self.slices)

    def beside(self, part: slice) -> Telemetry:
        """Some measurements joined as lanes: lane n * L + l is lane l of the n-th measurement."""
        valid = _side_by_side(self.valid[part])
        age_s = np.zeros(valid.shape[-1], np.float32)
        return Telemetry(_side_by_side(self.slices[part]), _side_by_side(self.node[part]), age_s, valid)


@dataclass(frozen=True)
class Relabelled:
    """The same as decisions: N observations and N - 1 actions between them, lane by lane.

    Attributes:
        trace: what it is of; unmeasured_share: (N, L), of the slices' weight, where any is marked.
        observations: float32 (L, N, S, D), as agents are shown them (`slicepilot.env.sliding`).
        actions: float32 (L, N - 1, S, 3), the encoded knobs that came to hold after each observation but the last.
        rewards: float32 (L, N - 1); terms: unweighted, same shape. NaN where too little was
            measured, see `_of_measured`.
    """

    trace: Trace
    observations: FloatArray
    actions: FloatArray
    rewards: FloatArray
    terms: dict[str, FloatArray]
    unmeasured_share: npt.NDArray[Any] | None


def relabel(trace: Trace, slices: SliceSet, context: Context, weights: RewardWeights) -> Relabelled:
    """Encode and score a trace whose first measurement is the first that the run's agent was shown.

    Raises:
        ValueError: a trace without all fields of telemetry.
    """
    if trace.slices.shape[1] != len(SLICE_FIELDS) or trace.node.shape[1] != len(NODE_FIELDS):
        raise ValueError(f"trace: {trace.slices.shape[1]} fields of slices, {trace.node.shape[1]} of the node")
    count, lanes = len(trace), trace.valid.shape[-1]
    shown = _shown(trace, context)
    rows = _encoded(trace.knobs, slices)
    before = np.concatenate([rows[:1], rows[:-1]])
    observations = np.empty((count, lanes, len(slices), NUM_FEATURES), np.float32)
    scores = np.empty((len(TERMS) + 1, count, lanes), np.float32)
    at_once = max(1, LANES // lanes)
    for start in range(0, count, at_once):
        part = slice(start, min(start + at_once, count))
        size = part.stop - part.start
        beside = tile(context, size)
        now = _side_by_side(rows[part])
        table = ObservationEncoder(beside).encode(shown.beside(part), now)
        observations[part] = table.reshape(size, *observations.shape[1:])
        knobs = Knobs(_side_by_side(trace.knobs[part]))
        measured, previous = trace.beside(part), _side_by_side(before[part])
        if trace.unmeasured is None or trace.readings is None:
            reward, terms = RewardModel(weights, beside)(measured, knobs, now, previous)
        else:
            lacking = _side_by_side(trace.unmeasured[part])
            there = replace(measured, valid=measured.valid | lacking)  # for what their CPU limits could hold
            _, terms = RewardModel(weights, beside)(there, knobs, now, previous)
            rates = _side_by_side(trace.readings[part, :2])
            reward, terms = _of_measured(terms, weights, beside, measured.valid, lacking, rates)
        scores[:, part] = np.stack([*terms.values(), reward]).reshape(-1, size, lanes)
    by_lane = np.ascontiguousarray(scores[:, 1:].swapaxes(1, 2))
    weight, lacking_share = context.promises.weight, None
    if trace.unmeasured is not None:
        lacking_share = (trace.unmeasured * weight).sum(axis=1) / weight.sum(axis=0)
    return Relabelled(
        trace=trace,
        unmeasured_share=lacking_share,
        observations=np.ascontiguousarray(observations.swapaxes(0, 1)),
        actions=actions_of(trace.knobs[1:], slices),
        rewards=by_lane[-1],
        terms=dict(zip(TERMS, by_lane, strict=False)),
    )


def _of_measured(
    terms: Mapping[str, FloatArray],
    weights: RewardWeights,
    context: Context,
    measured: npt.NDArray[np.bool_],
    lacking: npt.NDArray[np.bool_],
    rates: FloatArray,
) -> tuple[FloatArray, dict[str, FloatArray]]:
    """Rewards (L,) and terms without the slices that could not be measured.

    A slice whose figures are zero counts in ``sla`` as kept promise, and in ``delay`` as no delay; both are means over
    slices by weight. Here they are means over the measured slices (absent slices count as kept, as everywhere).
    ``carried`` is the carried share of what the others offer, over slices whose rates (2, S, L), offered and carried,
    are known. ``sla`` and ``delay`` are NaN where no slice with traffic was measured, ``carried`` is NaN where no other
    slice's rate is known, and the reward is NaN where such a term counts.
    """
    weight = context.promises.weight
    share = weight / weight.sum(axis=0)
    others = np.arange(len(weight))[:, None] != np.argmax(weight, axis=0)
    left = 1.0 - (share * lacking).sum(axis=0)
    result = dict(terms)
    nothing = lacking.any(axis=0) & ~measured.any(axis=0)
    known = others & (measured | lacking) & np.isfinite(rates).all(axis=0)
    no_other = (lacking & others).any(axis=0) & ~known.any(axis=0)
    offered, carried = (np.where(known, column, 0.0).sum(axis=0) + TINY for column in rates)
    some = np.where(nothing, 1.0, left)
    result["sla"] = np.where(nothing, np.nan, np.clip((terms["sla"] - (1.0 - left)) / some, 0.0, 1.0))
    result["delay"] = np.where(nothing, np.nan, np.maximum(terms["delay"] / some, -1.0))
    result["carried"] = np.where(no_other, np.nan, np.minimum(carried / offered, 1.0))
    result = {name: np.asarray(column, np.float32) for name, column in result.items()}
    reward = np.zeros(len(left), np.float32)
    for name, column in result.items():
        if getattr(weights, name):
            reward = reward + np.float32(getattr(weights, name)) * column
    return np.asarray(reward, np.float32), result


def actions_of(knobs: FloatArray, slices: SliceSet) -> FloatArray:
    """Settings (N, 3, S, L) on the axes of actions, (L, N, S, 3)."""
    return np.ascontiguousarray(_encoded(knobs, slices).transpose(3, 0, 2, 1))


def _shown(trace: Trace, context: Context) -> Trace:
    """The trace as agents are shown it."""
    view = SlidingView(context)
    if view.passes:
        return trace
    slices, node = np.empty_like(trace.slices), np.empty_like(trace.node)
    age_s = np.zeros(trace.valid.shape[-1], np.float32)
    for n in range(len(trace)):
        seen = view.see(Telemetry(trace.slices[n], trace.node[n], age_s, trace.valid[n]))
        slices[n], node[n] = seen.slices, seen.node
    return replace(trace, slices=slices, node=node)


def _encoded(knobs: FloatArray, slices: SliceSet) -> FloatArray:
    """`KnobDecoder.encode` of settings (N, 3, S, L), in the same shape."""
    rows = KnobDecoder(slices).encode(Knobs(_side_by_side(knobs)))
    return np.moveaxis(rows.reshape(*rows.shape[:2], len(knobs), -1), 2, 0)


def _side_by_side(array: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """(N, ..., L) to (..., N * L)."""
    moved = np.moveaxis(array, 0, -2)
    return np.ascontiguousarray(moved.reshape(*moved.shape[:-2], -1))


def episodes_of(
    trace: Trace, slices: SliceSet, context: Context, weights: RewardWeights, behaviour: str, steps: int
) -> Iterator[tuple[int, int, Episode | None]]:
    """A trace with readings and marks of missing measurements, as episodes of ``steps`` periods or less.

    Yields the first and the last period of each, and the episode, whose ``info`` is left to the caller; None where no
    reward of it is known.
    """
    seen = relabel(trace, slices, context, weights)
    for first in range(0, len(trace) - 1, steps):
        end = min(first + steps, len(trace) - 1)
        known = np.isfinite(seen.rewards[0, first:end]).any()
        yield first, end, episode_of(seen, 0, first, end, behaviour) if known else None


def episode_of(seen: Relabelled, lane: int, first: int, end: int, behaviour: str, **other: Any) -> Episode:
    """The decisions ``first`` to ``end`` - 1 of a lane, as of a policy that does not draw; ``other``: more fields."""
    trace, decided, observed = seen.trace, slice(first, end), slice(first, end + 1)
    actions = seen.actions[lane, decided]
    fields: dict[str, Any] = {"wanted": actions.copy(), "log_density": np.full(len(actions), np.nan)}
    if seen.unmeasured_share is not None and trace.unmeasured is not None:
        share = seen.unmeasured_share[first + 1 : end + 1, lane].astype(np.float32)
        fields |= {
            "unmeasured": np.ascontiguousarray(trace.unmeasured[observed, :, lane]),
            "decisions": {UNMEASURED_SHARE: share},
        }
    readings = trace.slices if trace.readings is None else trace.readings
    return Episode(
        observations=seen.observations[lane, observed],
        actions=actions,
        rewards=seen.rewards[lane, decided],
        behaviour=behaviour,
        terms={name: values[lane, decided] for name, values in seen.terms.items()},
        telemetry=np.ascontiguousarray(readings[observed, ..., lane]),
        node=np.ascontiguousarray(trace.node[observed, :, lane]),
        valid=np.ascontiguousarray(trace.valid[observed, :, lane]),
        **(fields | other),
    )
