"""PyTorch's exporter builds its table of ONNX operators for each export, which takes two seconds: tests keep it."""

import sys
from functools import cache
from typing import Any


def keep_operators() -> None:
    """Let exports of this process share one table of operators, once PyTorch's exporter has been imported."""
    module: Any = sys.modules.get("torch.onnx._internal.exporter._registration")
    if module is not None and not hasattr(module.ONNXRegistry.from_torchlib, "cache_info"):
        module.ONNXRegistry.from_torchlib = staticmethod(cache(module.ONNXRegistry.from_torchlib))
