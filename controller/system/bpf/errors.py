"""Errors of measuring."""

from __future__ import annotations

from slicepilot.configs import FailureError


class ProbeError(FailureError):
    """The machine does not let us measure: one line that says what is missing or has gone, and what to do about it."""
