"""The error for bad input from outside."""

from __future__ import annotations


class ConfigError(ValueError):
    """Bad input from outside: the message is one line that names the field, the value and what is accepted."""
