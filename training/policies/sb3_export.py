"""A policy of Stable-Baselines3 as ONNX, with the proof that both decide alike.

The exported output is the deterministic action: the mean of the Gaussian of PPO and its relatives, the squashed mean of
SAC's, the output of TD3's actor. The normalisation of `VecNormalize`, if any, comes before it. Observations go in as
the environment gives them, (lanes, slices * 20), actions come out as (lanes, slices * 3).
"""

from __future__ import annotations

import io
import linecache
import math
import sys
from typing import Any

import numpy as np
import onnxruntime as ort
import torch
from stable_baselines3.common.policies import ActorCriticPolicy, BasePolicy
from torch import Tensor, nn

from slicepilot.agents.learned.bundle import CODINGS, Agreement
from slicepilot.agents.runtime.allowed import OnnxError, check_model
from slicepilot.agents.runtime.session import INPUT_NAME, OUTPUT_NAME
from slicepilot.configs import ConfigError
from slicepilot.env.encoding import NUM_FEATURES
from slicepilot.env.knobs import NUM_KNOBS
from slicepilot.training.networks.export import (
    OBSERVATIONS,
    TOLERANCE,
    check_agreement,
    exported,
    to_onnx,
)
from slicepilot.training.online.policy import PpoPolicy, SacPolicy

from .sb3_files import Sb3Policy

RECURRENT = ("lstm_actor", "gru_actor")
"""Parts of policies that remember."""


class _Exported(nn.Module):
    """Observations (L, W) to deterministic actions (L, A), not clipped."""

    def __init__(self, source: Sb3Policy) -> None:
        super().__init__()
        self.policy, self.statistics = source.policy, source.statistics
        if self.statistics is not None and self.statistics.norm_obs:
            moments: Any = self.statistics.obs_rms
            self.mean: Tensor
            self.deviation: Tensor
            self.register_buffer("mean", torch.as_tensor(moments.mean, dtype=torch.float64))
            variance = torch.as_tensor(moments.var, dtype=torch.float64)
            self.register_buffer("deviation", torch.sqrt(variance + self.statistics.epsilon))
        else:
            self.statistics = None

    def forward(self, observation: Tensor) -> Tensor:
        """As ``predict(deterministic=True)``."""
        if self.statistics is not None:
            most = float(self.statistics.clip_obs)
            normal = (observation.double() - self.mean) / self.deviation
            observation = normal.clamp(-most, most).float()
        return _mean_action(self.policy, observation)


def _mean_action(policy: Any, observation: Tensor) -> Tensor:
    """Without the distributions of PyTorch, which check values that an export does not have."""
    if isinstance(policy, ActorCriticPolicy):
        features = BasePolicy.extract_features(policy, observation, policy.pi_features_extractor)
        mean = policy.action_net(policy.mlp_extractor.forward_actor(features))
        return torch.tanh(mean) if policy.squash_output else mean
    actor = getattr(policy, "actor", None)
    if actor is not None and hasattr(actor, "get_action_dist_params"):
        return torch.tanh(actor.get_action_dist_params(observation)[0])
    result: Tensor = policy._predict(observation, deterministic=True)
    return result


def sb3_to_onnx(source: Sb3Policy, what: str) -> tuple[bytes, Agreement]:
    """A policy's deterministic actions as a model, compared with ``predict`` over random observations.

    Args:
        source: the policy.
        what: begins errors.

    Raises:
        ConfigError: a policy that remembers, is of another environment, cannot be expressed so, or decides otherwise
            then.
    """
    if any(hasattr(source.policy, part) for part in RECURRENT):
        raise ConfigError(
            f"{what}: remembers (a recurrent network); a bundle decides by what it sees now. `evaluate` and `simulate` "
            "take it as it is"
        )
    width, actions = (math.prod(space.shape or ()) for space in (source.observation_space, source.action_space))
    # Before the export, which takes a while and may fail for other reasons.
    if not any(width * own == actions * columns and width % columns == 0 for columns, own, _ in CODINGS.values()):
        raise ConfigError(
            f"{what}: observes {width} numbers and acts by {actions}; expected {NUM_FEATURES} and {NUM_KNOBS} for each "
            "slice"
        )
    if isinstance(source.policy, (PpoPolicy, SacPolicy)):  # of `slicepilot train`, for any number of slices
        own = source.policy.deterministic()
        model = to_onnx(own)
        return model, check_agreement(own, model)
    try:
        model = _export(_Exported(source).eval(), width)
        check_model(model)
    except OnnxError as error:
        raise ConfigError(f"{what}: its network cannot be a bundle's: {error}") from error
    except Exception as error:  # torch raises a dozen types of its own
        reason = str(error).strip().splitlines()[-1][:200] if str(error).strip() else type(error).__name__
        raise ConfigError(f"{what}: its network cannot be exported to ONNX: {reason}") from error
    return model, _agreement(source, model, width, what)


def warm_up() -> None:
    """Load and export something, so that all that this imports has been imported."""
    weights = io.BytesIO()
    torch.save({"weight": torch.zeros(2)}, weights)
    weights.seek(0)
    torch.load(weights, weights_only=True)
    _keep_sources()
    _export(nn.Sequential(nn.Linear(2, 2), nn.ReLU(), nn.Tanh()), 2)


def _keep_sources() -> None:
    """Read the exporter's own sources, which it compiles to ONNX function by function as they are needed.

    Entries without a time of change are not looked for on disk again (`linecache.checkcache`).
    """
    import onnxscript.function_libs.torch_lib.ops  # noqa: F401 (its functions)

    for module in list(sys.modules.values()):
        file = getattr(module, "__file__", None) or ""
        if module.__name__.startswith("onnxscript.") and file.endswith(".py"):
            lines = linecache.getlines(file)
            linecache.cache[file] = (sum(map(len, lines)), None, lines, file)


def _export(network: nn.Module, width: int) -> bytes:
    model = exported(network, torch.zeros(3, width), {0: torch.export.Dim("lanes", min=1)})
    result: bytes = model.SerializeToString(deterministic=True)
    return result


def _agreement(source: Sb3Policy, model: bytes, width: int, what: str) -> Agreement:
    observation = np.random.default_rng(0).uniform(-1.0, 1.0, (OBSERVATIONS, width)).astype(np.float32)
    session = ort.InferenceSession(model, providers=["CPUExecutionProvider"])
    onnx_actions: Any = session.run([OUTPUT_NAME], {INPUT_NAME: observation})[0]
    trained = source.predict(observation)[0].reshape(OBSERVATIONS, -1)
    error = float(np.abs(np.clip(onnx_actions, -1.0, 1.0) - trained).max())
    if not error <= TOLERANCE:
        raise ConfigError(f"{what}: as ONNX its actions differ by {error:.2e}; expected at most {TOLERANCE:g}")
    return Agreement(error, OBSERVATIONS, (width // NUM_FEATURES,))
