"""PyTorch's exporter builds its table of ONNX operators for each export, which takes two seconds: tests keep it."""

import sys
from functools import cache
from typing import Any

OPSET = 18  # as in slicepilot.training.networks.export


def keep_operators(build: bool = False) -> None:
    """Let exports of this process share one table of operators, once PyTorch's exporter has been imported.

    Args:
        build: the table now, for processes that are forked from this one.
    """
    module: Any = sys.modules.get("torch.onnx._internal.exporter._registration")
    if module is None:
        return
    registry = module.ONNXRegistry
    if not hasattr(registry.from_torchlib, "cache_info"):
        registry.from_torchlib = staticmethod(cache(registry.from_torchlib))
    if build:
        registry.from_torchlib(opset_version=OPSET)
