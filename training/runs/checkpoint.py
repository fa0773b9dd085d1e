"""Checkpoints of a training run: written in one step, read without executing anything."""

from __future__ import annotations

import io
import random
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch

from slicepilot.configs import ConfigError
from slicepilot.data.files import replace_file

FORMAT_VERSION = 2
FILE_NAME = "checkpoint.pt"


@dataclass
class Checkpoint:
    """The state of a run, to resume from, as plain values and tensors.

    Attributes:
        config: the training configuration as plain values.
        steps, updates: control periods seen and gradient updates made.
        elapsed_s: wall-clock seconds of training so far.
        run_id: MLflow run, if tracked.
        policy: ``state_dict`` of the policy.
        average: state of `slicepilot.training.networks.averaging.PolicyAverage`.
        optimizers: state of each optimiser by name; ``temperature`` is SAC's entropy coefficient, if learned.
        scaler: state of the reward scaling.
        objective: state of the multiplier of broken promises, if any.
        generators: states of Python's, NumPy's and PyTorch's global generators.
    """

    config: dict[str, Any]
    steps: int
    updates: int
    elapsed_s: float
    run_id: str | None
    policy: dict[str, Any]
    average: dict[str, Any]
    optimizers: dict[str, Any]
    scaler: dict[str, float]
    temperature: torch.Tensor | None = None
    generators: dict[str, Any] = field(default_factory=dict)
    objective: dict[str, float] = field(default_factory=dict)
    format_version: int = FORMAT_VERSION

    def write(self, path: Path) -> None:
        """Replace the file at ``path``; the old checkpoint stays whole until the new checkpoint is on disk.

        Raises:
            ConfigError: it cannot be written, for instance because the disk is full.
        """
        buffer = io.BytesIO()
        torch.save(vars(self), buffer)
        try:
            replace_file(path, buffer.getvalue())
        except OSError as error:
            kept = "; the last checkpoint is kept" if path.exists() else ""
            raise ConfigError(
                f"checkpoint {str(path)!r}: cannot be written: {error.strerror}{kept}; "
                f"expected a folder with {len(buffer.getvalue()) / 1e6:.1f} MB free"
            ) from error

    @classmethod
    def read(cls, path: str | Path, option: str = "resume") -> Checkpoint:
        """Read a checkpoint file, or the checkpoint in a run's folder; ``option`` is the option that named it.

        Raises:
            ConfigError: no such file, not a checkpoint, damaged, or of another format version.
        """
        file = Path(path)
        file = file / FILE_NAME if file.is_dir() else file
        if not file.is_file():
            raise ConfigError(f"{option} = {str(path)!r}: no checkpoint; expected a run's folder or its {FILE_NAME}")
        try:
            raw = torch.load(file, map_location="cpu", weights_only=True)
            version = raw["format_version"]
            if version != FORMAT_VERSION:
                raise ConfigError(f"checkpoint {str(file)!r}: format_version = {version!r}: expected {FORMAT_VERSION}")
            return cls(**raw)
        except ConfigError:
            raise
        except Exception as error:  # torch, zipfile and pickle raise types of their own for foreign files
            raise ConfigError(f"checkpoint {str(file)!r}: damaged, or not a checkpoint of this program") from error


def generator_states(device: torch.device | None = None) -> dict[str, Any]:
    """States of the global random generators, as plain values and tensors; also that of a GPU that learns."""
    version, internal, gauss = random.getstate()
    name, keys, position, has_gauss, cached = np.random.get_state(legacy=True)  # noqa: NPY002 (SB3 draws from it)
    states = {
        "python": [version, list(internal), gauss],
        "numpy": [name, torch.from_numpy(np.asarray(keys).astype(np.int64)), position, has_gauss, cached],
        "torch": torch.get_rng_state(),
    }
    if device is not None and device.type == "cuda":
        states["cuda"] = torch.cuda.get_rng_state()
    return states


def restore_generators(states: dict[str, Any], device: torch.device | None = None) -> None:
    """Set the global random generators to `generator_states`."""
    version, internal, gauss = states["python"]
    random.setstate((version, tuple(internal), gauss))
    name, keys, position, has_gauss, cached = states["numpy"]
    np.random.set_state((name, keys.numpy().astype(np.uint32), position, has_gauss, cached))  # noqa: NPY002
    torch.set_rng_state(states["torch"])
    if device is not None and device.type == "cuda" and "cuda" in states:
        torch.cuda.set_rng_state(states["cuda"])
