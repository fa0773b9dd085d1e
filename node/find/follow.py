"""Follows UPFs that restart, move to another cgroup or come back: checks between ticks, searches in a thread."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Protocol

from slicepilot.configs import ConfigError
from slicepilot.controller.system import cgroup_paths
from slicepilot.controller.system.background import BackgroundCaller
from slicepilot.controller.system.net import namespaces
from slicepilot.controller.system.processes import start_ticks
from slicepilot.node.config.selectors import UpfSelector

from .links import UpfLinks
from .locate import Finder, Located
from .processes import snapshot

REST_S = 0.01


class Settler(Protocol):
    """Gives UPFs a group where they have none of their own (`slicepilot.node.live.own_groups.OwnGroups`)."""

    def unsettled(self, name: str, located: Located) -> bool:
        """Whether `settle` has something to do for a UPF that has not moved; returns at once."""
        ...

    def settle(self, name: str, located: Located) -> Located:
        """Give the UPF its group; returns where it is then. Raises ActuatorError."""
        ...

    def absent(self, name: str) -> None:
        """A slice's UPF is not there any more."""
        ...

    def group_of(self, name: str, located: Located) -> Path | None:
        """Where the link to a slice's group should lead."""
        ...


class Follower:
    """Keeps links to UPFs up to date.

    `look` takes some 50 us a slice while all is well. While a UPF is missing, each call starts a search in a thread
    beside the loop's, which takes some milliseconds of CPU time.

    Args:
        selectors: by slice.
        located: where the UPFs are now.
        links: to keep up to date.
        settler: called with each UPF that has moved.
    """

    def __init__(
        self,
        selectors: Mapping[str, UpfSelector],
        located: Mapping[str, Located],
        links: UpfLinks,
        settler: Settler,
    ) -> None:
        self._selectors, self._located, self._links, self._settler = selectors, dict(located), links, settler
        self._lost: dict[str, str] = {}
        self._background = BackgroundCaller("finder", wait_s=0.0)
        self._lock = threading.Lock()
        self._taking = threading.Lock()  # may be held for milliseconds: never waited for in the loop
        self._moving: frozenset[str] = frozenset()
        self._moves = 0

    @property
    def located(self) -> dict[str, Located]:
        """Last known location of each UPF, by slice."""
        with self._lock:
            return dict(self._located)

    def look(self) -> list[str]:
        """Report, with the reason, UPFs that are missing; starts a search for them."""
        with self._lock:
            located = {name: item for name, item in self._located.items() if name not in self._moving}
            away = [name for name, item in located.items() if _what_has_gone(item)]
            text = [self._lost.get(name) or f"{name}: {_what_has_gone(self._located[name])}" for name in away]
            for name in away:
                self._stay(name, away)
            unsettled = [name for name, item in located.items() if self._settler.unsettled(name, item)]
        text += [self._lost[name] for name in unsettled if name in self._lost and name not in away]
        away += [name for name in unsettled if name not in away]
        if away and not self._background.busy:
            self._background.call(partial(self._find, away))
        return text

    def close(self) -> None:
        """Wait for a search that is under way."""
        self._background.close()

    @contextlib.contextmanager
    def moving(self, names: Iterable[str]) -> Iterator[None]:
        """Inside, the caller moves these UPFs to other groups and back, and calls `find_now`: `look` reports none of
        them. What a search has read before the end is discarded, since it would take our move for somebody else's."""
        self._note_move(frozenset(names))
        try:
            yield
        finally:
            self._note_move(frozenset())

    def _note_move(self, moving: frozenset[str]) -> None:
        with self._taking, self._lock:
            self._moves, self._moving = self._moves + 1, moving

    def find_now(self, names: Iterable[str], missing_ok: bool = False) -> None:
        """Search for UPFs in the calling thread.

        Raises:
            ConfigError: a UPF is missing, unless ``missing_ok``.
            ActuatorError: a UPF cannot be settled.
        """
        moves, finder = self._moves, Finder()
        for name in names:
            try:
                self._take(name, finder, moves)
            except ConfigError:
                if not missing_ok:
                    raise

    def _stay(self, name: str, away: list[str]) -> None:
        """Keep the link of a missing UPF on its namespace while other UPFs are in there: all slices of a namespace are
        measured by the link of the first."""
        netns = self._located[name].process.netns
        others = (item for other, item in self._located.items() if other not in away and item.process.netns == netns)
        other = next(others, None)
        if other is not None and not _leads_to(self._links.netns(name), netns):
            self._links.lead_into(name, other.netns)

    def _find(self, names: list[str]) -> None:
        # With thousands of processes a search without pauses would occupy a CPU for tenths of a second.
        moves, finder = self._moves, None
        for name in names:
            try:
                finder = finder or Finder(snapshot(REST_S))
                self._take(name, finder, moves)
            except Exception as error:  # noqa: BLE001 - reported with the next look
                with self._lock:
                    self._lost[name] = str(error)

    def _take(self, name: str, finder: Finder, moves: int) -> None:
        """Take up where a UPF is now, unless UPFs were moved since the search began (`moving`)."""
        with self._taking:
            if moves != self._moves:
                return
            try:
                located = finder.find(name, self._selectors[name])
            except ConfigError:
                self._settler.absent(name)
                raise
            located = self._settler.settle(name, located)
            with self._lock:
                self._links.lead_to(name, located.netns, self._settler.group_of(name, located))
                self._located[name] = located
                self._lost.pop(name, None)


def _what_has_gone(item: Located) -> str:
    """How a UPF has moved or ended, as a text; empty if nothing has changed."""
    process = item.process
    if start_ticks(process.pid) != process.start_ticks:
        return f"its UPF has ended: process {process}"
    try:
        group = cgroup_paths.of_process(process.pid)
    except FileNotFoundError:
        return f"its UPF has ended: process {process}"
    if group != item.cgroup:
        removed = item.cgroup is not None and not item.cgroup.exists()
        before = "the root group" if item.cgroup is None else f"{item.cgroup}{', which was removed' if removed else ''}"
        return f"its UPF, {process}, lives in another cgroup: {group or 'the root group'}, before in {before}"
    if not _leads_to(item.netns, process.netns):
        return f"its network namespace was replaced; its UPF, {process}, lives"
    return ""


def _leads_to(path: Path, netns: tuple[int, int] | None) -> bool:
    try:
        return namespaces.identity(path) == netns
    except OSError:
        return False
