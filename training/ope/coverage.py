"""How well logged data cover a policy: its actions against the logged actions in similar states.

A knob of a slice is supported in a state if a logged action in similar states had nearly the same value. Similar are
the tenth (`SIMILAR`) of the logged states whose standardised arrivals are nearest; near is `NEAR` on the axis of -1..1.
Only arrivals are compared, because they do not depend on the policy; by the rest of a state only the logged policy's
own actions would be near. A policy is supported in a knob if it is supported in at least `ENOUGH` of the states.

A state that the policy leads to in the model counts as known if it lies about as near to logged states, in all figures,
as logged states of different episodes lie to each other.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.spatial import KDTree

from slicepilot.data.episodes.episodes import EpisodeSet, Floats
from slicepilot.env.encoding import FEATURES, KNOB_FEATURES, STATIC_FEATURES

from .estimate import Array
from .logged import ACTIVE, arrivals

SIMILAR, NEAR, ENOUGH = 0.1, 0.1, 0.8
APART_S = 0.05
"""Logged states that are nearer in time are nearly the same; one represents all."""
MAX_STATES = 4000
KNOWN_QUANTILE = 0.99
STEADY = 1e-4
ARRIVALS = [FEATURES.index("offered_mbps"), ACTIVE]
FIGURES = [i for i, name in enumerate(FEATURES) if name not in (*KNOB_FEATURES, *STATIC_FEATURES)]
KNOB_WORDS = {"cpu_limit": "CPU limit", "nice": "nice", "egress": "egress rate"}

Rows = npt.NDArray[np.float32]


@dataclass(frozen=True)
class Coverage:
    """How well a policy is supported by data.

    Attributes:
        slices: names, S.
        support: (S, 3), share of states in which the knob lies near a logged knob in similar states.
        states: share of the policy's own states that are like logged states.
    """

    slices: tuple[str, ...]
    support: Array
    states: float

    @property
    def gaps(self) -> list[tuple[str, str, float]]:
        """Slice, knob and support where there is too little, the least first."""
        result = [
            (self.slices[s], KNOB_FEATURES[k], float(self.support[s, k]))
            for s, k in zip(*np.nonzero(self.support < ENOUGH), strict=True)
        ]
        return sorted(result, key=lambda gap: gap[2])

    @property
    def supported(self) -> bool:
        """Whether the data can say something about the policy."""
        return not self.gaps and self.states >= ENOUGH

    @property
    def verdict(self) -> str:
        """The same in words."""
        said = []
        if self.gaps:
            name, knob, share = self.gaps[0]
            said.append(f"{_percent(share)} of its settings of {name}'s {KNOB_WORDS[knob]} are near logged values")
        if len(self.gaps) > 1:
            said.append(f"{len(self.gaps)} of {self.support.size} knobs are outside of the data")
        if self.states < ENOUGH:
            said.append(f"{_percent(self.states)} of the states it leads to are like logged states")
        return f"the data cannot say: {'; '.join(said)}" if said else "supported"

    def to_json(self) -> dict[str, Any]:
        """The same for JSON."""
        return {
            "supported": self.supported,
            "verdict": self.verdict,
            "support": {
                name: dict(zip(KNOB_FEATURES, map(float, row), strict=True))
                for name, row in zip(self.slices, self.support, strict=True)
            },
            "states": self.states,
        }


class LoggedSupport:
    """Logged actions by state, with which policies are compared; of very many states some are drawn at random."""

    def __init__(self, episodes: EpisodeSet, slices: tuple[str, ...], period_s: float) -> None:
        moves = episodes.transitions()
        self.slices = slices
        apart = max(1, round(APART_S / period_s))
        lengths = [len(episode) for episode in episodes]
        starts = np.cumsum([0, *lengths])
        chosen = np.concatenate([np.arange(at, at + n, apart) for at, n in zip(starts.tolist(), lengths, strict=False)])
        if len(chosen) > MAX_STATES:
            chosen = np.sort(np.random.default_rng(0).choice(chosen, MAX_STATES, replace=False))
        self._rows = chosen + moves.episode[chosen]  # among T + 1 rows an episode
        self._actions = moves.actions[chosen]
        came = np.concatenate([arrivals(episode)[:-1] for episode in episodes])[chosen]
        self._similar = _nearest(_standard(came, ARRIVALS)(came), max(1, round(SIMILAR * len(chosen))))
        # A slice that was not measured looks as if it were not there: no state of the node is like that.
        whole = chosen[~np.concatenate([_lacking(episode) for episode in episodes])[chosen]]
        whole = whole if len(whole) else chosen
        self._figures = _standard(moves.observations[whole], FIGURES)
        self._states = KDTree(self._figures(moves.observations[whole]))
        self._known = self._usual_distance(moves.episode[whole])

    def _usual_distance(self, episode: npt.NDArray[np.int64]) -> float:
        """Bound of nearly all logged states' distance to the nearest state of another episode; inf for one episode."""
        near, index = self._states.query(self._states.data, min(len(episode), 200))
        elsewhere = episode[np.reshape(index, (len(episode), -1))] != episode[:, None]
        nearest = np.where(elsewhere, np.reshape(near, elsewhere.shape), np.inf).min(axis=1)
        result = nearest[np.isfinite(nearest)]
        return float(np.quantile(result, KNOWN_QUANTILE)) if len(result) else np.inf

    def of(self, target: Sequence[Floats], visited: Floats) -> Coverage:
        """Coverage of a policy.

        Args:
            target: what it would have done, (T + 1, S, 3) an episode, as `slicepilot.training.ope.logged.watch` says.
            visited: observations (N, S, D) of its own runs in the model.
        """
        actions = np.concatenate(list(target))[self._rows]
        near = np.stack(
            [
                np.abs(self._actions[index] - action).min(axis=0) <= NEAR + STEADY
                for index, action in zip(self._similar, actions, strict=True)
            ]
        )
        distances, _ = self._states.query(self._figures(visited))
        return Coverage(self.slices, near.mean(axis=0, dtype=np.float64), float(np.mean(distances <= self._known)))


def _standard(observations: Floats, columns: list[int]) -> Callable[[Floats], Rows]:
    """Turns some columns of observations (N, S, D) into rows (N, S * columns) of mean 0 and deviation 1 in these.

    Columns that never varied in the data are left out; states in which they vary are unknown to the data in any case.
    """

    def rows(some: Floats) -> Rows:
        return some[..., columns].reshape(len(some), -1)

    known = rows(observations)
    mean, scale = known.mean(axis=0), np.maximum(known.std(axis=0), STEADY)
    return lambda some: (rows(some) - mean) / scale


def _lacking(episode: Any) -> npt.NDArray[np.bool_]:
    """Steps (T,) before which a slice with traffic was not measured."""
    if episode.unmeasured is None:
        return np.zeros(len(episode), np.bool_)
    return np.asarray(episode.unmeasured[:-1].any(axis=1))


def _nearest(points: Rows, count: int) -> npt.NDArray[np.int64]:
    """Indices (N, count) of the nearest of points (N, K) to each of them, itself among them."""
    squares = np.square(points).sum(axis=1)
    result = np.empty((len(points), count), np.int64)
    for start in range(0, len(points), 256):
        part = slice(start, start + 256)
        distance = squares - 2.0 * (points[part] @ points.T)
        result[part] = np.argpartition(distance, count - 1, axis=1)[:, :count]
    return result


def _percent(share: float) -> str:
    return f"{100 * share:.0f}%"
