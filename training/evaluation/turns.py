"""Agents on a live backend, in turns: A B C, A B C, ..., so that what drifts on a machine drifts for all."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Protocol

import numpy as np
import numpy.typing as npt

from slicepilot.agents.base import Agent
from slicepilot.env.arrays import FloatArray
from slicepilot.env.backend import Backend
from slicepilot.env.reward import RewardWeights
from slicepilot.env.simulator.scenario import Scenario

from .rollouts import Rollout, record

OnRun = Callable[[int, str], None]
"""Called with repetition and agent name before every run."""


class TurnsBackend(Backend, Protocol):
    """A backend of one lane on which scenarios and pods can be changed between runs."""

    def play(self, scenario: Scenario) -> None: ...

    def deploy(self, request_mcpu: FloatArray | None) -> None: ...

    def real_time(self) -> AbstractContextManager[object]: ...

    @property
    def work_done(self) -> int | None: ...

    def delay_counts(self) -> npt.NDArray[np.uint32]: ...

    def delay_p99_us(self, since: npt.NDArray[np.uint32]) -> npt.NDArray[np.float64]: ...


def play_in_turns(
    plays: Sequence[tuple[Agent, Scenario]],
    backend: TurnsBackend,
    repetitions: int,
    seed: int,
    weights: RewardWeights,
    on_run: OnRun | None = None,
) -> list[Rollout]:
    """Every agent in its scenario, ``repetitions`` times; one recording per play, one lane per repetition.

    Repetition r offers every agent the same traffic, that of seed + r.
    """
    runs: list[list[Rollout]] = [[] for _ in plays]
    for repetition in range(repetitions):
        for (agent, scenario), mine in zip(plays, runs, strict=True):
            if on_run is not None:
                on_run(repetition, agent.name)
            backend.play(scenario)
            backend.deploy(agent.request_mcpu)
            before, counts = backend.work_done, backend.delay_counts()
            with backend.real_time():
                recording = record(agent, backend, seed + repetition, weights)
            after, p99_us = backend.work_done, backend.delay_p99_us(counts)
            if before is not None and after is not None:
                done = np.asarray([after - before], np.float64)
                recording = replace(recording, work_done=done)
            mine.append(replace(recording, packets_p99_us=p99_us[:, None]))
    return [side_by_side(own) for own in runs]


def side_by_side(runs: Sequence[Rollout]) -> Rollout:
    """Recordings of one lane each as one recording of several lanes."""
    first = runs[0]
    done = [run.work_done for run in runs if run.work_done is not None]
    p99_us = [run.packets_p99_us for run in runs if run.packets_p99_us is not None]
    return replace(
        first,
        series=np.concatenate([run.series for run in runs], axis=-1),
        valid=np.concatenate([run.valid for run in runs], axis=-1),
        violated=np.concatenate([run.violated for run in runs], axis=-1),
        reward=np.concatenate([run.reward for run in runs], axis=-1),
        cpu_held=np.concatenate([run.cpu_held for run in runs], axis=-1),
        churn=np.concatenate([run.churn for run in runs], axis=-1),
        packets_p99_us=np.concatenate(p99_us, axis=-1) if len(p99_us) == len(runs) else None,
        work_done=np.concatenate(done) if len(done) == len(runs) else None,
        wall_s=sum(run.wall_s for run in runs),
    )
