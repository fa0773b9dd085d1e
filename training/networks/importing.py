"""Load the weights of a bundle into a network, to continue training."""

from __future__ import annotations

import numpy as np
import onnx
import torch

from slicepilot.agents.learned.bundle import PolicyBundle
from slicepilot.agents.learned.deep_sets import TRANSPOSED
from slicepilot.configs import ConfigError

from .export import ExportError, check_agreement
from .guided import GuidedPolicy
from .slice_network import DeterministicPolicy


def load_weights(policy: GuidedPolicy | DeterministicPolicy, bundle: PolicyBundle) -> None:
    """Give a policy the weights of a bundle, and prove that it then decides as the bundle does.

    Raises:
        ConfigError: the bundle's network is not the policy's.
    """
    other = f"{bundle}: expected a bundle with the network that the training config describes"
    tensors = onnx.load_from_string(bundle.model).graph.initializer
    constants = {tensor.name: onnx.numpy_helper.to_array(tensor) for tensor in tensors}
    with torch.no_grad():
        for name, parameter in policy.named_parameters():
            value = constants[name] if name in constants else constants.get(f"{name}{TRANSPOSED}", np.empty(0)).T
            if value.shape != tuple(parameter.shape):
                raise ConfigError(f"{other} ({name} differs in shape)")
            parameter.copy_(torch.from_numpy(value.copy()))
    try:
        check_agreement(policy, bundle.model)
    except ExportError as error:
        raise ConfigError(f"{other}; {error}") from error
