"""The testbed's programs, where they are built."""

import pytest

from slicepilot.configs import ConfigError
from slicepilot.testbed.lifecycle.processes import binary


def built(name: str) -> str:
    """Path of a program; skips the module that asks at its import, or the test, where it is not built."""
    try:
        return str(binary(name))
    except ConfigError as error:
        pytest.skip(str(error), allow_module_level=True)
