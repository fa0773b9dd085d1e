"""YAML configuration shipped with slicepilot and the one loader that validates it."""

from .loader import ConfigError, available, load, locate, read_yaml, validate

__all__ = ["ConfigError", "available", "load", "locate", "read_yaml", "validate"]
