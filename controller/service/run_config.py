"""How a controller is run: ``configs/run/NAME.yaml`` or a file of the operator's, validated."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, ConfigDict, Field

from slicepilot.configs import load, validate
from slicepilot.configs.backends import check_name
from slicepilot.configs.reading import Roots
from slicepilot.controller.watchdog.external_change import ExternalChangeConfig

_STRICT = ConfigDict(extra="forbid", allow_inf_nan=False)
Positive = Annotated[float, Field(gt=0)]
DEFAULT_AGENT = "queue-greedy"
"""The best agent on scenarios that were held out (docs/results.md)."""
DEFAULT_PERIOD_S = 0.01
RELOAD_ROOTS = ("/etc/slicepilot", "/var/lib/slicepilot/bundles")
"""Where reloads find files unless the configuration says otherwise, beside where those of the start lie."""
NodeName = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]{0,62}$")]


def _absolute(path: str) -> str:
    if not path.startswith("/") or Path(path) == Path("/") or ".." in Path(path).parts:
        raise ValueError("accepted: an absolute path of a folder, not of all files")
    return path


@dataclass(frozen=True)
class WatchdogConfig:
    """The process that puts the knobs back.

    Attributes:
        hang_s: without a sign of life for so long the controller is ended and its knobs are restored.
        leave_groups: it leaves the cgroups that it is started in for the root groups of their hierarchies: the end
            of a container ends all that is in its groups.
    """

    __pydantic_config__ = _STRICT
    hang_s: Annotated[float, Field(ge=0.1, le=60)] = 1.0
    leave_groups: bool = False


@dataclass(frozen=True)
class PublishConfig:
    """What others get to see.

    Attributes:
        listen: address and port of metrics and status page, or ``off``; ``inherited``: the socket that systemd hands
            over; ``local``: a Unix socket in its run folder, for root and ``user``. An address that is no loopback one
            is a decision.
        hosts: names by which the page is asked for, beside localhost, this machine's own and any address.
        group: members may use the control socket beside root.
        user: the publishing process runs as this user.
        log: structured logs on standard error.
        records_mb: disk space for decision records; 0 keeps none.
        estimate_s: in shadow, how often the simulator is asked what would have changed; 0: never.
    """

    __pydantic_config__ = _STRICT
    listen: str = "off"
    hosts: tuple[str, ...] = ()
    group: str | None = None
    user: str = "nobody"
    log: Literal["json", "pretty", "off"] = "json"
    records_mb: Annotated[float, Field(ge=0, le=1_000_000)] = 256.0
    estimate_s: Annotated[float, Field(ge=0, le=3600)] = 30.0


@dataclass(frozen=True)
class RunConfig:
    """One controller.

    Attributes:
        backend: what carries the traffic.
        node: name or file of the node's configuration; stands for backend ``node``.
        name: of the node; for a testbed, the testbed's.
        instance: of this controller; none is the node's name. A shadow beside a live controller needs its own.
        mode: at the start.
        canary: slices that mode ``canary`` acts on.
        bundle: folder of the learned policy; or
        agent: an agent by name. One of the two at most; without either it is `DEFAULT_AGENT`.
        scenario: loads that the backend plays itself; none: whatever traffic there is.
        period_ms: of control; none is the scenario's, or else 10.
        budget_ms: from the start of observing to knobs that are ready; what is later is dropped.
        guard: name or file of the guard's configuration.
        foreign: what is done about knobs that another program sets.
        watchdog, publish: see there.
        trust: public key (PEM) that a bundle must be signed with.
        reload_roots: folders in which an order to reload finds bundles and guards, by absolute paths without links out
            of them; none are `RELOAD_ROOTS` and the folders that the bundle and the guard of the start lie in. What is
            shipped is found by its name in any case.
        lock_memory: keep all pages in memory.
        cpu: that the loop's thread has, and the publisher keeps off; none leaves that to the kernel.
        harden: confine all processes to the system calls that they need, the publisher to its files, too; off is for
            debuggers and tracers that work from within.
        run_root, state_root: folders under which NAME/ is made: sockets and shared memory; journal and records.
    """

    __pydantic_config__ = _STRICT
    backend: Annotated[str, AfterValidator(partial(check_name, simulator=False))] = "testbed"
    node: str | None = None
    name: NodeName = "sp"
    instance: NodeName | None = None
    mode: Literal["shadow", "canary", "live"] = "shadow"
    canary: tuple[str, ...] = ()
    bundle: str | None = None
    agent: str | None = None
    scenario: str | None = None
    period_ms: Annotated[float, Field(ge=2, le=30_000)] | None = None
    budget_ms: Positive = 2.0
    guard: str = "default"
    foreign: ExternalChangeConfig = field(default_factory=ExternalChangeConfig)
    watchdog: WatchdogConfig = WatchdogConfig()
    publish: PublishConfig = PublishConfig()
    trust: str | None = None
    reload_roots: tuple[Annotated[str, AfterValidator(_absolute)], ...] | None = None
    lock_memory: bool = False
    cpu: Annotated[int, Field(ge=0)] | None = None
    harden: bool = True
    run_root: str = "/run/slicepilot"
    state_root: str = "/var/lib/slicepilot"

    @property
    def policy(self) -> str:
        """What decides: a bundle's folder or an agent's name."""
        return self.bundle or self.agent or DEFAULT_AGENT

    @property
    def period_s(self) -> float:
        """Of control; raises ConfigError for a scenario that cannot be read."""
        if self.period_ms is not None:
            return 1e-3 * self.period_ms
        if self.scenario is None:
            return DEFAULT_PERIOD_S
        from slicepilot.env.simulator.scenario import Scenario

        return Scenario.from_yaml(self.scenario).control_period_s

    @property
    def roots(self) -> Roots:
        """Of `reload_roots`."""
        if self.reload_roots is not None:
            return Roots(tuple(map(Path, self.reload_roots)))
        own = [Path(self.bundle).absolute().parent] if self.bundle is not None else []
        if self.guard.endswith((".yaml", ".yml")) or "/" in self.guard:
            own.append(Path(self.guard).absolute().parent)
        folders = (*(folder for folder in own if folder != Path("/")), *map(Path, RELOAD_ROOTS))
        return Roots(tuple(dict.fromkeys(folders)))

    @classmethod
    def from_yaml(cls, name_or_path: str) -> RunConfig:
        """Load ``configs/run/NAME.yaml`` or a user's file; raises ConfigError."""
        return load("run", name_or_path, cls)

    def override(self, **values: Any) -> RunConfig:
        """A checked copy with the values that are not None; of a part, those that are given. Raises ConfigError."""
        merged = dataclasses.asdict(self)
        for key, value in values.items():
            if isinstance(value, dict):
                merged[key] = merged[key] | value
            elif value is not None:
                merged[key] = value
        return validate(RunConfig, merged, "command line")
