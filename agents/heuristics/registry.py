"""Agents by name: what the command line and the evaluation files accept.

Other packages declare agents by name as entry points of the group ``slicepilot.agents``::

    [project.entry-points."slicepilot.agents"]
    my-agent = "my_package.agents:MyAgent"

What an entry point names is as for `slicepilot.agents.code.load_agent`. The project's own names go first.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, partial
from importlib.metadata import entry_points
from typing import TYPE_CHECKING

from slicepilot.agents.base import Agent
from slicepilot.agents.code import load_agent
from slicepilot.agents.heuristics.planners.clairvoyant import Clairvoyant
from slicepilot.agents.heuristics.planners.mpc import Mpc
from slicepilot.configs import ConfigError, did_you_mean
from slicepilot.data.reference import published_settings
from slicepilot.env.slices import SliceSet

from .as_found import AsFound
from .captain import Captain
from .exploring import ExploringAgent, RandomAgent
from .fixed import StaticOrder, no_control, published, scaled, static_weights, static_weights_by_promise
from .pi import Pi
from .proportional import ProportionalShare
from .reactive import ReactiveSla
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


def _greedy(egress: bool) -> Agent:
    from .greedy import Greedy  # numba, which those do without who only list names

    return Greedy(egress)


def _queue_greedy(egress: bool = True, edge: bool = False) -> Agent:
    from .queue_greedy import EDGE, QueueGreedy

    return QueueGreedy(config=EDGE, name="queue-greedy-edge") if edge else QueueGreedy(egress)


def _proposals() -> tuple[Agent, ...]:
    return ReactiveSla(), ProportionalShare(), Captain(), _greedy(False), _greedy(True), _queue_greedy()


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
        "queue-greedy": lambda _: _queue_greedy(),
        "queue-greedy-cpu": lambda _: _queue_greedy(False),
        "queue-greedy-edge": lambda _: _queue_greedy(edge=True),
        "proportional-share": lambda _: ProportionalShare(),
        "reactive-sla": lambda _: ReactiveSla(),
        "pi": lambda _: Pi(),
        "vpa": lambda _: Vpa(),
        "captain": lambda _: Captain(),
        "captain-tower": lambda _: CaptainTower(),
        "random": lambda _: RandomAgent(),
        "mpc": lambda s: Mpc(s.hardware, s.weights, proposals=_proposals()),
        "clairvoyant": _clairvoyant,
    }
    return factories


@cache
def installed() -> dict[str, str]:
    """Agents of other packages: the target of each name, ``module:Class``; nothing is imported."""
    return {point.name: point.value for point in entry_points(group="slicepilot.agents")}


def available(scaled: bool = False) -> list[str]:
    """Names that `make` accepts, in table order, those of other packages (`installed`) last.

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
            return load_agent(installed()[name], f"agent {name!r} ({installed()[name]})", name)
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
