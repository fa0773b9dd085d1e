"""A node with Cilium's map, in namespaces of the test's own."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from .machine import Agent, Pod, own_namespaces


@pytest.fixture(scope="session", name="objects")
def _objects(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where compiled programs are."""
    return tmp_path_factory.mktemp("edt")


@pytest.fixture(name="agent")
def _agent(tmp_path: Path) -> Iterator[Agent]:
    with own_namespaces():
        yield Agent(tmp_path)


@pytest.fixture(name="pod")
def _pod(agent: Agent) -> Iterator[Pod]:
    del agent  # its namespaces first
    pod = Pod()
    yield pod
    pod.close()
