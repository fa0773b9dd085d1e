"""The shipped YAML configurations, and the loader that validates them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .errors import ConfigError, FailureError, did_you_mean

if TYPE_CHECKING:
    from .loader import available, load, locate, read_yaml, validate

__all__ = ["ConfigError", "FailureError", "available", "did_you_mean", "load", "locate", "read_yaml", "validate"]


def __getattr__(name: str) -> Any:
    """Import the loader on first use: importing pydantic takes as long as NumPy, and many need only the errors."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from . import loader

    return getattr(loader, name)
