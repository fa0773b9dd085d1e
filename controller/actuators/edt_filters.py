"""Our program on a device's egress hook, found by its name: also by a process that has not put it there."""

from __future__ import annotations

from ..system.net.rtnetlink import RouteSocket
from ..system.net.tc import Filter, filters, remove_clsact, remove_filter

FILTER_NAME = "slicepilot-edt"


def edt_filters(route: RouteSocket, index: int) -> list[Filter]:
    """Ours on the egress hook of a device; raises ActuatorError."""
    return [found for found in filters(route, index, "egress") if found.name.startswith(FILTER_NAME)]


def remove_edt_filters(route: RouteSocket, index: int, own_hook: bool) -> bool:
    """Take ours off, and the hook if it is ours and nobody else uses it.

    Returns:
        Whether the hook was removed.

    Raises:
        ActuatorError: the kernel refused it.
    """
    for ours in edt_filters(route, index):
        remove_filter(route, index, "egress", ours)
    if not own_hook or any(filters(route, index, hook) for hook in ("ingress", "egress")):
        return False
    remove_clsact(route, index)
    return True
