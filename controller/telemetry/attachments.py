"""BPF programs on hooks of interfaces in other namespaces: attached, kept up and taken away again."""

from __future__ import annotations

import contextlib
import errno
import struct
import time
from collections import deque
from collections.abc import Iterable, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from slicepilot.controller.system.bpf.errors import ProbeError
from slicepilot.controller.system.bpf.libbpf import (
    BpfObject,
    RunStats,
    TcxChain,
    TcxLink,
    program_id,
    program_name,
    run_stats,
    tcx_chain,
)
from slicepilot.controller.system.kernel_file import ActuatorError
from slicepilot.controller.system.net import namespaces
from slicepilot.controller.system.net.links import link_at, links, other_end
from slicepilot.controller.system.net.rtnetlink import RouteSocket

from .clsact import ClsactFilter
from .layout import CLASS_BARE_IP, FOLDER
from .points import NetPoint

ENTRY = "slicepilot_hook"
"""Name of our programs on TCX hooks (``stub.bpf.c``)."""
MOST_TRIES, TRIES_S = 3, 3600.0
"""How often a hook is taken back from another program, in which time."""


@dataclass(frozen=True)
class Hook:
    """A program to attach to a point.

    Attributes:
        program, role, classid: see `Attachment`.
        may_wait: the device may come later, as a UPF's TUN device does.
    """

    point: NetPoint
    program: int
    role: str
    classid: int
    may_wait: bool = False


class Hooks:
    """Attaches programs, all or none (except those that may wait); `close` detaches them.

    Attributes:
        renewed: hooks that missed packets since the previous `heal` and see all of them now, with what another program
            had done; empty if no other program was involved.
        taken: how often another program had taken a hook's packets before they were seen.
        hidden: hooks that are attached, but behind another program that takes their packets.
        remarks: other programs that do not keep packets from being seen.

    Raises:
        ProbeError: a hook that may not wait cannot be attached.
    """

    def __init__(self, hooks: Iterable[Hook]) -> None:
        self._hooks = tuple(hooks)
        self._attached: dict[Hook, Attachment] = {}
        self._tries: dict[Hook, deque[float]] = {}
        self.hidden: set[Hook] = set()
        self.renewed: dict[Hook, str] = {}
        self.taken, self.remarks = 0, list[str]()
        try:
            for hook in self._hooks:
                try:
                    self._attach(hook)
                except ProbeError:
                    if not hook.may_wait:
                        raise
        except BaseException:
            self.close()
            raise

    def heal(self) -> dict[Hook, str]:
        """Attach again what was lost; returns what still does not measure, and why. Takes about 0.1 ms a hook.

        What another program has removed, or has put itself before, is attached again, first, `MOST_TRIES` times in
        `TRIES_S`: two that both want to be first would go on for ever.
        """
        missing: dict[Hook, str] = {}
        self.renewed.clear()
        losses, taken = self._losses(self._attached), set[Hook]()
        for hook in self._hooks:
            loss = losses.get(hook)
            if loss is None and hook in self._attached:
                continue
            if loss is not None and loss.others:
                taken.add(hook)
                self.taken += hook not in self.hidden
                if loss.over:
                    self.renewed[hook] = loss.text
                    continue
                if (refusal := self._refusal(hook, loss)) is not None:
                    missing[hook] = f"{loss.text}{refusal}"
                    continue
            self._detach(hook)
            try:
                self._attach(hook)
            except ProbeError as error:
                missing[hook] = str(error)
                continue
            if (still := self._losses([hook]).get(hook)) is not None:
                missing[hook] = still.text
            else:
                self.renewed[hook] = "" if loss is None or not loss.others else f"{loss.text}; attached again, first"
                taken.discard(hook)
        self.hidden = taken
        self.remarks = [text for attachment in self._attached.values() for text in attachment.remarks()]
        return missing

    def cost(self) -> dict[str, RunStats]:
        """Runs and run time by role, of what is attached now, while `libbpf.count_run_time` is on."""
        result: dict[str, RunStats] = {}
        for program, role in {(hook.program, hook.role) for hook in self._hooks}:
            result[role] = result.get(role, RunStats()) + run_stats(program)
        for hook, attachment in self._attached.items():
            result[hook.role] += attachment.entry_cost()
        return result

    def close(self) -> None:
        """Detach all, last first; goes on over failures and raises the first of them."""
        failure: ProbeError | None = None
        while self._attached:
            _, attachment = self._attached.popitem()
            try:
                attachment.detach()
            except ProbeError as error:
                failure = failure or error
        if failure is not None:
            raise failure

    def _attach(self, hook: Hook) -> None:
        self._attached[hook] = Attachment(hook.point, hook.program, hook.role, hook.classid)

    def _detach(self, hook: Hook) -> None:
        attachment = self._attached.pop(hook, None)
        if attachment is not None:
            with contextlib.suppress(ProbeError):  # what was replaced may be there still, under no name
                attachment.detach()

    def _losses(self, hooks: Iterable[Hook]) -> dict[Hook, Loss]:
        """Hooks among these that do not see all packets any more; each namespace is entered once."""
        result: dict[Hook, Loss] = {}
        of_netns: dict[str | Path, list[Hook]] = {}
        for hook in hooks:
            of_netns.setdefault(hook.point.netns, []).append(hook)
        for netns, group in of_netns.items():
            try:
                result |= namespaces.inside(netns, partial(self._losses_here, group))
            except (OSError, ActuatorError) as error:
                why = "the network namespace has gone" if isinstance(error, FileNotFoundError) else str(error)
                result |= {hook: Loss(f"{hook.point}: {why}") for hook in group}
        return result

    def _losses_here(self, hooks: Iterable[Hook]) -> dict[Hook, Loss]:
        with closing(RouteSocket()) as route:
            seen = {hook: self._attached[hook].loss(route) for hook in hooks}
        return {hook: loss for hook, loss in seen.items() if loss is not None}

    def _refusal(self, hook: Hook, loss: Loss) -> str | None:
        """A note if a hook is left as another program has it; None, and counted, if it is to be attached again."""
        if not loss.helps:
            return ""
        tries, now_s = self._tries.setdefault(hook, deque(maxlen=MOST_TRIES)), time.monotonic()
        if len(tries) == MOST_TRIES and now_s - tries[0] < TRIES_S:
            return f", and again after ours was attached anew {MOST_TRIES} times: it is left as it is for now"
        tries.append(now_s)
        return None


@dataclass(frozen=True)
class Loss:
    """Why an attached program does not see all packets.

    Attributes:
        text: what has happened.
        others: whether another program has done it.
        helps: whether it helps to attach anew.
        over: whether it sees all of them again by itself.
    """

    text: str
    others: bool = False
    helps: bool = True
    over: bool = False


class Attachment:
    """One attached program: by TCX where the kernel has it, else as a clsact filter. Detach in the reverse order of
    attaching.

    Args:
        point: where.
        program: descriptor of a loaded ``tc`` program.
        role: a word for what it does, for people who list filters.
        classid: what the program reads as ``skb->tc_classid``; whether packets start with IP is added here.
        tcx: try TCX at all?

    Raises:
        ProbeError: the namespace or the device is missing, or the kernel refuses.
    """

    def __init__(self, point: NetPoint, program: int, role: str, classid: int, *, tcx: bool = True) -> None:
        self.point = point
        try:
            self._where = namespaces.identity(point.netns)
            netns = namespaces.path_of(point.netns)
            with closing(RouteSocket(netns)) as route:
                there = links(route)
                link = there.get(point.device) if point.behind is None else other_end(*point.behind, netns)
                if link is None:
                    raise ProbeError(f"{point}: no such device; there: {', '.join(sorted(there)) or 'none'}")
                self._index, self._had_xdp = link.index, link.xdp is not None
                classid |= CLASS_BARE_IP * link.bare_ip
                self._attached = self._attach(route, program, role, classid, tcx)
        except FileNotFoundError as error:
            raise ProbeError(f"{point}: no such network namespace") from error
        except PermissionError as error:
            raise ProbeError(f"{point}: the network namespace cannot be entered: run as root") from error
        except (ActuatorError, OSError) as error:
            raise ProbeError(f"{point}: {error}") from error

    def _attach(
        self, route: RouteSocket, program: int, role: str, classid: int, tcx: bool
    ) -> TcxProgram | ClsactFilter:
        if tcx:
            try:
                return TcxProgram(self.point, self._index, program, classid)
            except Unsupported:
                pass
        return ClsactFilter(route, self.point, self._index, program, role, classid)

    def entry_cost(self) -> RunStats:
        """Cost of the entry program, which includes the program; nothing if the program is attached itself."""
        return self._attached.cost() if isinstance(self._attached, TcxProgram) else RunStats()

    def loss(self, route: RouteSocket) -> Loss | None:
        """Why this does not see all packets any more, None where it does; on a thread inside the namespace, with a
        socket there. Raises OSError, ActuatorError where that has gone."""
        if namespaces.identity(self.point.netns) != self._where:
            return Loss(f"{self.point}: the network namespace was replaced")
        link = link_at(route, self._index)
        if link is None:
            return Loss(f"{self.point}: the device has gone")
        if isinstance(self._attached, TcxProgram):
            loss = self._attached.loss()
        else:
            filters = self._attached.before(route)
            if filters is None:
                return Loss(f"{self.point}: somebody removed the filter", others=True)
            loss = _behind(self.point, _programs_before(self._index, self.point.direction) + filters)
        if loss is not None:
            return loss
        if self.point.direction == "ingress" and link.xdp is not None and not self._had_xdp:
            text = "an XDP program has come to the device, which may take packets before they are seen"
            return Loss(f"{self.point}: {text}", others=True, helps=False)
        return None

    def remarks(self) -> list[str]:
        """Programs behind this that the last `loss` has seen; filters are not reported."""
        followers = self._attached.followers if isinstance(self._attached, TcxProgram) else []
        return [f"{self.point}: {name} of somebody else came behind ours: we see what it drops" for name in followers]

    def detach(self) -> None:
        """Take the program away, and nothing else; raises ProbeError. What has gone by itself is fine."""
        try:
            self._attached.close()
        except ActuatorError as error:
            raise ProbeError(f"{self.point}: {error}") from error


class Unsupported(Exception):
    """The kernel has no TCX."""


class TcxProgram:
    """A program on a TCX hook, where the kernel has it (Linux 6.6): costs a packet about 100 ns less than a clsact
    filter, and goes when the process ends, however it ends.

    Args:
        point, ifindex: where.
        program: descriptor of a loaded ``tc`` program.
        classid: what the program reads as ``skb->tc_classid``.

    Attributes:
        followers: programs of others that have come behind it since, as they are described to people.

    Raises:
        Unsupported: attach it another way.
        ProbeError, OSError: it cannot be attached.
    """

    def __init__(self, point: NetPoint, ifindex: int, program: int, classid: int) -> None:
        self._point, self._index, self._chain = point, ifindex, TcxChain()
        self._found, self.followers = set[int](), list[str]()
        self._stub = BpfObject(FOLDER / "stub.bpf.o", {".rodata.stub": struct.pack("=I", classid)})
        try:
            self._stub.map("target").update(struct.pack("=I", 0), struct.pack("=I", program))
            self._program = program_id(self._stub.program(ENTRY).fd)
            namespaces.inside(point.netns, self._attach)
        except OSError as error:
            self._stub.close()
            if error.errno == errno.EINVAL:
                raise Unsupported from error
            raise

    def cost(self) -> RunStats:
        """Runs and run time, with the program it jumps to (whose own are not counted)."""
        return run_stats(self._stub.program(ENTRY).fd)

    def loss(self) -> Loss | None:
        """Why it does not see all packets, or has not since the last call; on a thread inside the namespace."""
        chain, known = tcx_chain(self._index, self._point.direction), self._chain
        self._chain = chain
        if not self._link.attached() or self._program not in chain.programs:
            return Loss(f"{self._point}: somebody detached the program", others=True)
        position = chain.programs.index(self._program)
        self.followers = _described(number for number in chain.programs[position + 1 :] if number not in self._found)
        loss = _behind(self._point, _described(chain.programs[:position]))
        # Each change takes a program out or puts a program in: where there were more, some are not seen any more.
        if loss is None and chain.revision - known.revision > len(set(chain.programs) ^ set(known.programs)):
            text = "somebody's program came and went, which may have been first"
            return Loss(f"{self._point}: {text}", others=True, over=True)
        return loss

    def close(self) -> None:
        """Take the program away; safe to repeat."""
        self._link.close()
        self._stub.close()

    def _attach(self) -> None:
        """Attach the program; on a thread inside the namespace."""
        self._link = TcxLink(self._stub.program(ENTRY).fd, self._index, self._point.direction)
        try:
            self._chain = tcx_chain(self._index, self._point.direction)
        except OSError:
            self._link.close()
            raise
        self._found = set(self._chain.programs)


def _programs_before(ifindex: int, direction: str) -> list[str]:
    """TCX programs of others, all of which packets pass before clsact filters, as it is described to people."""
    try:
        return _described(tcx_chain(ifindex, direction).programs)
    except OSError as error:
        if error.errno == errno.EINVAL:  # no TCX
            return []
        raise


def _behind(point: NetPoint, before: Sequence[str]) -> Loss | None:
    """The loss if packets pass these programs first; None if there are none."""
    if not before:
        return None
    return Loss(f"{point}: packets pass {before[0]} of somebody else first, which may keep them", others=True)


def _described(programs: Iterable[int]) -> list[str]:
    """Without ours, of this process or another, which pass every packet on."""
    names = {number: program_name(number) for number in programs}
    return [f"the program {name or number}" for number, name in names.items() if name not in (None, ENTRY)]
