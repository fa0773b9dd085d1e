"""Small contended runs on the real simulator."""

import pytest

from tests.agents.played import loads
from tests.loads import Loads


@pytest.fixture
def contended() -> Loads:
    """Five slices that want more than the node has, and a share of a fifth is too little for slice 1."""
    return loads([150.0, 200.0, 200.0, 200.0, 200.0], 120, join_s=20.0)


@pytest.fixture
def light() -> Loads:
    """Nobody is in anybody's way."""
    return loads([60.0, 45.0, 45.0], 60)
