"""From what a YAML says of a UPF to the one process that it is."""

from __future__ import annotations

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
        netns: file of its network namespace: the one that was named, else the process's.
        cgroup: folder of its CPU cgroup; None where it is in the root group, which everything is in.
        others: what else is in that group, and would feel its limits.
    """

    process: Process
    netns: Path
    cgroup: Path | None
    others: tuple[Process, ...] = ()


class Finder:
    """Finds UPFs in one picture of the machine."""

    def __init__(
        self, processes: Mapping[int, Process] | None = None, known: Sequence[Container] | None = None
    ) -> None:
        self.processes = snapshot() if processes is None else processes
        self.containers = containers() if known is None else known

    def find(self, name: str, selector: UpfSelector) -> Located:
        """The UPF of a slice, or its service.

        Raises:
            ConfigError: no process, or more than one that does not belong to another.
        """
        where, what = f"slices.{name}.{selector.role}", "UPF" if selector.role == "upf" else "service"
        fit = [one for one in self.processes.values() if self._fits(one, selector)]
        found = eldest(fit, self.processes)
        if len(found) > 1:
            found = self._of_inits(found)
        if not found:
            _check_netns(name, selector)
            raise ConfigError(f"{where}: {selector}: no such process runs; accepted: that of a running {what}")
        if len(found) > 1:
            told = ", ".join(map(str, found[:MOST_NAMED])) + (", ..." if len(found) > MOST_NAMED else "")
            raise ConfigError(
                f"{where}: {selector}: fits {len(found)} processes: {told}; accepted: what tells one from "
                "the others, for instance one of its arguments"
            )
        [process] = found
        try:
            group = cgroup_paths.of_process(process.pid)
        except FileNotFoundError:
            raise ConfigError(f"{where}: {selector}: {process} has just ended; accepted: a running {what}") from None
        netns = Path(f"/proc/{process.pid}/ns/net") if selector.netns is None else namespaces.path_of(selector.netns)
        others = () if group is None else tuple(companions(process, self.processes))
        return Located(process, netns, group, others)

    def _fits(self, one: Process, selector: UpfSelector) -> bool:
        return (
            (selector.pid is None or one.pid == selector.pid)
            and (selector.user is None or one.user == _user(selector.user))
            and (selector.process is None or _is_program(one, selector.process))
            and (selector.unit is None or selector.unit in one.group_names)
            and (selector.container is None or self._in_container(one, selector.container))
            and (selector.compose is None or self._of_service(one, selector.compose))
            and (selector.pod is None or self._in_pod(one, selector.pod))
            and (selector.cgroup is None or _below(one, Path(selector.cgroup)))
            and (selector.netns is None or _inside(one, selector.netns))
        )

    def _in_container(self, one: Process, named: str) -> bool:
        known = [found for found in self.containers if found.name == named]
        if known or len(named) < LEAST_ID:
            return any(found.has(one.group_names) for found in known)
        return any(is_of(name, named) for name in one.group_names)

    def _of_service(self, one: Process, compose: ComposeSelector) -> bool:
        return any(
            found.has(one.group_names)
            for found in self.containers
            if found.labels.get(COMPOSE_SERVICE) == compose.service
            and (compose.project is None or found.labels.get(COMPOSE_PROJECT) == compose.project)
        )

    def _in_pod(self, one: Process, named: PodSelector) -> bool:
        return any(
            found.has(one.group_names)
            for found in self.containers
            if (pod := found.pod) is not None
            and (pod.name, pod.namespace) == (named.name, named.namespace)
            and named.container in {None, pod.container}
            and named.uid in {None, pod.uid}
        )

    def _of_inits(self, found: list[Process]) -> list[Process]:
        """Those that a container has started itself: what ``kubectl exec`` or ``docker exec`` runs beside is not the
        UPF. All of them where that cannot be told."""
        inits = {one.init for one in self.containers if one.init is not None}
        return [one for one in found if inits & {one.pid, *ancestors(one, self.processes)}] or found


def _check_netns(name: str, selector: UpfSelector) -> None:
    """Say that a namespace has vanished, which explains that no process is in it; raises ConfigError."""
    if selector.netns is None or namespaces.path_of(selector.netns).exists():
        return
    there = sorted(entry.name for entry in namespaces.NAMED.iterdir()) if namespaces.NAMED.is_dir() else []
    raise ConfigError(
        f"slices.{name}.{selector.role}.netns = {selector.netns}: no such network namespace; accepted: a path, or one "
        f"of {', '.join(there[:MOST_THERE]) or 'none here'}{', ...' if len(there) > MOST_THERE else ''}"
    )


def _user(named: str) -> int | None:
    try:
        return int(named) if named.isdecimal() else pwd.getpwnam(named).pw_uid
    except KeyError:
        return None


def _is_program(one: Process, wanted: ProcessSelector) -> bool:
    named = wanted.name in {one.program, Path(one.arguments[0]).name} or wanted.name[:COMM_CHARACTERS] == one.name
    return named and set(wanted.args) <= set(one.arguments[1:])


def _below(one: Process, group: Path) -> bool:
    try:
        own = cgroup_paths.of_process(one.pid)
    except FileNotFoundError:
        return False
    return own is not None and own.is_relative_to(group)


def _inside(one: Process, netns: str) -> bool:
    try:
        return one.netns is not None and one.netns == namespaces.identity(netns)
    except OSError:
        return False
