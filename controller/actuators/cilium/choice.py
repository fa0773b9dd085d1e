"""Whether Cilium's bandwidth manager paces what leaves by a slice's device; looked at whenever a slice is opened."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from pathlib import Path

from slicepilot.controller.system.kernel_file import ActuatorError
from slicepilot.controller.system.net.links import other_end

from .endpoints import STATE, endpoint_of
from .layout import DEFAULT_HORIZON_NS
from .rate import OriginalThrottle, words
from .throttle import PIN, ThrottleMap

ANNOTATION = "kubernetes.io/egress-bandwidth"


@dataclass(frozen=True)
class CiliumPaths:
    """Where Cilium keeps what is needed here.

    Attributes:
        pin: of its map of rates; state: of its agent's endpoints.
    """

    pin: Path = PIN
    state: Path = STATE


@dataclass(frozen=True)
class Choice:
    """How a slice is paced.

    Attributes:
        throttle: the entry of the slice's pod; None where Cilium does not pace it.
        why: in words; empty where this node has no such map, and there is nothing to say.
    """

    throttle: OriginalThrottle | None = None
    why: str = ""


def choose(device: str, netns: Path | None, paths: CiliumPaths) -> Choice:
    """Choose between Cilium's entry and a shaper, by pinned maps, links and the agent's state; writes nothing.

    What cannot be looked at is not chosen, and `Choice.why` says so.
    """
    try:
        throttle = ThrottleMap(paths.pin)
    except ActuatorError as error:
        return Choice(why="" if error.vanished else str(error))
    with contextlib.closing(throttle):
        try:
            return _choose(throttle, device, netns, paths)
        except (ActuatorError, OSError) as error:
            return Choice(why=f"Cilium's map is not used: {error}")


def _choose(throttle: ThrottleMap, device: str, netns: Path | None, paths: CiliumPaths) -> Choice:
    pair = None if netns is None else other_end(netns, device)
    if pair is None:
        return Choice(why=f"{device} is not there, or no pod's end of a pair, so Cilium does not pace it")
    endpoint = endpoint_of(pair, paths.state)
    if endpoint is None:
        return Choice(why=f"{device} ends at {pair.name}, which is no endpoint's of Cilium: it does not pace it")
    entry = throttle.entry(endpoint.id)
    if entry is None:
        why = f"Cilium's {endpoint} has no rate: the pod has to have the annotation {ANNOTATION} first"
        return Choice(why=why)
    result = OriginalThrottle(
        str(paths.pin), throttle.info.id, endpoint.id, entry.bytes_per_s, entry.horizon_ns, pair.name, pair.index
    )
    horizon = "" if entry.horizon_ns == DEFAULT_HORIZON_NS else f", drop horizon {entry.horizon_ns / 1e6:g} ms"
    return Choice(result, f"Cilium paces its {endpoint} with {words(entry.bytes_per_s)}{horizon}")
