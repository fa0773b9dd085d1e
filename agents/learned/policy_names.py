"""Names of policies for ``--policy``: ``sb3:FILE.zip``, ``onnx:FILE``, ``module:Class``, ``FILE.py:Class``."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from slicepilot.configs import ConfigError

Kind = Literal["sb3", "onnx", "code"]
ACCEPTED = "sb3:FILE.zip, sb3:FILE.zip+VECNORMALIZE.pkl, onnx:FILE, module:Class or FILE.py:Class"
MOST_NAME = 60
_UNSAFE = re.compile(r"[^A-Za-z0-9_.-]+")


@dataclass(frozen=True)
class PolicyName:
    """A policy that was not made by `slicepilot train`.

    Attributes:
        given: as written.
        kind: Stable-Baselines3's file, a model in ONNX, or Python code.
        path: of the file; for code, none.
        statistics: file of `VecNormalize` that belongs to the policy, if it was given.
    """

    given: str
    kind: Kind
    path: Path = Path()
    statistics: Path | None = None

    @classmethod
    def parse(cls, given: str) -> PolicyName:
        """Raises ConfigError for anything else; says what to write instead where that is known."""
        kind, colon, rest = given.partition(":")
        if not colon:
            raise ConfigError(f"policy = {given!r}: {_instead(Path(given))}")
        if kind == "onnx" and rest:
            return cls(given, "onnx", Path(rest))
        if kind == "sb3" and rest:
            file, plus, statistics = rest.partition(".zip+")
            if plus and not statistics:
                raise ConfigError(f"policy = {given!r}: expected sb3:FILE.zip+VECNORMALIZE.pkl")
            return cls(given, "sb3", Path(f"{file}.zip" if plus else rest), Path(statistics) if plus else None)
        if kind in ("sb3", "onnx", "models") or not kind:
            raise ConfigError(f"policy = {given!r}: expected {ACCEPTED}")
        return cls(given, "code")

    @property
    def what(self) -> str:
        """Begins errors."""
        return f"policy {self.given!r}"

    @property
    def name(self) -> str:
        """Name for tables: the file's name without its ending, or the class's name."""
        text = self.given.rpartition(":")[2] if self.kind == "code" else self.path.stem
        return _UNSAFE.sub("_", text)[:MOST_NAME] or self.kind


def _instead(path: Path) -> str:
    """What to write for a policy that was given without its kind."""
    written = {".zip": f"write sb3:{path}", ".onnx": f"write onnx:{path}", ".py": f"write {path}:Class"}
    if path.is_dir():
        return f"a folder; a bundle is given by --bundle {path}"
    return written.get(path.suffix, f"expected {ACCEPTED}; agents by name are given by --agents, or --agent")
