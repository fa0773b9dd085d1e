from dataclasses import replace
from typing import Any

import numpy as np

from slicepilot.agents.base import Agent
from slicepilot.agents.heuristics.captain import Captain
from slicepilot.agents.heuristics.fixed import FixedAgent, published, static_weights
from slicepilot.agents.heuristics.planners.clairvoyant import Clairvoyant
from slicepilot.agents.heuristics.planners.planning import PlanningConfig
from slicepilot.agents.heuristics.proportional import ProportionalShare
from slicepilot.agents.heuristics.reactive import ReactiveSla
from slicepilot.env.knobs import Knobs
from slicepilot.env.simulator.backend import ScenarioRuns, SimulatorBackend
from slicepilot.env.simulator.lookahead import Future, Lookahead
from slicepilot.env.simulator.scenario import Ramp, Scenario
from tests.agents.played import play

QUICK = PlanningConfig(candidates=32)


def short_ramp() -> ScenarioRuns:
    """The published ramp, ten times as fast."""
    scenario = Scenario.from_yaml("andrade-ramp")
    loads = {
        name: tuple(
            replace(load, ramp=Ramp(load.ramp.every_s / 10, load.ramp.max_flows) if load.ramp else None)
            for load in sources
        )
        for name, sources in scenario.loads.items()
    }
    return ScenarioRuns(replace(scenario, loads=loads, duration_s=120.0))


def test_lookahead_plays_what_will_happen() -> None:
    rng = np.random.default_rng(0)
    backend = SimulatorBackend(short_ramp(), 3)
    backend.reset(5)
    look = Lookahead(backend, 2)
    for _ in range(12):
        limit, egress = rng.uniform((100, 50), (1000, 400), (5, 3, 2)).astype(np.float32).transpose(2, 0, 1).copy()
        knobs = Knobs.of(limit, np.zeros_like(limit), egress)
        look.start(9)
        # Another future first, to see that rewinding leaves nothing behind.
        look.engine.apply(Knobs.none(5, 6))
        for _ in range(4):
            look.engine.advance()
        look.rewind()
        look.engine.apply(Knobs.of(np.tile(limit, 2), np.zeros((5, 6), np.float32), np.tile(egress, 2)))
        backend.apply(knobs)
        for _ in range(9):
            foreseen, seen = look.engine.advance(), backend.observe()
            assert (foreseen.slices.reshape(-1, 5, 2, 3) == seen.slices[:, :, None]).all()
            assert (foreseen.node.reshape(2, 2, 3) == seen.node[:, None]).all()


def test_looking_ahead_changes_nothing() -> None:
    def run(look_ahead: bool) -> np.ndarray:
        backend = SimulatorBackend(short_ramp(), 2)
        backend.reset(7)
        future = Future(backend.engine)
        if look_ahead:
            future.window(1, 100)
        return np.stack([backend.observe().slices.copy() for _ in range(100)])

    assert (run(True) == run(False)).all()


def test_it_is_at_least_as_good_as_every_published_setting() -> None:
    episodes = short_ramp()
    slices = episodes.slices
    rivals: list[Agent] = [published(n, slices) for n in range(5, 27)]
    rivals += [static_weights(ratio, slices, 4.0) for ratio in (3, 64, 512)]
    foreseen = play(Clairvoyant(config=QUICK), episodes, 4).returns
    for rival in rivals:
        assert (foreseen >= play(rival, episodes, 4).returns).all(), rival.name


def test_it_is_at_least_as_good_as_the_agents_it_asks(contended: Any) -> None:
    proposals = (ReactiveSla(), Captain(), ProportionalShare())
    alone = [play(agent, contended).returns for agent in proposals]
    advised = play(Clairvoyant(config=QUICK, proposals=proposals), contended).returns
    assert (advised >= np.max(alone, axis=0)).all()


def test_it_takes_up_a_proposal_that_it_would_not_find(contended: Any) -> None:
    # One round of four plans and no variation: it can do little more than choose.
    choosing = PlanningConfig(candidates=4, iterations=1, elites=2, segments=1, mutation=(0.0, 0.0, 0.0))
    good = play(Clairvoyant(config=QUICK), contended).knobs[-1]
    setting = FixedAgent("known before", good.cpu_limit_mcpu[:, 0], good.nice[:, 0], good.egress_mbps[:, 0])
    alone = play(Clairvoyant(config=choosing), contended).returns
    advised = play(Clairvoyant(config=choosing, proposals=(setting,)), contended).returns
    assert (advised > alone + 1).all()
    assert (advised >= play(setting, contended).returns - 1).all()
