"""Groups of their own for UPFs that have none, for as long as their knobs are leased.

A group is made when control begins, or when such a UPF comes back, and is there as long as the UPF. All processes of a
UPF go into it, and with them the threads of NAPI that take its packets. Somebody else may move them out again, which is
theirs to decide by the same rule as a knob is.
"""

from __future__ import annotations

import dataclasses
import threading
from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from pathlib import Path

from slicepilot.controller.loop.node import MovedOut
from slicepilot.controller.system.cgroup_paths import NOT_YET
from slicepilot.controller.system.kernel_file import ActuatorError
from slicepilot.controller.system.own_groups import (
    MovedThread,
    OwnGroup,
    group_back,
    group_of,
    make,
    move,
    remove_if_empty,
    thread_back,
)
from slicepilot.controller.system.processes import start_ticks
from slicepilot.node.authority.cpu_group import group_path, needs_own_group
from slicepilot.node.authority.softirqs import threads_of
from slicepilot.node.find.follow import Follower
from slicepilot.node.find.locate import Located
from slicepilot.node.find.processes import descendants, snapshot

Record = Callable[[Sequence[OwnGroup], Sequence[MovedThread]], object]
Identity = tuple[int, int]
"""Number and start time of a process or thread."""


class OwnGroups:
    """Makes them and fills them; `settle` may be called from any thread.

    Args:
        node: name of the node, which is part of the groups' names.
        firsts: slices whose UPF may be moved, with the first of the slices that have the same UPF.
        polled: those of them whose packets NAPI's threads may take, with the interface that these take them from.
    """

    def __init__(self, node: str, firsts: Mapping[str, str], polled: Mapping[str, str]) -> None:
        self._node, self._firsts, self._polled = node, dict(firsts), dict(polled)
        self._lock = threading.Lock()
        self._record: Record | None = None
        self._refusal: Callable[[str], str | None] = lambda _: None
        self._leased: frozenset[str] = frozenset()
        self._groups: tuple[OwnGroup, ...] = ()
        self._threads: tuple[MovedThread, ...] = ()
        self._inside: dict[str, Identity] = {}
        self._seen: dict[str, tuple[Identity, ...]] = {}
        self._left: set[str | Identity] = set()
        self._resuming = False
        self._moved_out: deque[MovedOut] = deque()

    def __bool__(self) -> bool:
        """Whether any UPF may be moved at all."""
        return bool(self._firsts)

    def names(self) -> list[str]:
        """Slices whose UPF may be moved."""
        return list(self._firsts)

    def group_of(self, name: str, located: Located) -> Path | None:
        """The group that is a slice's to limit, as a link to it should lead: where there is none yet, to that."""
        first = self._firsts.get(name)
        if first is None or not needs_own_group(located) or self._is_own(first, located.cgroup):
            return located.cgroup
        left = [Path(item.path) for item in self._groups if item.slice == first] if first in self._left else []
        return left[0] if left else NOT_YET

    def unsettled(self, name: str, located: Located) -> bool:
        """Whether a slice has processes or threads to move; takes some 20 us and does not wait for locks."""
        if self._record is None or name not in self._leased:
            return False
        first, left = self._firsts[name], set() if self._resuming else self._left
        if first in left:
            return False
        if needs_own_group(located) and not self._is_own(first, located.cgroup):
            return True
        seen = self._seen.get(first, ())
        return first in self._polled and (
            not seen or any(item not in left and not _in_place(item, located.cgroup) for item in seen)
        )

    def settle(self, name: str, located: Located) -> Located:
        """Move what is to be moved; where the UPF is then.

        Raises:
            ActuatorError: it cannot be moved, or what is to be put back cannot be written down.
        """
        with self._lock:
            if self._record is None or name not in self._leased:
                return located
            self._take_up()
            first = self._firsts[name]
            if first not in self._left and needs_own_group(located) and not self._is_own(first, located.cgroup):
                located = self._move_upf(self._record, first, located)
            if first in self._polled and first not in self._left and located.cgroup is not None:
                self._move_threads(self._record, first, located)
            self._sweep(self._record)
            return located

    def absent(self, name: str) -> None:
        """Remove the group of a slice whose UPF has gone, so that the group above it can be removed."""
        with self._lock:
            if self._record is not None and name in self._leased:
                self._inside.pop(self._firsts[name], None)
                self._sweep(self._record)

    def begin(self, names: Collection[str], record: Record, refusal: Callable[[str], str | None]) -> None:
        """Let `settle` move processes of these slices from now on; see `slicepilot.controller.loop.node.Housing`."""
        with self._lock:
            self._leased = frozenset(names) & self._firsts.keys()
            self._record, self._refusal = record, refusal
            self._moved_out.clear()  # they concern the lease before

    def moved_out(self) -> list[MovedOut]:
        """Moves by other programs since the last call."""
        return [self._moved_out.popleft() for _ in range(len(self._moved_out))]

    def resume(self) -> None:
        """Move again, at the next look, processes and threads that were left to other programs; returns at once."""
        self._resuming = True

    def end(self) -> None:
        """Move everything back; raises ActuatorError, which names all that could not be moved back."""
        with self._lock:
            self._record = None
            failures = []
            actions: list[Callable[[], str]] = [partial(thread_back, item) for item in self._threads]
            actions += [partial(group_back, item) for item in self._groups]
            for action in actions:
                try:
                    action()
                except FileNotFoundError:  # somebody else has removed the group
                    continue
                except ActuatorError as error:
                    failures.append(str(error))
            if failures:
                raise ActuatorError("not put back: " + "; ".join(failures))
            self._groups, self._threads, self._left = (), (), set()
            self._inside, self._seen = {}, {}

    def _take_up(self) -> None:
        """Forget that others have moved anything, if an operator says so."""
        if self._resuming:
            self._inside = {first: item for first, item in self._inside.items() if first not in self._left}
            self._threads = tuple(item for item in self._threads if (item.thread, item.start_ticks) not in self._left)
            self._left, self._resuming = set(), False

    def _move_upf(self, record: Record, first: str, located: Located) -> Located:
        process = located.process
        identity = process.pid, process.start_ticks
        if self._inside.get(first) == identity:  # it was, and somebody else has moved it
            text = f"{process} is in {located.cgroup or 'the root group'}, moved out of the group that was made for it"
            if self._left_there(first, first, text):
                return located
        own = OwnGroup(first, str(group_path(self._label(first), located.cgroup)), str(_home(located)))
        path = Path(own.path)
        if own not in self._groups:
            if path.exists():
                raise ActuatorError(
                    f"{path}: exists and is not this controller's (`slicepilot restore` removes "
                    "what a controller that has died has left)"
                )
            record((*self._groups, own), self._threads)
            self._groups = (*self._groups, own)
        if not path.exists():
            make(path)
        move(*identity, path)
        self._inside[first] = identity
        _move_children(process.pid, Path(own.home), path)
        return dataclasses.replace(located, cgroup=path, others=())

    def _move_threads(self, record: Record, first: str, located: Located) -> None:
        """Threads of NAPI into the group that the UPF is in."""
        living = [item for item in self._threads if start_ticks(item.thread) == item.start_ticks]
        known = {(item.thread, item.start_ticks) for item in living}
        seen: list[Identity] = []
        for thread in threads_of(located, self._polled[first]):
            started, home = start_ticks(thread), group_of(thread)
            if started is None or home is None:
                continue
            seen.append(identity := (thread, started))
            if home == located.cgroup or identity in self._left:
                continue
            if identity in known:
                text = f"thread {thread} of NAPI is in {home}, moved out of the group that it was put into"
                if self._left_there(first, identity, text):
                    continue
                living = [item for item in living if item.thread != thread]
            living.append(MovedThread(first, thread, started, str(home), str(located.cgroup)))
        if tuple(living) != self._threads:
            record(self._groups, living)
            self._threads = tuple(living)
        for item in living:
            if item.slice == first and (item.thread, item.start_ticks) not in self._left:
                _move_if_there(item.thread, item.start_ticks, Path(item.group))
        self._seen[first] = tuple(seen)

    def _left_there(self, first: str, what: str | Identity, text: str) -> bool:
        """Report a move by another program; returns whether the object is left there."""
        refusal = self._refusal(first)
        self._moved_out.append(MovedOut(first, text, refusal))
        if refusal is not None:
            self._left.add(what)
        return refusal is not None

    def _sweep(self, record: Record) -> None:
        """Remove groups that have become empty."""
        used = {str(group_of(pid)) for pid, _ in self._inside.values()}
        kept = tuple(
            item for item in self._groups if item.path in used or item.slice in self._left or not remove_if_empty(item)
        )
        if kept != self._groups:
            record(kept, self._threads)
            self._groups = kept

    def _label(self, first: str) -> str:
        return f"{self._node}-{first}"

    def _is_own(self, first: str, group: Path | None) -> bool:
        return any(item.slice == first and Path(item.path) == group for item in self._groups)


def _in_place(thread: Identity, group: Path | None) -> bool:
    return start_ticks(thread[0]) == thread[1] and group_of(thread[0]) == group


def _home(located: Located) -> Path:
    group = located.cgroup or group_of(located.process.pid)
    if group is None:
        raise ActuatorError(f"{located.process}: has ended")
    return group


def _move_children(pid: int, home: Path, group: Path) -> None:
    """Move a process's children from its former group to its new group, in which later children start anyway."""
    seen: set[int] = set()
    while children := [item for item in descendants(pid, snapshot()) if item.pid not in seen]:
        for child in children:
            seen.add(child.pid)
            if group_of(child.pid) == home:
                _move_if_there(child.pid, child.start_ticks, group)


def _move_if_there(task: int, started: int, group: Path) -> None:
    try:
        move(task, started, group)
    except ActuatorError as error:
        if not error.vanished:
            raise


class NodeHousing:
    """`OwnGroups` as the interface of controllers: `slicepilot.controller.loop.node.Housing`.

    Args:
        own: the groups.
        follower: that finds UPFs, and has them settled.
        measured: has the scheduler's programs know the groups that there are now.
    """

    def __init__(self, own: OwnGroups, follower: Follower, measured: Callable[[], object]) -> None:
        self._own, self._follower, self._measured = own, follower, measured

    def find_again(self) -> None:
        """See there."""
        with self._follower.moving(self._own.names()):
            self._follower.find_now(self._own.names())

    def begin(self, names: Collection[str], record: Record, refusal: Callable[[str], str | None]) -> None:
        """See there."""
        with self._follower.moving(self._own.names()):
            self._own.begin(names, record, refusal)
            self._follower.find_now(self._own.names())
        self._measured()

    def look(self) -> list[MovedOut]:
        """See there."""
        return self._own.moved_out()

    def resume(self) -> None:
        """See there."""
        self._own.resume()

    def end(self) -> None:
        """See there."""
        with self._follower.moving(self._own.names()):
            self._own.end()
            self._follower.find_now(self._own.names(), missing_ok=True)
