"""Logged episodes side by side, and the decisions of another policy in them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt
from scipy.sparse.csgraph import connected_components

from slicepilot.agents.base import Agent, StochasticAgent
from slicepilot.configs import ConfigError, validate
from slicepilot.data.episodes.episodes import Episode, EpisodeSet, Floats
from slicepilot.env.backend import Context
from slicepilot.env.encoding import (
    FEATURES,
    KNOB_FEATURES,
    NODE_FEATURES,
    TELEMETRY_SCALE,
    KnobDecoder,
    scaled,
    unscaled,
)
from slicepilot.env.reward import RewardWeights
from slicepilot.env.simulator.hardware import Hardware
from slicepilot.env.slices import SliceSet
from slicepilot.env.telemetry import SLICE_FIELDS, Telemetry
from slicepilot.training.offline.data import slices_of

KNOBS = slice(FEATURES.index(KNOB_FEATURES[0]), FEATURES.index(KNOB_FEATURES[-1]) + 1)
NODE = slice(FEATURES.index(NODE_FEATURES[0]), FEATURES.index(NODE_FEATURES[-1]) + 1)
ACTIVE, OFFERED = FEATURES.index("active"), FEATURES.index("offered_mbps")
AROUND = 0.25


@dataclass(frozen=True)
class Node:
    """Facts that all episodes of a set share."""

    slices: SliceSet
    period_s: float
    logical_cpus: float
    uplink_mbps: float
    weights: RewardWeights

    @classmethod
    def of(cls, episodes: EpisodeSet) -> Node:
        """From the set's facts; raises ConfigError if a fact is missing or the observations have another encoding."""
        facts = episodes.facts
        for name in ("slices", "period_s", "logical_cpus", "reward"):
            if name not in facts:
                raise ConfigError(f"facts.{name} = None: expected episodes of slices, which state it")
        uplink = facts.get("uplink_mbps")
        return cls(
            slices=slices_of(episodes),
            period_s=float(facts["period_s"]),
            logical_cpus=float(facts["logical_cpus"]),
            uplink_mbps=float("inf") if uplink is None else float(uplink),
            weights=validate(RewardWeights, facts["reward"], "facts.reward"),
        )

    def context(self, lanes: int, num_steps: int) -> Context:
        """The same for so many lanes and steps."""
        return Context.alike(self.slices, self.period_s, self.logical_cpus, self.uplink_mbps, num_steps, lanes)

    @cached_property
    def decoder(self) -> KnobDecoder:
        """Actions to knobs and back."""
        return KnobDecoder(self.slices)


def same_pods(episodes: EpisodeSet, node: Node) -> EpisodeSet:
    """The episodes with a step in them whose pods had the CPU requests that the slices declare.

    Requests weigh pods against each other, and neither observations nor actions say what they were: episodes with
    other requests are of another node.

    Raises:
        ConfigError: there are none.
    """
    declared = node.slices.column("cpu_request_mcpu")[:, 0]
    own = tuple(
        episode
        for episode in episodes
        if len(episode) and np.array_equal(np.asarray(episode.info.get("request_mcpu", declared), np.float32), declared)
    )
    if not own:
        raise ConfigError(
            f"episodes: none of {len(episodes)} was recorded with steps and on pods of the declared CPU requests; "
            "expected at least one (slicepilot dataset record, without --published-requests)"
        )
    return EpisodeSet(own, episodes.facts)


def watch(agent: Agent, episodes: Sequence[Episode], node: Node) -> list[Floats]:
    """An agent's decision after each observation, encoded: (T + 1, S, 3) an episode.

    It sees what the logged policy saw, knobs included. What an agent remembers (an integral, a mean) is therefore of
    another run; a policy that decides by the observation alone does exactly what it would have done.

    Raises:
        ConfigError: it draws at random.
    """
    lanes, longest = len(episodes), max(map(len, episodes))
    agent.reset(node.slices, node.context(lanes, longest), 0)
    if isinstance(agent, StochasticAgent):  # only now: a draw's attributes belong to a run
        raise ConfigError(f"agent = {agent.name!r}: draws at random; expected a deterministic policy")
    seen = [np.pad(e.observations, ((0, longest - len(e)), (0, 0), (0, 0)), mode="edge") for e in episodes]
    tables = np.stack(seen, axis=1)
    wanted = np.empty((longest + 1, lanes, len(node.slices), KNOBS.stop - KNOBS.start), np.float32)
    for t, table in enumerate(tables):
        knobs, _ = node.decoder.decode(table[..., KNOBS])
        decided = agent.decide(telemetry_of(table), knobs).between_groups()
        wanted[t] = node.decoder.encode(decided).transpose(2, 1, 0)
    return [wanted[: len(episode) + 1, lane] for lane, episode in enumerate(episodes)]


def telemetry_of(table: Floats) -> Telemetry:
    """The figures behind observations (L, S, D): the inverse of `slicepilot.env.encoding.ObservationEncoder`.

    What policies do not see is 0.
    """
    lanes, num_slices, _ = table.shape
    telemetry = Telemetry.empty(num_slices, lanes)
    for row, field in enumerate(TELEMETRY_SCALE):
        telemetry.slices[row] = unscaled(field, table[..., FEATURES.index(field)]).T
    telemetry.node[: len(NODE_FEATURES)] = table[:, 0, NODE].T
    telemetry.valid[:] = table[..., ACTIVE].T > 0.5
    return telemetry


def run_numbers(episodes: EpisodeSet) -> npt.NDArray[np.int64]:
    """Which run each episode (E,) is a stretch of, from 0.

    Stretches between steps without a reward belong to the same run and share its ``info``, so they are not independent.
    Where everything was measured every episode is a run.
    """
    keys: dict[int, int] = {}
    result = []
    for number, episode in enumerate(episodes):
        key = -1 - number if episode.unmeasured is None else id(episode.info)
        result.append(keys.setdefault(key, len(keys)))
    return np.asarray(result, np.int64)


def alike(episodes: EpisodeSet) -> npt.NDArray[np.int64]:
    """The group number of each of `EpisodeSet.behaviours`.

    A group has those that do nearly the same on average, or nearly the same as another member: within `AROUND`,
    root mean square over slices and knobs.
    """
    means = [np.mean([e.actions.mean(axis=0) for e in episodes.of(name)], axis=0) for name in episodes.behaviours]
    table = np.reshape(means, (len(means), -1))
    near = np.square(table[:, None] - table).mean(axis=-1) <= AROUND**2
    return np.asarray(connected_components(near, directed=False)[1], np.int64)


def arrivals(episode: Episode) -> Floats:
    """An episode's observations (T + 1, S, D) as far as they say what arrives, for estimators that start from that.

    A slice that was not measured is not shown to a policy, but it did offer what telemetry says: here it is there.
    """
    if episode.unmeasured is None or not episode.unmeasured.any():
        return episode.observations
    seen, lacking = episode.observations.copy(), episode.unmeasured
    seen[..., ACTIVE] = np.where(lacking, 1.0, seen[..., ACTIVE])
    if episode.telemetry is not None:
        offered = scaled("offered_mbps", episode.telemetry[:, SLICE_FIELDS.index("offered_mbps")])
        seen[..., OFFERED] = np.where(lacking & np.isfinite(offered), offered, seen[..., OFFERED])
    return seen


def hardware_of(episodes: EpisodeSet) -> Hardware:
    """Hardware of the model where none is named: the study's for its episodes, and the testbed's for others."""
    of_study = any(episode.info.get("backend") == "study" for episode in episodes)
    return Hardware.from_yaml("andrade" if of_study else "testbed")
