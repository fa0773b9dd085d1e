"""What tests of single programs have in common."""

from collections.abc import Iterator
from typing import Any

import pytest


@pytest.fixture(name="network")
def _network() -> Iterator[Any]:
    """A UPF's surroundings, of its own namespaces."""
    from .scapy_smf import Network  # which needs scapy

    made = Network()
    try:
        made.build()
        yield made
    finally:
        made.remove()
