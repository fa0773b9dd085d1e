"""How a run is labelled in MLflow and in its folder: its name, tags, and where its code and command come from."""

from __future__ import annotations

import getpass
import re
import shlex
import subprocess
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any

from slicepilot.configs import ConfigError
from slicepilot.configs.text import has_controls

MOST_NAME, MOST_TAG = 250, 5000
PACKAGES = ("slicepilot", "torch", "stable-baselines3", "gymnasium", "numpy", "onnx", "onnxruntime")
_KEY = re.compile(r"[A-Za-z0-9_.:/ -]{1,250}", re.ASCII)


@dataclass(frozen=True)
class RunLabels:
    """Labels of a run from the command line.

    Attributes:
        run_name: instead of a name that is made of configuration, seed and start.
        tags: further tags.
        origin: the policy that training starts from, as `origin_of` describes it.
        model: name of the registered model that the policy becomes a version of; None registers nothing.
    """

    run_name: str | None = None
    tags: Mapping[str, str] = field(default_factory=dict)
    origin: Mapping[str, str] = field(default_factory=dict)
    model: str | None = "slicepilot"

    @classmethod
    def of(cls, run_name: str | None, tags: Iterable[str], origin: Mapping[str, str] | None = None) -> RunLabels:
        """From ``--run-name`` and ``--tag KEY=VALUE``; raises ConfigError."""
        if run_name is not None and (not run_name.strip() or len(run_name) > MOST_NAME or has_controls(run_name)):
            raise ConfigError(f"run-name = {run_name[:MOST_NAME]!r}: expected 1 to {MOST_NAME} printable characters")
        return cls(run_name, dict(map(_tag, tags)), origin or {})

    def name(self, name: str, seed: int | None) -> str:
        """The run's name: the given name, or that of the configuration with seed and start."""
        if self.run_name is not None:
            return self.run_name
        return " ".join([name if seed is None else f"{name}-seed{seed}", now()[:16].replace("T", " ")])


def _tag(text: str) -> tuple[str, str]:
    key, equals, value = text.partition("=")
    if not equals or not _KEY.fullmatch(key) or len(value) > MOST_TAG or has_controls(value):
        raise ConfigError(
            f"tag = {text[:100]!r}: expected KEY=VALUE: a key of letters, digits and _.:/-, and a printable value"
        )
    if key.startswith("mlflow."):
        raise ConfigError(f"tag = {text[:100]!r}: keys that begin with mlflow. are MLflow's own")
    return key, value


def now() -> str:
    """The time in UTC, in ISO 8601."""
    return datetime.now(UTC).isoformat(timespec="seconds")


def command() -> str:
    """The command that runs, as it was called."""
    program = Path(sys.argv[0]).name
    return shlex.join(["slicepilot", *sys.argv[1:]]) if program in {"slicepilot", "__main__.py"} else program


def called() -> dict[str, str]:
    """Tags of the command that runs; MLflow's pages show what follows the last slash of ``mlflow.source.name``."""
    return {"mlflow.source.name": " ".join(command().split()[:2]), "command": command()}


def git_revision() -> str | None:
    """Commit of the code, with ``-dirty`` if it has been changed; none without git or outside a checkout."""
    arguments = ["git", "-C", str(Path(__file__).resolve().parent), "describe", "--always", "--dirty", "--abbrev=40"]
    try:
        result = subprocess.run(arguments, capture_output=True, text=True, timeout=10, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return result.stdout.strip() or None


def versions() -> dict[str, str]:
    """Versions of the packages that make a policy."""
    results = {}
    for name in PACKAGES:
        try:
            results[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return results


def user() -> str:
    """Name of the user, as MLflow's own clients give it."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a user without an entry in the database
        return "unknown"


def provenance(source: str, origin: Mapping[str, str]) -> dict[str, str]:
    """Tags of a run: user, command, code revision and origin of the data.

    MLflow shows its own tags in columns ("User", "Source", "Version").
    """
    revision = git_revision()
    commit = {} if revision is None else {"mlflow.source.git.commit": revision.removesuffix("-dirty")}
    return {
        "mlflow.user": user(),
        **called(),
        "mlflow.source.type": "LOCAL",
        **commit,
        **({} if revision is None else {"git_revision": revision}),
        **({"source": source} if source else {}),
        **{f"from.{key}": value for key, value in origin.items()},
    }


def origin_of(address: str, files: Any, run_id: str | None) -> dict[str, str]:
    """Where a policy that training starts from comes from: its address, digest and training run.

    Args:
        address: as the command line gives it: a folder, a shipped name, or ``models:/NAME@ALIAS``.
        files: the `slicepilot.agents.learned.files.BundleFiles`.
        run_id: of the MLflow run that trained it.
    """
    return {"bundle": address, "digest": files.digest} | ({} if run_id is None else {"run_id": run_id})
