"""A cluster for all tests of this folder, which takes some 20 s to start, and what most of them have on it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.node.machine import booted

from .agents import install
from .cluster import Cluster
from .upfs import PodUpfs, pod_upfs


@pytest.fixture(scope="session", name="cluster")
def _cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with booted(tmp_path_factory.mktemp("cluster")) as machine:
        yield Cluster(machine)


@pytest.fixture(scope="module", name="upfs")
def _upfs(request: pytest.FixtureRequest, cluster: Cluster) -> Iterator[PodUpfs]:
    """As many as the module says in ``COUNT``."""
    with pod_upfs(cluster, request.module.COUNT) as upfs:
        yield upfs


@pytest.fixture(scope="module", name="access")
def _access(cluster: Cluster, upfs: PodUpfs) -> Path:
    """What an agent is installed with, in the namespace of the UPFs: its kubeconfig."""
    del upfs  # first
    return install(cluster)
