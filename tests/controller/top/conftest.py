"""Where the tests' controllers have their rings."""

from pathlib import Path

import pytest


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Of the ring of the controller sp."""
    return tmp_path / "sp" / "ticks"
