"""A policy from a file of Stable-Baselines3 (``model.save``), read without running anybody's code.

Such a file is a ZIP archive: ``data`` is JSON in which what JSON cannot express is pickled by cloudpickle, and
``policy.pth`` has the weights (stable_baselines3.common.save_util). ``PPO.load`` unpickles all of ``data``, which runs
what its author likes. Here only the policy's class, its spaces and its arguments are unpickled, and only classes of
Stable-Baselines3, sb3-contrib, PyTorch's layers and optimisers, Gymnasium's spaces and this project's policies are
looked up, beside NumPy's arrays and generators. So a policy with a class of its author's own is refused; it can be
named as code (``FILE.py:Class``), which then is what it is.
"""

from __future__ import annotations

import base64
import binascii
import inspect
import io
import json
import pickle
import zipfile
from collections import OrderedDict
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from gymnasium import spaces
from stable_baselines3.common.policies import BasePolicy
from stable_baselines3.common.running_mean_std import RunningMeanStd
from stable_baselines3.common.torch_layers import BaseFeaturesExtractor
from stable_baselines3.common.vec_env import VecNormalize
from torch import nn
from torch.optim import Optimizer

from slicepilot.configs import ConfigError
from slicepilot.training.networks.slice_network import NetworkConfig

from .sb3_bundles import Sb3Source

MOST_MEMBER_BYTES = {"data": 64 << 20, "policy.pth": 256 << 20, "system_info.txt": 1 << 16}
SPACES = ("observation_space", "action_space")
PICKLED = ("policy_class", *SPACES, "policy_kwargs")

_PACKAGES = ("stable_baselines3", "sb3_contrib", "torch.nn", "torch.optim", "gymnasium.spaces", "slicepilot.training")
_BASES = (BasePolicy, BaseFeaturesExtractor, nn.Module, Optimizer, spaces.Space, NetworkConfig)
_STATISTICS = (VecNormalize, RunningMeanStd)
# What NumPy's arrays, scalars and generators are put together by; their modules were named otherwise before NumPy 2.
_NUMPY = {
    "numpy": ("ndarray", "dtype"),
    "numpy._core.multiarray": ("_reconstruct", "scalar"),
    "numpy._core.numeric": ("_frombuffer",),
    "numpy.random._pickle": ("__generator_ctor", "__bit_generator_ctor"),
    "numpy.random._pcg64": ("PCG64",),
    "numpy.random.bit_generator": ("SeedSequence", "__pyx_unpickle_SeedSequence"),
}
_RENAMED = {"numpy.core.multiarray": "numpy._core.multiarray", "numpy.core.numeric": "numpy._core.numeric"}


@dataclass(frozen=True)
class Sb3Policy:
    """A policy as Stable-Baselines3 has it; `slicepilot.agents.predicting.Predictor`.

    Attributes:
        policy: in evaluation mode, on the CPU.
        facts: what the file says of its training: ``num_timesteps``, ``seed``, versions.
        statistics: normalises observations; None: as they are.
    """

    policy: BasePolicy
    facts: dict[str, Any]
    statistics: VecNormalize | None = None

    @property
    def observation_space(self) -> spaces.Space[Any]:
        """The environment's."""
        return self.policy.observation_space

    @property
    def action_space(self) -> spaces.Space[Any]:
        """The environment's."""
        return self.policy.action_space

    def predict(
        self, observation: Any, state: Any = None, episode_start: Any = None, deterministic: bool = True
    ) -> tuple[Any, Any]:
        """As `BasePolicy.predict`, after normalising."""
        seen = observation if self.statistics is None else self.statistics.normalize_obs(observation)
        return self.policy.predict(seen, state, episode_start, deterministic)


def load_sb3(source: Sb3Source) -> Sb3Policy:
    """The policy of a file.

    Raises:
        ConfigError: not such a file, a policy with code of its author's, or of other spaces than boxes from -1 to 1.
    """
    what = source.name.what
    try:
        with zipfile.ZipFile(io.BytesIO(source.model)) as archive:
            data = json.loads(_member(archive, "data", what))
            weights = _member(archive, "policy.pth", what)
            info = _member(archive, "system_info.txt", what, needed=False).decode(errors="replace")
        if not isinstance(data, dict):
            raise ConfigError(f"{what}: data: {type(data).__name__} instead of a mapping")
        parts = {key: _unpickled(data.get(key), f"{what}: {key}") for key in PICKLED}
        for key in SPACES:
            _check_box(parts[key], f"{what}: {key}")
        policy = _rebuild(parts, bool(data.get("use_sde")), what)
        state = torch.load(io.BytesIO(weights), map_location="cpu", weights_only=True)
        policy.load_state_dict(state)
    except ConfigError:
        raise
    except Exception as error:  # whatever a damaged file leads to in zipfile, json, pickle, gymnasium and torch
        reason = " ".join(f"{type(error).__name__}: {error}".split())[:300]
        raise ConfigError(f"{what}: not a file that Stable-Baselines3's save has written ({reason})") from error
    policy.set_training_mode(False)
    facts = {"num_timesteps": data.get("num_timesteps"), "seed": data.get("seed"), "versions": _versions(info)}
    statistics = None if source.statistics is None else _normaliser(source.statistics, policy, what)
    return Sb3Policy(policy, facts, statistics)


class _Unpickler(pickle.Unpickler):
    """Looks up no more than is listed above."""

    def __init__(self, data: bytes, what: str) -> None:
        super().__init__(io.BytesIO(data))
        self._what = what

    def find_class(self, module: str, name: str) -> Any:
        """Raises ConfigError for classes that are not listed."""
        module = _RENAMED.get(module, module)
        if name in _NUMPY.get(module, ()):
            return super().find_class(module, name)
        if (module, name) == ("collections", "OrderedDict"):
            return OrderedDict
        if any(module == package or module.startswith(f"{package}.") for package in _PACKAGES):
            known = super().find_class(module, name)
            if isinstance(known, type) and issubclass(known, (*_BASES, *_STATISTICS)):
                return known
        raise ConfigError(
            f"{self._what}: needs {module}.{name}, which is code that the file would run; expected classes of "
            "Stable-Baselines3 and PyTorch. If you trust it, load it in Python and name that: FILE.py:Class"
        )


def _unpickled(value: Any, what: str) -> Any:
    if not (isinstance(value, dict) and ":serialized:" in value):
        return value
    try:
        return _Unpickler(base64.b64decode(value[":serialized:"], validate=True), what).load()
    except binascii.Error as error:
        raise ConfigError(f"{what}: not base64") from error


def _member(archive: zipfile.ZipFile, name: str, what: str, needed: bool = True) -> bytes:
    """A file of an archive, of a limited size whatever its head says."""
    if name not in archive.namelist():
        if not needed:
            return b""
        raise ConfigError(f"{what}: has no {name}; expected a file of Stable-Baselines3's save")
    with archive.open(name) as member:
        content = member.read(MOST_MEMBER_BYTES[name] + 1)
    if len(content) > MOST_MEMBER_BYTES[name]:
        raise ConfigError(f"{what}: {name}: more than {MOST_MEMBER_BYTES[name]} bytes, which is the limit")
    return content


def _check_box(space: Any, what: str) -> None:
    expected = "expected that of slicepilot/SliceControl-v0, a Box from -1 to 1 of float32"
    if not isinstance(space, spaces.Box):
        kind = f"{space}"[:200]
        raise ConfigError(f"{what} = {kind}: {expected}; with wrappers around it, name code: FILE.py:Class")
    if space.dtype != np.float32 or not (np.all(space.low == -1.0) and np.all(space.high == 1.0)):
        raise ConfigError(f"{what}: from {space.low.min():g} to {space.high.max():g}, {space.dtype}; {expected}")


def _rebuild(parts: dict[str, Any], use_sde: bool, what: str) -> BasePolicy:
    """As the algorithms' ``_setup_model``, without the parts for training."""
    kind, arguments = parts["policy_class"], parts["policy_kwargs"] or {}
    if not (isinstance(kind, type) and issubclass(kind, BasePolicy)) or not isinstance(arguments, dict):
        raise ConfigError(f"{what}: policy_class: expected a policy of Stable-Baselines3's")
    given = {name: parts[name] for name in SPACES} | arguments
    if "lr_schedule" in inspect.signature(kind).parameters:
        given["lr_schedule"] = _no_learning
    if use_sde:
        given.setdefault("use_sde", True)
    policy: BasePolicy = kind(**given)
    return policy


def _no_learning(_: float) -> float:
    return 0.0


def _normaliser(data: bytes, policy: BasePolicy, what: str) -> VecNormalize:
    try:
        normaliser = _Unpickler(data, f"{what}: statistics").load()
    except ConfigError:
        raise
    except Exception as error:  # as in `load_sb3`
        reason = " ".join(f"{type(error).__name__}: {error}".split())[:300]
        raise ConfigError(f"{what}: statistics: not a file of VecNormalize's save ({reason})") from error
    means = getattr(getattr(normaliser, "obs_rms", None), "mean", None)
    if not isinstance(normaliser, VecNormalize) or not isinstance(means, np.ndarray):
        raise ConfigError(f"{what}: statistics: {type(normaliser).__name__}; expected a VecNormalize of a Box")
    if means.shape != policy.observation_space.shape:
        raise ConfigError(
            f"{what}: statistics: of observations {means.shape}; expected {policy.observation_space.shape}"
        )
    normaliser.training = False
    return normaliser


def _versions(info: str) -> dict[str, str]:
    """Of the packages that ``system_info.txt`` names."""
    pairs = (line.lstrip("- ").partition(": ") for line in info.splitlines()[:20])
    return {name.lower(): value.strip()[:64] for name, _, value in pairs if name in ("Stable-Baselines3", "PyTorch")}
