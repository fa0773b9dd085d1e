"""``slicepilot dataset record`` on real UPFs: those of the testbed, or those of a node that others operate."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from slicepilot.cli.shared.output import progress_bar
from slicepilot.configs import ConfigError
from slicepilot.configs.backends import plugin

if TYPE_CHECKING:
    from slicepilot.agents.base import Agent
    from slicepilot.data.episodes.episodes import EpisodeSet
    from slicepilot.env.reward import RewardWeights
    from slicepilot.env.simulator.hardware import Hardware
    from slicepilot.env.simulator.scenario import Scenario
    from slicepilot.env.slices import SliceSet
    from slicepilot.training.evaluation.rollouts import LiveRunBackend

AS_FOUND = "as-found"
SECONDS = 60.0

MakeAgents = Callable[["SliceSet", "Hardware"], Sequence["Agent"]]


def play_scenario(
    backend_name: str,
    played: Scenario,
    made: Sequence[Agent],
    episodes: int,
    seed: int,
    weights: RewardWeights,
    name: str | None,
) -> EpisodeSet:
    """A scenario on a backend that brings its loads; raises ConfigError."""
    from slicepilot.training.recording.recording import record_live

    _check_sight(made)
    backend: LiveRunBackend = plugin(backend_name).call("open_backend", played, name=name)
    with closing(backend), _shown(episodes * len(made)) as show:

        def on_run(turn: int, who: str) -> None:
            backend.play(played)
            show(turn, who)

        info = {"scenario": played.name, "backend": backend_name}
        return record_live(made, backend, episodes, seed, weights, info, on_run)


def watch_node(
    node: str,
    mode: str,
    run: str,
    names: Sequence[str],
    make: MakeAgents,
    episodes: int,
    seconds: float | None,
    period_s: float | None,
    seed: int,
    weights: RewardWeights,
) -> EpisodeSet:
    """A node under the traffic that there is: its knobs as they are, or moved by agents, with guard and supervisor.

    Raises:
        ConfigError: agents that could not act, or none that would; and as the backend does.
    """
    from slicepilot.env.simulator.hardware import Hardware
    from slicepilot.training.recording.recording import record_live

    if mode == "shadow" and set(names) - {AS_FOUND}:
        raise ConfigError(
            f"agents = {','.join(names)}: need --mode live, because in shadow no agent moves a knob; slicepilot run "
            "--record records what an agent would have done"
        )
    backend = plugin("node").call("open_live", node, period_s, mode=mode, seconds=seconds or SECONDS, run=run)
    with closing(backend):
        context = backend.context
        hardware = replace(
            Hardware.from_yaml(backend.hardware),
            logical_cpus=float(context.logical_cpus[0]),
            uplink_mbps=float(context.uplink_mbps[0]),
        )
        made = make(backend.slices, hardware)
        _check_sight(made)
        with _shown(episodes * len(made)) as show:
            info: dict[str, Any] = {"scenario": None, "backend": "node", "node": node, "mode": mode}
            return record_live(made, backend, episodes, seed, weights, info, show)


def _check_sight(made: Sequence[Agent]) -> None:
    from slicepilot.agents.heuristics.planners.clairvoyant import Clairvoyant

    if seers := [agent.name for agent in made if isinstance(agent, Clairvoyant)]:
        raise ConfigError(f"agents: {seers[0]}: sees the future, and so needs --backend simulator")


@contextmanager
def _shown(runs: int) -> Iterator[Callable[[int, str], None]]:
    with progress_bar() as progress:
        task = progress.add_task("recording", total=runs)
        begun = itertools.count()

        def show(turn: int, who: str) -> None:
            progress.update(task, completed=next(begun), description=f"turn {turn + 1}: {who}")

        yield show
