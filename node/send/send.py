"""Packets through every slice of a node: which need to be sent, through which session, and what became of them."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Literal

from slicepilot.configs.errors import FailureError
from slicepilot.node.live.backend import NodeBackend

from .deliver import Outcome, deliver
from .ends import Ends, ends_of
from .packets import Address
from .sessions import Onlooker, Session
from .ways import NothingToSendError, Way, downlink, uplink

Direction = Literal["uplink", "downlink"]
UNKNOWN = (
    "no traffic has told a session of the slice; test_session: {{ue: ADDRESS, teid: NUMBER}} in slices.{name} says one"
)
ALREADY = Outcome("arrives already", 0, 0, "packets of the slice that somebody else has sent")


class Sending:
    """Looks on as the node's traffic passes, and then sends what that does not show to arrive.

    Args:
        backend: of the node.

    Raises:
        ConfigError: it is not known by which interface a slice sends towards N6.
        FailureError: an interface cannot be looked at.
    """

    def __init__(self, backend: NodeBackend) -> None:
        self._backend = backend
        upfs = [index for index, one in enumerate(backend.spec.slices) if one.upf is not None]
        names = backend.slices.names
        try:
            self._ends = {names[index]: ends_of(backend, index) for index in upfs}
            points = [backend.source.packets.points[index] for index in upfs]
            self._specs = {one.name: one.test_session for one in backend.spec.slices}
            self._onlooker = Onlooker([self._ends[one.name].look(one) for one in points])
        except OSError as error:
            raise FailureError(f"{backend.spec.name}: its interfaces cannot be looked at: {error}") from error

    def send(self, carried: Collection[str]) -> dict[str, dict[Direction, Outcome]]:
        """By slice and direction, what arrives; nothing of services, which have no tunnel.

        Args:
            carried: slices whose uplink was seen to arrive.

        Raises:
            FailureError: a UPF's namespace, or an interface, has gone.
        """
        self._onlooker.close()
        return {name: self._through(name, name in carried) for name in self._ends}

    def close(self) -> None:
        """Look no more; more than once does nothing."""
        self._onlooker.close()

    def _through(self, name: str, carried: bool) -> dict[Direction, Outcome]:
        ends, spec = self._ends[name], self._specs[name]
        up, down = self._onlooker.uplink(name), self._onlooker.downlink(name)
        session = up or down if spec is None else Session.given(spec)
        try:
            host = None if session is None else (spec and spec.far_host) or ends.host(session.ue.version)
            return {
                "uplink": ALREADY if carried else _sent(uplink, name, ends, session, host),
                "downlink": ALREADY if down is not None else _sent(downlink, name, ends, session, host),
            }
        except OSError as error:
            raise FailureError(f"slices.{name}: packets cannot be sent: {error}") from error


def _sent(
    way: Callable[[Ends, Session, Address | None], Way],
    name: str,
    ends: Ends,
    session: Session | None,
    host: Address | None,
) -> Outcome:
    if session is None:
        return Outcome("nothing to send", 0, 0, UNKNOWN.format(name=name))
    try:
        return deliver(way(ends, session, host))
    except NothingToSendError as error:
        return Outcome("nothing to send", 0, 0, str(error))
