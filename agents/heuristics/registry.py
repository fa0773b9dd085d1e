"""Agents by name: what the command line and the evaluation files accept."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, partial
from typing import TYPE_CHECKING

from slicepilot.agents.base import Agent
from slicepilot.agents.heuristics.planners.clairvoyant import Clairvoyant
from slicepilot.agents.heuristics.planners.mpc import Mpc
from slicepilot.configs import ConfigError, did_you_mean
from slicepilot.data.reference import published_settings
from slicepilot.env.slices import SliceSet

from .as_found import AsFound
from .captain import Captain
from .entry_points import installed, load_installed
from .exploring import ExploringAgent
from .fixed import no_control, published, scaled, static_weights, static_weights_by_promise
from .pi import Pi
from .proportional import ProportionalShare
from .random import RandomAgent
from .reactive import ReactiveSla
from .static_order import StaticOrder
from .tower import CaptainTower
from .vpa import Vpa

if TYPE_CHECKING:
    from slicepilot.env.reward import RewardWeights
    from slicepilot.env.simulator.hardware import Hardware

EXPLORING = "exploring-"
"""Prefix of an agent's name that adds noise to its decisions (`slicepilot.agents.heuristics.exploring`)."""
REQUEST_RATIOS = (3, 9, 64, 512)
NICE_RATIOS = (3, 9, 64)


@dataclass(frozen=True)
class Setting:
    """Arguments of agents: the slices, the node, and the reward that planners maximise (None: the default)."""

    slices: SliceSet
    hardware: Hardware
    weights: RewardWeights | None = None


Factory = Callable[[Setting], Agent]


def _published(experiment: int, setting: Setting) -> Agent:
    return published(experiment, setting.slices)


def _scaled(experiment: int, setting: Setting) -> Agent:
    node = setting.hardware
    return scaled(experiment, setting.slices, node.logical_cpus, node.uplink_mbps)


def _requests(ratio: float, setting: Setting) -> Agent:
    return static_weights(ratio, setting.slices, setting.hardware.logical_cpus)


def _nice(ratio: float, setting: Setting) -> Agent:
    return static_weights(ratio, setting.slices, setting.hardware.logical_cpus, via="nice")


def _clairvoyant(setting: Setting, name: str = "clairvoyant") -> Agent:
    return Clairvoyant(setting.weights, proposals=_proposals(), name=name)


def _mpc(setting: Setting) -> Agent:
    return Mpc(setting.hardware, setting.weights, proposals=_proposals())


def _greedy(egress: bool) -> Agent:
    from .greedy import Greedy  # numba, which those do without who only list names

    return Greedy(egress)


def _queue_greedy(egress: bool) -> Agent:
    from .queue_greedy import QueueGreedy

    return QueueGreedy(egress)


def _beside_edge() -> Agent:
    from .queue_greedy import EDGE, QueueGreedy

    return QueueGreedy(config=EDGE, name="queue-greedy-edge")


def _proposals() -> tuple[Agent, ...]:
    return ReactiveSla(), ProportionalShare(), Captain(), _greedy(False), _greedy(True), _queue_greedy(True)


UNLISTED: dict[str, Factory] = {
    "oracle": partial(_clairvoyant, name="oracle"),
    "as-found": lambda _: AsFound(),
}
"""Agents that are not listed: a former name, and an agent that only makes sense on nodes with knobs already set."""


@cache
def _factories() -> dict[str, Factory]:
    """All names in the order in which tables show them."""
    experiments = [setting.experiment for setting in published_settings()]
    factories: dict[str, Factory] = {"no-control": lambda _: no_control()}
    factories |= {f"experiment-{n}": partial(_published, n) for n in experiments}
    factories |= {f"experiment-{n}-scaled": partial(_scaled, n) for n in experiments}
    factories |= {f"static-weights-{ratio}": partial(_requests, ratio) for ratio in REQUEST_RATIOS}
    factories |= {f"static-weights-{ratio}-nice": partial(_nice, ratio) for ratio in NICE_RATIOS}
    factories |= {
        "static-order": lambda _: StaticOrder(),
        "static-weights-promise": lambda s: static_weights_by_promise(s.slices, s.hardware),
        "greedy": lambda _: _greedy(False),
        "greedy-egress": lambda _: _greedy(True),
        "queue-greedy": lambda _: _queue_greedy(True),
        "queue-greedy-cpu": lambda _: _queue_greedy(False),
        "queue-greedy-edge": lambda _: _beside_edge(),
        "proportional-share": lambda _: ProportionalShare(),
        "reactive-sla": lambda _: ReactiveSla(),
        "pi": lambda _: Pi(),
        "vpa": lambda _: Vpa(),
        "captain": lambda _: Captain(),
        "captain-tower": lambda _: CaptainTower(),
        "random": lambda _: RandomAgent(),
        "mpc": _mpc,
        "clairvoyant": _clairvoyant,
    }
    return factories


def available(scaled: bool = False) -> list[str]:
    """Names that `make` accepts, in table order, those of other packages (`entry_points`) last.

    The published settings are listed with their published values, or with ``scaled`` in shares of the node; `make`
    takes both. On the study's own node the two are the same.
    """
    own = [name for name in _factories() if not name.startswith("experiment-") or name.endswith("-scaled") == scaled]
    return [*own, *(name for name in installed() if name not in _factories())]


def make(name: str, slices: SliceSet, hardware: Hardware | None = None, weights: RewardWeights | None = None) -> Agent:
    """An agent for a slice set on a node.

    Args:
        name: one of `available`, also with the prefix `EXPLORING`.
        slices: what it will control; fixes for which pods it has requests.
        hardware: the node, for settings that depend on its size; None for the default hardware.
        weights: of the reward, for planners; None for the default weights.

    Raises:
        ConfigError: unknown name; says which are accepted and which are nearest.
    """
    if name.startswith(EXPLORING):
        other = make(name.removeprefix(EXPLORING), slices, hardware, weights)
        if isinstance(other, Clairvoyant):
            raise ConfigError(f"agent = {name!r}; expected {EXPLORING} before an agent that does not look ahead")
        return ExploringAgent(other)
    factories = _factories() | UNLISTED
    if name not in factories:
        if name in installed():
            return load_installed(name)
        listed = [n for n in factories if not n.startswith("experiment-")]
        last = len(published_settings())
        listed[1:1] = [f"experiment-1 to experiment-{last} (or with -scaled)"]
        others = [other for other in installed() if other not in factories]
        listed += [*others, f"any of them after {EXPLORING}"]
        expected = did_you_mean(name, [*factories, *others], ", ".join(listed), 3)
        raise ConfigError(f"agent: unknown name {name!r}; {expected}")
    if hardware is None:
        # Only here: the module's neighbours compile the simulator, which a live controller does not import.
        from slicepilot.env.simulator.hardware import Hardware

        hardware = Hardware()
    return factories[name](Setting(slices, hardware, weights))
