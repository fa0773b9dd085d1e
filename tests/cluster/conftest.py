"""A cluster for all tests of this folder: it takes some 20 s to start."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from ..node.machine import booted
from .cluster import Cluster


@pytest.fixture(scope="session", name="cluster")
def _cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with booted(tmp_path_factory.mktemp("cluster")) as machine:
        yield Cluster(machine)
