"""How a process is named: by number, program, unit, container, pod, cgroup, namespace, user."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal, TypeVar

from pydantic import ConfigDict, Field

STRICT = ConfigDict(extra="forbid", allow_inf_nan=False)
Text = Annotated[str, Field(min_length=1, max_length=4096, pattern=r"^[^\x00\n]*$")]
Selector = TypeVar("Selector", bound="UpfSelector")
LEAST_ID = 6  # digits of a container's id


@dataclass(frozen=True)
class ProcessSelector:
    """Selects by program: ``name`` is its file name or the process's name, and all ``args`` are on its command line."""

    __pydantic_config__ = STRICT
    name: Text
    args: tuple[Text, ...] = ()

    def __str__(self) -> str:
        return " ".join((self.name, *self.args))


@dataclass(frozen=True)
class ComposeSelector:
    """Selects by Docker Compose: a service, and its project if several have a service of that name."""

    __pydantic_config__ = STRICT
    service: Text
    project: Text | None = None

    def __str__(self) -> str:
        return self.service if self.project is None else f"{self.project}/{self.service}"


@dataclass(frozen=True)
class PodSelector:
    """Selects by Kubernetes: a pod of this node, and one of its containers where several could be meant.

    Attributes:
        uid: of the pod, where another of its name is not to be taken for it.
    """

    __pydantic_config__ = STRICT
    name: Text
    namespace: Text = "default"
    container: Text | None = None
    uid: Text | None = None

    def __str__(self) -> str:
        return "/".join(filter(None, (self.namespace, self.name, self.container)))


@dataclass(frozen=True)
class UpfSelector:
    """Which process is a slice's UPF. Several conditions have to hold together; at least one is given.

    Attributes:
        role: what it is called in a slice, and in messages.
        pid: its number, which does not identify the UPF after a restart.
        process: program and arguments.
        unit: systemd unit, for instance ``open5gs-upfd@embb.service``.
        container: id (six digits or more) or name.
        compose: Docker Compose's labels.
        pod: Kubernetes' names, as the node's container runtime has them.
        cgroup: a folder of its CPU cgroup, version 1 or 2; groups below it count.
        netns: network namespace, a name (``ip netns``) or a path.
        user: that it runs as, name or number. Anybody can give a process any name: say it beside ``process``.
    """

    __pydantic_config__ = STRICT
    role: ClassVar[Literal["upf", "service"]] = "upf"
    pid: Annotated[int, Field(ge=1)] | None = None
    process: ProcessSelector | None = None
    unit: Text | None = None
    container: Text | None = None
    compose: ComposeSelector | None = None
    pod: PodSelector | None = None
    cgroup: Text | None = None
    netns: Text | None = None
    user: Text | None = None

    def __str__(self) -> str:
        given = ((item.name, getattr(self, item.name)) for item in dataclasses.fields(self))
        return ", ".join(f"{name} = {value}" for name, value in given if value is not None)


@dataclass(frozen=True)
class ServiceSelector(UpfSelector):
    """Which process is a slice's service, in the same way."""

    __pydantic_config__ = STRICT
    role = "service"


def check_selector(selector: Selector) -> Selector:
    """The same selector; raises ValueError if it has no condition."""
    if selector == type(selector)(user=selector.user):
        names = ", ".join(item.name for item in dataclasses.fields(selector) if item.name != "user")
        raise ValueError(f"nothing says which process it is; expected at least one of {names}")
    return selector
