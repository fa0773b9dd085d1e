"""Finds the process of a UPF that a configuration describes."""

from __future__ import annotations

import dataclasses
import pwd
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from slicepilot.configs import ConfigError
from slicepilot.controller.system import cgroup_paths
from slicepilot.controller.system.net import namespaces
from slicepilot.node.config.selectors import LEAST_ID, ComposeSelector, PodSelector, ProcessSelector, UpfSelector

from .containers import Container, containers, is_of
from .processes import COMM_CHARACTERS, Process, ancestors, companions, eldest, snapshot

COMPOSE_SERVICE, COMPOSE_PROJECT = "com.docker.compose.service", "com.docker.compose.project"
MOST_NAMED = 5
MOST_THERE = 20


@dataclass(frozen=True)
class Located:
    """Where a UPF is.

    Attributes:
        process: its main process.
        netns: file of its network namespace: the configured namespace, else the process's.
        cgroup: folder of its CPU cgroup; None in the root group.
        others: other processes in that group, which its limits would affect.
    """

    process: Process
    netns: Path
    cgroup: Path | None
    others: tuple[Process, ...] = ()


class Finder:
    """Finds UPFs in a snapshot of the machine's processes."""

    def __init__(
        self, processes: Mapping[int, Process] | None = None, known: Sequence[Container] | None = None
    ) -> None:
        self.processes = snapshot() if processes is None else processes
        self.containers = containers() if known is None else known

    def find(self, name: str, selector: UpfSelector) -> Located:
        """The UPF of a slice, or its service.

        Raises:
            ConfigError: no process fits, or several that do not descend from each other.
        """
        where, what = f"slices.{name}.{selector.role}", "UPF" if selector.role == "upf" else "service"
        fit = [candidate for candidate in self.processes.values() if self._fits(candidate, selector)]
        result = eldest(fit, self.processes)
        if len(result) > 1:
            result = self._of_inits(result)
        if not result:
            _check_netns(name, selector)
            _check_user(where, selector)
            almost = self._almost(selector)
            raise ConfigError(f"{where}: {selector}: no such process runs; expected that of a running {what}{almost}")
        if len(result) > 1:
            text = ", ".join(map(str, result[:MOST_NAMED])) + (", ..." if len(result) > MOST_NAMED else "")
            raise ConfigError(
                f"{where}: {selector}: fits {len(result)} processes: {text}; expected a condition that only one of "
                "them fulfils, for instance on an argument"
            )
        [process] = result
        try:
            group = cgroup_paths.of_process(process.pid)
        except FileNotFoundError:
            raise ConfigError(f"{where}: {selector}: {process} has just ended; expected a running {what}") from None
        netns = Path(f"/proc/{process.pid}/ns/net") if selector.netns is None else namespaces.path_of(selector.netns)
        others = () if group is None else tuple(companions(process, self.processes))
        return Located(process, netns, group, others)

    def _almost(self, selector: UpfSelector) -> str:
        """Which single condition keeps a process from fitting, and what it would have to be; empty where none does."""
        given = [item.name for item in dataclasses.fields(selector) if getattr(selector, item.name) is not None]
        for field in given if len(given) > 1 else ():
            rest = dataclasses.replace(selector, **{field: None})
            if rest == type(selector)(user=rest.user):  # a user alone says nothing
                continue
            fit = eldest([item for item in self.processes.values() if self._fits(item, rest)], self.processes)
            if fit:
                runs = f", which runs as user {_user_name(fit[0].user)}" if field == "user" else ""
                return f"; but for {field} = {getattr(selector, field)} it would be {fit[0]}{runs}"
        return ""

    def _fits(self, candidate: Process, selector: UpfSelector) -> bool:
        return (
            (selector.pid is None or candidate.pid == selector.pid)
            and (selector.user is None or candidate.user == _user(selector.user))
            and (selector.process is None or _is_program(candidate, selector.process))
            and (selector.unit is None or selector.unit in candidate.group_names)
            and (selector.container is None or self._in_container(candidate, selector.container))
            and (selector.compose is None or self._of_service(candidate, selector.compose))
            and (selector.pod is None or self._in_pod(candidate, selector.pod))
            and (selector.cgroup is None or _below(candidate, Path(selector.cgroup)))
            and (selector.netns is None or _inside(candidate, selector.netns))
        )

    def _in_container(self, candidate: Process, named: str) -> bool:
        known = [result for result in self.containers if result.name == named]
        if known or len(named) < LEAST_ID:
            return any(result.has(candidate.group_names) for result in known)
        return any(is_of(name, named) for name in candidate.group_names)

    def _of_service(self, candidate: Process, compose: ComposeSelector) -> bool:
        return any(
            result.has(candidate.group_names)
            for result in self.containers
            if result.labels.get(COMPOSE_SERVICE) == compose.service
            and (compose.project is None or result.labels.get(COMPOSE_PROJECT) == compose.project)
        )

    def _in_pod(self, candidate: Process, named: PodSelector) -> bool:
        return any(
            result.has(candidate.group_names)
            for result in self.containers
            if (pod := result.pod) is not None
            and (pod.name, pod.namespace) == (named.name, named.namespace)
            and named.container in {None, pod.container}
            and named.uid in {None, pod.uid}
        )

    def _of_inits(self, result: list[Process]) -> list[Process]:
        """Processes that a container has started itself, unlike those of ``kubectl exec`` or ``docker exec``. All
        processes if that is ambiguous."""
        inits = {candidate.init for candidate in self.containers if candidate.init is not None}
        return [
            candidate for candidate in result if inits & {candidate.pid, *ancestors(candidate, self.processes)}
        ] or result


def _check_netns(name: str, selector: UpfSelector) -> None:
    """Say that a namespace has vanished, which explains that no process is in it; raises ConfigError."""
    if selector.netns is None or namespaces.path_of(selector.netns).exists():
        return
    present = sorted(entry.name for entry in namespaces.NAMED.iterdir()) if namespaces.NAMED.is_dir() else []
    raise ConfigError(
        f"slices.{name}.{selector.role}.netns = {selector.netns}: no such network namespace; expected a path, or one "
        f"of {', '.join(present[:MOST_THERE]) or 'none here'}{', ...' if len(present) > MOST_THERE else ''}"
    )


def _check_user(where: str, selector: UpfSelector) -> None:
    """Say that there is no such user, which explains that no process is its; raises ConfigError."""
    if selector.user is not None and _user(selector.user) is None:
        raise ConfigError(f"{where}.user = {selector.user}: no such user here; expected a name or number of a user")


def _user_name(number: int) -> str:
    try:
        return f"{pwd.getpwuid(number).pw_name} ({number})"
    except KeyError:
        return str(number)


def _user(named: str) -> int | None:
    try:
        return int(named) if named.isdecimal() else pwd.getpwnam(named).pw_uid
    except KeyError:
        return None


def _is_program(candidate: Process, wanted: ProcessSelector) -> bool:
    named = (
        wanted.name in {candidate.program, Path(candidate.arguments[0]).name}
        or wanted.name[:COMM_CHARACTERS] == candidate.name
    )
    return named and set(wanted.args) <= set(candidate.arguments[1:])


def _below(candidate: Process, group: Path) -> bool:
    try:
        own = cgroup_paths.of_process(candidate.pid)
    except FileNotFoundError:
        return False
    return own is not None and own.is_relative_to(group)


def _inside(candidate: Process, netns: str) -> bool:
    try:
        return candidate.netns is not None and candidate.netns == namespaces.identity(netns)
    except OSError:
        return False
