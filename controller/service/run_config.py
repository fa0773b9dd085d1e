"""How a controller is run: ``configs/run/NAME.yaml`` or a file of the operator's, validated."""

from __future__ import annotations

import dataclasses
import os
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, ConfigDict, Field

from slicepilot.agents.learned.shipped import is_shipped
from slicepilot.configs import ConfigError, load, validate
from slicepilot.configs.backends import check_name
from slicepilot.configs.reading import Roots
from slicepilot.controller.publisher.handle import PublishConfig
from slicepilot.controller.watchdog.external_change import ExternalChangeConfig

_STRICT = ConfigDict(extra="forbid", allow_inf_nan=False)
DEFAULT_AGENT = "queue-greedy"
"""The best agent on scenarios that were held out (docs/results.md)."""
DEFAULT_PERIOD_S = 0.01
BUNDLES = "/var/lib/slicepilot/bundles"
RELOAD_ROOTS = ("/etc/slicepilot", BUNDLES)
"""Default folders for reloads, beside the folders of the bundle and the guard of the start."""
NodeName = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]{0,62}$")]


def _absolute(path: str) -> str:
    if not path.startswith("/") or Path(path) == Path("/") or ".." in Path(path).parts:
        raise ValueError("expected the absolute path of a folder, not of all files")
    return path


@dataclass(frozen=True)
class WatchdogConfig:
    """The process that restores the knobs.

    Attributes:
        hang_s: time without a heartbeat after which the controller is killed and its knobs are restored.
        leave_groups: move it to the root groups of the cgroup hierarchies, because the end of a container ends
            everything in its groups.
    """

    __pydantic_config__ = _STRICT
    hang_s: Annotated[float, Field(ge=0.1, le=60)] = 1.0
    leave_groups: bool = False


@dataclass(frozen=True)
class RunConfig:
    """One controller.

    Attributes:
        backend: what carries the traffic; default: ``node`` with ``node``, else ``testbed``.
        node: name or file of the node's configuration.
        name: of the node; for a testbed, the testbed's.
        instance: name of this controller; default: the node's name. A shadow beside a live controller needs its own.
        mode: at the start.
        canary: slices that mode ``canary`` acts on.
        bundle: folder of the learned policy; or
        agent: an agent by name. At most one of the two is given; the default is `DEFAULT_AGENT`.
        scenario: loads that the backend generates; None: the node's own traffic.
        period_ms: control period; default: the scenario's, or 10.
        budget_ratio: share of the control period from the start of observing to the decision; a later decision is
            dropped.
        guard: name or file of the guard's configuration.
        foreign: what is done about knobs that another program sets.
        trust: public key (PEM) that a bundle must be signed with.
        reload_roots: folders of bundles and guards for reloads, given by absolute paths without links out of them;
            default: `RELOAD_ROOTS` and the folders of the bundle and the guard of the start. What is shipped can
            always be loaded by name.
        lock_memory: keep all pages in memory.
        cpu: CPU of the loop's thread, which the publisher does not use; default: the kernel chooses.
        harden: confine all processes to the system calls that they need, and the publisher to its files; off for
            debuggers and tracers.
        run_root, state_root: parents of the folder NAME: sockets and shared memory; records and evidence.
    """

    __pydantic_config__ = _STRICT
    backend: Annotated[str, AfterValidator(partial(check_name, simulator=False))] | None = None
    node: str | None = None
    name: NodeName = "sp"
    instance: NodeName | None = None
    mode: Literal["shadow", "canary", "live"] = "shadow"
    canary: tuple[str, ...] = ()
    bundle: str | None = None
    agent: str | None = None
    scenario: str | None = None
    period_ms: Annotated[float, Field(ge=2, le=30_000)] | None = None
    budget_ratio: Annotated[float, Field(gt=0, le=1)] = 0.5
    guard: str = "default"
    foreign: ExternalChangeConfig = field(default_factory=ExternalChangeConfig)
    watchdog: WatchdogConfig = WatchdogConfig()
    publish: PublishConfig = field(default_factory=PublishConfig)
    trust: str | None = None
    reload_roots: tuple[Annotated[str, AfterValidator(_absolute)], ...] | None = None
    lock_memory: bool = False
    cpu: Annotated[int, Field(ge=0)] | None = None
    harden: bool = True
    run_root: str = "/run/slicepilot"
    state_root: str = "/var/lib/slicepilot"

    def __post_init__(self) -> None:
        if self.node is not None and self.backend not in (None, "node"):
            raise ValueError(f"backend = {self.backend!r}: expected node, because node = {self.node!r} is given")

    @property
    def carrier(self) -> str:
        """The backend, given or by default."""
        return self.backend or ("testbed" if self.node is None else "node")

    @property
    def policy(self) -> str:
        """The policy: a bundle's folder or an agent's name."""
        return self.bundle or self.agent or DEFAULT_AGENT

    @property
    def period_s(self) -> float:
        """Control period; raises ConfigError for a scenario that cannot be read."""
        if self.period_ms is not None:
            return 1e-3 * self.period_ms
        if self.scenario is None:
            return DEFAULT_PERIOD_S
        from slicepilot.env.simulator.scenario import Scenario

        return Scenario.from_yaml(self.scenario).control_period_s

    @property
    def roots(self) -> Roots:
        """The folders of `reload_roots`."""
        if self.reload_roots is not None:
            return Roots(tuple(map(Path, self.reload_roots)))
        own = [] if self.bundle is None or is_shipped(self.bundle) else [Path(self.bundle).absolute().parent]
        if self.guard.endswith((".yaml", ".yml")) or "/" in self.guard:
            own.append(Path(self.guard).absolute().parent)
        folders = (*(folder for folder in own if folder != Path("/")), *map(Path, RELOAD_ROOTS))
        return Roots(tuple(dict.fromkeys(folders)))

    def make_folders(self, instance: str) -> tuple[Path, Path]:
        """Make the folders of a controller of that name in `run_root` and `state_root`; raises ConfigError."""
        umask = os.umask(0o022)  # the control group goes through, and only root writes there
        try:
            for field, root in (("run_root", self.run_root), ("state_root", self.state_root)):
                try:
                    Path(root, instance).mkdir(parents=True, exist_ok=True)
                except OSError as error:
                    raise ConfigError(f"{field} = {root}: {error.strerror}; expected a writable folder") from error
        finally:
            os.umask(umask)
        return Path(self.run_root, instance), Path(self.state_root, instance)

    @classmethod
    def from_yaml(cls, name_or_path: str) -> RunConfig:
        """Load ``configs/run/NAME.yaml`` or a user's file; raises ConfigError."""
        return load("run", name_or_path, cls)

    def override(self, **values: Any) -> RunConfig:
        """A validated copy with the values that are not None; parts are merged. Raises ConfigError."""
        merged = dataclasses.asdict(self)
        for key, value in values.items():
            if isinstance(value, dict):
                merged[key] = merged[key] | value
            elif value is not None:
                merged[key] = value
        return validate(RunConfig, merged, "command line")
