"""One node that can be controlled: its backend, opened without write access, and where its knobs are."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from slicepilot.configs import ConfigError
from slicepilot.controller.actuators.node import SliceTargets
from slicepilot.controller.system.own_groups import MovedThread, OwnGroup
from slicepilot.env.knobs import KnobName

from .live_backend import LiveBackend


@dataclass(frozen=True)
class MovedOut:
    """Another program has moved a slice's UPF, or a thread that works for it, out of the group made for it.

    Attributes:
        slice: its name, or the first name where slices share the UPF.
        text: what, and where it is now.
        refusal: why it was left there; None where it was put back.
    """

    slice: str
    text: str
    refusal: str | None


class Housing(Protocol):
    """Gives UPFs without a CPU group of their own such a group for as long as knobs are leased."""

    def find_again(self) -> None:
        """Look where the UPFs are now; raises ConfigError."""

    def begin(
        self,
        names: Collection[str],
        record: Callable[[Sequence[OwnGroup], Sequence[MovedThread]], object],
        refusal: Callable[[str], str | None],
    ) -> None:
        """Make groups for slices, those of ``names`` that are to have a group, and move their UPFs there.

        Args:
            names: slices.
            record: called with everything that has to be put back, before that is made or moved.
            refusal: says whether a UPF that somebody else has moved is to stay there and why; None: it is not.

        Raises:
            ConfigError, ActuatorError: it cannot be done; call `end`.
        """

    def look(self) -> list[MovedOut]:
        """Moves by other programs since the last call; returns at once."""
        ...

    def resume(self) -> None:
        """Move again what was left to others."""

    def end(self) -> None:
        """Everything where it was, groups removed; more than once does nothing. Raises ActuatorError."""


@dataclass(frozen=True)
class Node:
    """A node for `slicepilot.controller.service.controller`.

    Attributes:
        name: of the node; folders and sockets of its controller are named after it.
        kind: of backend, ``testbed``.
        backend: with a `ShadowActuator`, which is replaced where knobs may be written.
        targets: where each slice's knobs are, in the backend's order.
        quota_period_us, drop_horizon_ms: see `slicepilot.controller.actuators.node.NodeActuator`.
        hardware: configuration of the identified hardware that a simulator of this node uses.
        housing: for UPFs that are to have a group of their own while they are controlled; None where none is.
        fixed: why knobs, by slice and name, are never moved, where that was looked into.
        own_groups: slices whose CPU time is measured only while ``housing`` has given their UPF a group.
        unfinished: what keeps anything from acting here unless it is forced, as promises that nobody has filled in;
            empty for a node that is ready.
    """

    name: str
    kind: str
    backend: LiveBackend
    targets: Sequence[SliceTargets]
    quota_period_us: int | None = None
    drop_horizon_ms: float | None = None
    hardware: str = "testbed"
    housing: Housing | None = None
    fixed: Mapping[tuple[str, KnobName], str] = field(default_factory=dict)
    own_groups: tuple[str, ...] = ()
    unfinished: str = ""

    def require_finished(self, force: bool) -> None:
        """Raise ConfigError for a node on which nothing may act yet, unless it is forced."""
        if self.unfinished and not force:
            raise ConfigError(f"{self.unfinished}; or --force")
