"""``slicepilot run --policy``: prepare a policy of another library for the controller."""

from __future__ import annotations

import atexit
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from slicepilot.configs import ConfigError, FailureError
from slicepilot.controller.system import own_programs

if TYPE_CHECKING:
    from slicepilot.controller.service.run_config import RunConfig


def configured(settings: RunConfig, policy: str, force: bool) -> RunConfig:
    """The settings of a run with ``policy``: a bundle made of it, which is removed at the end, or the name of its code.

    A controller imports no PyTorch, so a file is made a bundle first, in a process of its own.

    Raises:
        ConfigError: the policy is refused, or it may not act; says how to make a bundle that may.
        FailureError: it cannot be converted.
    """
    from slicepilot.agents.learned.policy_names import PolicyName

    for option, value in (("bundle", settings.bundle), ("agent", settings.agent)):
        if value is not None:
            raise ConfigError(f"policy, {option}: both are given; expected one of them")
    name = PolicyName.parse(policy)
    if name.kind == "code":
        return settings.override(agent=policy)
    made = f"slicepilot bundle import {policy} --out FOLDER"
    if settings.trust is not None:
        raise ConfigError(
            f"{name.what}: is not signed, but trust = {settings.trust!r}; expected a bundle: {made} --sign KEY"
        )
    if settings.mode != "shadow" and not force:
        raise ConfigError(
            f"mode = {settings.mode!r}: {name.what} was not promoted; expected shadow, --force, or a promoted bundle: "
            f"{made}, run it in shadow, and slicepilot promote FOLDER"
        )
    folder = Path(tempfile.mkdtemp(prefix="slicepilot-policy-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    _import(policy, folder / name.name)
    return settings.override(bundle=str(folder / name.name))


def _import(policy: str, bundle: Path) -> None:
    """Make a bundle in another process, as a runtime that loads a model here would keep threads with our rights."""
    command = [*own_programs.python("slicepilot.cli"), "bundle", "import", policy, "--no-sign", "--out", str(bundle)]
    done = subprocess.run(command, capture_output=True, text=True, env=own_programs.environment(), check=False)
    if done.returncode:
        last = (done.stderr.strip().splitlines() or [f"status {done.returncode}"])[-1]
        kind = ConfigError if done.returncode == 2 else FailureError
        raise kind(last.removeprefix("slicepilot: error: "))
